"""Where this process stands in the cgroup trees: containers and schedulers set their limits there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True)
class CgroupMount:
    """A mounted hierarchy: `root` is the part of it that is visible at `point` (containers see a subtree)."""

    version: int
    controllers: frozenset[str]
    root: PurePosixPath
    point: PurePosixPath


def folders(controller: str, version: int, root: Path = Path("/")) -> Iterator[Path]:
    """The folders that limit this process, from its own cgroup up to the hierarchy's top.

    Args:
        controller: "cpu" or "memory"; cgroup v2 has one hierarchy for all.
        root: where /proc and /sys are found, for captured trees.
    """
    own = _own_path(root, controller, version)
    mount = next((item for item in _mounts(root) if _serves(item, controller, version)), None)
    if own is None or mount is None:
        return
    point = root / mount.point.relative_to("/")
    below = _below(own, mount.root)
    for path in (below, *below.parents):
        folder = point / path
        # In a container without its own cgroup namespace, the path may name a folder that is not mounted.
        if folder.is_dir():
            yield folder


def read_number(path: Path) -> int | None:
    """The integer in `path`, or None where there is none (no such file, "max")."""
    try:
        return int(path.read_text().strip())
    except (OSError, ValueError):
        return None


def _serves(mount: CgroupMount, controller: str, version: int) -> bool:
    return mount.version == version and (version == 2 or controller in mount.controllers)


def _below(own: PurePosixPath, root: PurePosixPath) -> PurePosixPath:
    """The process's cgroup relative to the mount's root; the root itself where it lies elsewhere."""
    if ".." in own.parts or not own.is_relative_to(root):
        return PurePosixPath()
    return own.relative_to(root)


def _own_path(root: Path, controller: str, version: int) -> PurePosixPath | None:
    """From /proc/self/cgroup: `0::/path` for v2, `4:cpu,cpuacct:/path` for v1."""
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        is_v2 = number == "0" and controllers == ""
        if is_v2 if version == 2 else controller in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mounts(root: Path) -> Iterator[CgroupMount]:
    """From /proc/self/mountinfo: `id parent dev ROOT POINT options … - TYPE source SUPEROPTIONS`."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or not kind or kind[0] not in ("cgroup", "cgroup2"):
            continue
        yield CgroupMount(
            version=2 if kind[0] == "cgroup2" else 1,
            controllers=frozenset(kind[-1].split(",")),
            root=PurePosixPath(fields[3]),
            point=PurePosixPath(fields[4]),
        )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:  # no /proc (not Linux): no cgroup limits either
        return []
