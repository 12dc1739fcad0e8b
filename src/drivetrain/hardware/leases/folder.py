"""Where the locks lie, and how their files are opened in a folder that everybody may write to."""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from drivetrain.hardware.leases.error import LeaseError
from drivetrain.spec.errors import InputError

FOLDER_VARIABLE = "DRIVETRAIN_LEASES"
QUEUE = "drivetrain-gpu-queue"
# On some distributions only root may write to /run/lock. Not /dev/shm: logging out may clean it (RemoveIPC).
_FOLDERS = (Path("/run/lock"), Path("/tmp"))
# The sticky bit of a file means nothing to Linux; systemd-tmpfiles takes it as "do not clean away".
_MODE = 0o1666
_CREATE_WAIT_S = 2.0


def lease_folder(environ: Mapping[str, str]) -> Path:
    """The folder that everybody on this machine uses: it must not depend on who asks, and may write where.

    DRIVETRAIN_LEASES names another, say one that several containers share.
    """
    named = environ.get(FOLDER_VARIABLE)
    if named:
        if not Path(named).is_dir():
            raise InputError(
                f"{FOLDER_VARIABLE}={named}",
                "no such folder",
                f"mkdir -m 1777 {named}, or unset the variable",
            )
        return Path(named)
    return next((path for path in _FOLDERS if _is_everybodys(path)), _FOLDERS[-1])


def gpu_file(folder: Path, uuid: str) -> Path:
    return folder / f"drivetrain-gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"


def open_shared(path: Path) -> int:
    """Opens a lock's file for reading and writing, and creates it for everybody where it is not there.

    Raises:
        LeaseError: it cannot be opened, or is no plain file of one name: somebody has put a link there.
    """
    deadline = time.monotonic() + _CREATE_WAIT_S
    while True:
        try:
            return _checked(path, _open_or_create(path))
        except FileExistsError:
            continue  # another one created it in between: open that
        except OSError as error:
            # Whoever creates it opens it for the others a moment later.
            if error.errno != errno.EACCES or time.monotonic() > deadline:
                raise _unusable(path, error.strerror or str(error)) from error
            time.sleep(0.02)


def open_to_look(path: Path) -> int | None:
    """Opens a lock's file for reading; None where nobody has taken a lease on this GPU yet."""
    try:
        return _checked(path, os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from error


def is_still_at(path: Path, file: int) -> bool:
    """False where the file was removed or replaced since it was opened: a lock on it binds nobody."""
    try:
        return os.path.samestat(os.stat(file), path.lstat())
    except FileNotFoundError:
        return False


def _is_everybodys(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777


def _open_or_create(path: Path) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Without O_CREAT: fs.protected_regular refuses it on another user's file in a sticky folder.
        return os.open(path, flags)
    except FileNotFoundError:
        file = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(file, _MODE)  # whatever the umask
        return file


def _checked(path: Path, file: int) -> int:
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:
        return file
    os.close(file)
    # A second name may be one of the victim's own files, which writing the holder's name would destroy.
    raise _unusable(path, "it is no plain file with one name")


def _unusable(path: Path, why: str) -> LeaseError:
    return LeaseError(
        f"the lock {path}",
        f"cannot be used: {why}",
        f"look at it (ls -l {path}), and let its owner remove it",
    )
