"""Where a rank's process runs: its CPUs, and the NUMA node whose memory it takes first.

Both are properties of a thread that its children inherit. The launcher's thread takes them on for the moment
of the start and gives them back, so nothing runs between fork and exec, and the rank has them from its first
instruction.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterable, Iterator

from drivetrain.spec.job import Pinning

# set_mempolicy(2) and get_mempolicy(2) have no wrapper in libc; their numbers by machine (asm/unistd_64.h).
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
_GET_MEMPOLICY = {"x86_64": 239, "aarch64": 236, "ppc64le": 260}
_DEFAULT, _PREFERRED = 0, 1  # linux/mempolicy.h
_MOST_NODES = 1024


@contextlib.contextmanager
def pinned(pinning: Pinning | None) -> Iterator[None]:
    """What this thread starts within the block runs where `pinning` says, as far as the kernel lets it.

    The node is preferred, not required: memory comes from elsewhere when it is full, where a strict binding
    would have the rank killed.
    """
    if pinning is None or (not pinning.cpus and pinning.numa_node is None):
        yield
        return
    earlier = os.sched_getaffinity(0)
    is_preferred = pin(pinning)
    try:
        yield
    finally:
        if is_preferred:
            prefer_node(None)
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, earlier)


def pin(pinning: Pinning) -> bool:
    """This thread, and what it starts, runs where `pinning` says; whether memory is preferred there."""
    if pinning.cpus:
        # A CPU may have gone offline, or left the cgroup, since it was planned: then the rank runs anywhere.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, pinning.cpus)
    return pinning.numa_node is not None and prefer_node(pinning.numa_node)


def prefer_node(node: int | None) -> bool:
    """This thread's memory from `node` first, or as usual again for None; False where that is not allowed.

    Containers without CAP_SYS_NICE forbid it (docker's seccomp profile).
    """
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or not (node is None or 0 <= node < _MOST_NODES):
        return False
    words = (ctypes.c_ulong * (_MOST_NODES // (8 * ctypes.sizeof(ctypes.c_ulong))))()
    if node is not None:
        size = 8 * ctypes.sizeof(ctypes.c_ulong)
        words[node // size] = 1 << node % size
    mode = _DEFAULT if node is None else _PREFERRED
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit less than it is told.
    arguments = (ctypes.c_long(number), ctypes.c_long(mode), words, ctypes.c_ulong(_MOST_NODES + 1))
    return bool(libc.syscall(*arguments) == 0)


def nodes_to_prefer(nodes: Iterable[int]) -> frozenset[int]:
    """Which of `nodes` this thread may prefer, found by trying; none where a policy is set (by numactl)."""
    if not _has_usual_policy():
        return frozenset()
    allowed = frozenset(node for node in nodes if prefer_node(node))
    prefer_node(None)
    return allowed


def _has_usual_policy() -> bool:
    number = _GET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    mode = ctypes.c_int(-1)
    zero = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.syscall(ctypes.c_long(number), ctypes.byref(mode), None, zero, None, zero)
    return bool(done == 0 and mode.value == _DEFAULT)
