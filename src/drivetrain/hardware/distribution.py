"""Which Linux distribution this is, so that a repair can be a command that exists here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """`id` as in /etc/os-release ("ubuntu", "rhel"); `tool` is its package tool, "" where not known."""

    id: str
    version: str = ""
    name: str = ""

    @property
    def tool(self) -> str:
        return _TOOLS.get(self.id, "")


_TOOLS = {
    **dict.fromkeys(("ubuntu", "debian", "linuxmint", "pop"), "apt"),
    **dict.fromkeys(("rhel", "centos", "rocky", "almalinux", "fedora", "ol", "amzn"), "dnf"),
    **dict.fromkeys(("sles", "sled", "opensuse", "opensuse-leap", "opensuse-tumbleweed"), "zypper"),
}


def this_distribution(root: Path = Path("/")) -> Distribution | None:
    """From /etc/os-release under `root`; None where there is none (not Linux)."""
    for place in ("etc/os-release", "usr/lib/os-release"):
        try:
            lines = (root / place).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            continue
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        plain = {key: value.strip().strip("\"'") for key, value in fields.items()}
        own, like = plain.get("ID", ""), plain.get("ID_LIKE", "").split()
        known = next((name for name in (own, *like) if name in _TOOLS), own)
        return Distribution(id=known, version=plain.get("VERSION_ID", ""), name=plain.get("PRETTY_NAME", own))
    return None


def distribution_named(text: str) -> Distribution | None:
    """The distribution in words, as reports print it (`Ubuntu 20.04.5 LTS (x86_64)`); None where not told."""
    words = text.split()
    if not words:
        return None
    first = words[0].lower()
    wanted = {"red": "rhel", "centos": "centos", "alma": "almalinux", "amazon": "amzn", "suse": "sles"}
    own = wanted.get(first, first)
    if own not in _TOOLS:
        return None
    version = next((word for word in words if word[:1].isdigit()), "")
    return Distribution(id=own, version=version, name=text)
