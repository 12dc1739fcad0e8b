"""Errors that come from where the command was started, not from what was asked: said, not traced back."""

from __future__ import annotations

import errno
import os
import resource

from drivetrain.spec.errors import InputError


def explain(error: Exception) -> InputError | None:
    """What the user can do about `error`, or None where it is no fault of the surroundings."""
    if isinstance(error, OSError) and (problem := _current_folder_problem()) is not None:
        return InputError("the current folder", problem, "go to a folder that exists, and start again there")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and _is_out_of_memory(error):
        return InputError(
            "memory",
            f"no more could be had ({error or type(error).__name__}); this shell limits a process to"
            f" {limit // 2**20:,} MiB of address space, and torch alone maps several GiB",
            "ulimit -v unlimited",
        )
    return None


def _current_folder_problem() -> str | None:
    try:
        os.getcwd()  # noqa: PTH109 - the same question without making a path
    except FileNotFoundError:
        return "it no longer exists"
    except OSError as error:
        return f"it cannot be told: {error.strerror}"
    return None


def _is_out_of_memory(error: Exception) -> bool:
    # The dynamic loader says it by text only.
    is_library = isinstance(error, ImportError) and "failed to map segment" in str(error)
    is_errno = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return is_library or is_errno or isinstance(error, MemoryError)
