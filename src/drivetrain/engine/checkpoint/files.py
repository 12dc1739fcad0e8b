"""A checkpoint folder on disk: made beside its place, summed, moved in, marked COMPLETE last.

step-00001000/  __R_N.distcp  .metadata   tensors (torch DCP)
                state.json                everything else
                rng/rank-00000.json       each rank's generators
                checksums.json            SHA-256 and size of every file above
                COMPLETE                  SHA-256 of checksums.json; written last
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from drivetrain.spec.errors import CheckpointError
from drivetrain.spec.run_dir import RunDir, step_of_checkpoint

CHECKSUMS = "checksums.json"
COMPLETE = "COMPLETE"
STATE = "state.json"
_UNFINISHED = ".unfinished-"
_REPLACED = ".unfinished-replaced-"


def unfinished_path(run_dir: RunDir, step: int) -> Path:
    """Where a checkpoint is written before it takes its place."""
    return run_dir.checkpoints / f"{_UNFINISHED}{run_dir.checkpoint(step).name}"


def sums_of(folder: Path, names: Iterable[str]) -> dict[str, dict[str, object]]:
    """SHA-256 and size of files below `folder`."""
    sums: dict[str, dict[str, object]] = {}
    for name in names:
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        sums[name] = {"sha256": digest, "bytes": (folder / name).stat().st_size}
    return sums


def write_durably(path: Path, text: str) -> None:
    """Writes a whole file or nothing, and has the disk confirm it."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes the names in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def complete(unfinished: Path, final: Path, sums: dict[str, dict[str, object]]) -> None:
    """Moves a fully written folder to its place and marks it. Called by rank 0 only.

    A folder of the same name is replaced; a good one stays until the new one is in place.
    """
    text = json.dumps(sums, indent=1, sort_keys=True)
    write_durably(unfinished / CHECKSUMS, text)
    replaced = None
    if final.exists():
        replaced = final.with_name(f"{_REPLACED}{final.name}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    unfinished.rename(final)
    write_durably(final / COMPLETE, hashlib.sha256(text.encode()).hexdigest() + "\n")
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def point_latest(run_dir: RunDir, step: int) -> None:
    """Makes `latest` name the checkpoint of `step`, in one atomic move."""
    link = run_dir.checkpoints / ".latest.new"
    link.unlink(missing_ok=True)
    link.symlink_to(run_dir.checkpoint(step).name)
    link.replace(run_dir.latest)
    sync_folder(run_dir.checkpoints)


def complete_steps(run_dir: RunDir) -> list[int]:
    """Steps of the folders marked COMPLETE, in the order in which they were saved.

    That is not the order of steps where a run went back to an earlier checkpoint and on from there.
    """
    if not run_dir.checkpoints.is_dir():
        return []
    found = [
        (_save_number(path), step)
        for path in run_dir.checkpoints.iterdir()
        if (step := step_of_checkpoint(path)) is not None and (path / COMPLETE).exists()
    ]
    return [step for _, step in sorted(found)]


def next_save_number(run_dir: RunDir) -> int:
    """One more than any save so far has."""
    return 1 + max((_save_number(run_dir.checkpoint(step)) for step in complete_steps(run_dir)), default=0)


def _save_number(folder: Path) -> int:
    """Which save of the run this was, from 1; 0 where it cannot be read."""
    try:
        return int(json.loads((folder / STATE).read_text(encoding="utf-8"))["save_number"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def prune(run_dir: RunDir, keep: int) -> None:
    """Deletes complete checkpoints that were saved before the newest `keep`."""
    for step in complete_steps(run_dir)[:-keep]:
        # Unmarked first: a deletion that is interrupted leaves no folder that claims to be complete.
        (run_dir.checkpoint(step) / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(run_dir.checkpoint(step), ignore_errors=True)


def remove_unfinished(run_dir: RunDir) -> None:
    """Deletes what unfinished saves left. A checkpoint that was being replaced takes its place again."""
    if not run_dir.checkpoints.is_dir():
        return
    for path in run_dir.checkpoints.glob(f"{_REPLACED}*"):
        final = path.with_name(path.name.removeprefix(_REPLACED))
        if not (final / COMPLETE).exists():
            shutil.rmtree(final, ignore_errors=True)
            path.rename(final)
    for path in run_dir.checkpoints.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(path, ignore_errors=True)


def listed_files(folder: Path) -> dict[str, dict[str, object]]:
    """The files a checkpoint must have, from its own list, itself checked against COMPLETE.

    Raises:
        CheckpointError: not marked complete, or the list is damaged.
    """
    if not folder.is_dir():
        raise CheckpointError(str(folder), "there is no such checkpoint", "name a step-… folder, or a run")
    if not (folder / COMPLETE).exists():
        raise CheckpointError(
            str(folder), "it is not marked COMPLETE: its save did not finish", "use another"
        )
    try:
        text = (folder / CHECKSUMS).read_text(encoding="utf-8")
        wanted = (folder / COMPLETE).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            str(folder), f"its list of files cannot be read ({error})", "use another"
        ) from error
    if hashlib.sha256(text.encode()).hexdigest() != wanted:
        raise CheckpointError(
            str(folder), f"{CHECKSUMS} does not match {COMPLETE}: one was changed", "use another"
        )
    files: dict[str, dict[str, object]] = json.loads(text)
    return files


def damage(folder: Path, files: dict[str, dict[str, object]], names: Iterable[str]) -> str | None:
    """What is wrong with the first damaged one of `names`, or None."""
    for name in names:
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != files[name]["bytes"]:
            return f"{name} has {path.stat().st_size} bytes instead of {files[name]['bytes']}"
        if sums_of(folder, [name])[name]["sha256"] != files[name]["sha256"]:
            return f"{name} does not match its checksum"
    return None


def damage_of(folder: Path, *, share: slice = slice(None)) -> str | None:
    """What is wrong with the checkpoint in `folder`; None if nothing.

    Args:
        share: which of its files, in the order of names, this process reads; by default all.
    """
    try:
        listed = listed_files(folder)
        return damage(folder, listed, sorted(listed)[share])
    except CheckpointError as error:
        return error.found
    except (OSError, ValueError) as error:
        return str(error)
