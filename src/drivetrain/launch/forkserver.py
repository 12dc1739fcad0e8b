"""A process that has imported what ranks import, and forks a rank when it is asked to: in 20 ms, not seconds.

Run as `python -u -m drivetrain.launch.forkserver IMPORTS …` by `forked.py`. Its standard input is a socket to
the launcher. It says `{"ready": true}` when it has imported the modules that the file IMPORTS names, or
`{"unfit": REASON}` and ends; then it takes requests, each with the descriptor of a log, and answers
`{"pid": N}`. At the socket's end (the launcher is gone, or needs it no more) it ends.

It runs one thread and has touched no GPU, or it does not fork: locks held by other threads, and CUDA, do not
survive a fork. A rank is forked twice, so that the launcher, which asks the kernel for orphans meanwhile,
becomes its parent and waits for it as for any other. What follows the words that this program needs shows
in `ps` what its ranks run.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from drivetrain.launch.pinning import pin
from drivetrain.spec.job import Pinning

HEADER_BYTES = 8
_PREFIX_OF_POOLS = ("torch._inductor.async_compile", "torch._inductor.compile_worker")
# A scheduler sends these to every process of a job step; they are meant for the ranks and their launcher.
_NOT_MEANT = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_Handler = Any  # what signal.getsignal gives: a function, a constant or None


def main() -> None:
    handlers: dict[signal.Signals, _Handler] = {signum: signal.getsignal(signum) for signum in _NOT_MEANT}
    for signum in _NOT_MEANT:
        signal.signal(signum, _ignore)  # no SIG_IGN: what modules start at their import would inherit it
    channel = _take_stdin()
    _import_all(Path(sys.argv[1]))
    if problem := _unfit():
        _say(channel, {"unfit": problem})
        return
    gc.collect()
    gc.freeze()  # else a rank's first collection would copy all that it shares with this process
    _say(channel, {"ready": True})
    while (received := receive(channel)) is not None:
        request, files = received
        pid = _fork_twice()
        if pid == 0:
            channel.close()
            _become_rank(request, files, handlers)
            return
        _say(channel, {"pid": pid})
        for file in files:
            os.close(file)
    os._exit(0)


def _ignore(_signum: int, _frame: FrameType | None) -> None:
    """Having a handler at all is what stops the signal's usual effect."""


def _take_stdin() -> socket.socket:
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return channel


def _import_all(listing: Path) -> None:
    for name in listing.read_text(encoding="utf-8").split():
        if not name.startswith(_PREFIX_OF_POOLS):
            with contextlib.suppress(Exception):  # a rank will meet the same, and say so
                importlib.import_module(name)


def _unfit() -> str | None:
    """Why ranks cannot be forked from this process, or None."""
    if threading.active_count() > 1:
        return f"an import started the thread {threading.enumerate()[1].name!r}"
    # OpenBLAS ends its threads before a fork and starts them when they are next needed. And only a forked
    # process is told by torch that CUDA was touched before, if only to count GPUs.
    torch = sys.modules.get("torch")
    trial = os.fork()
    if trial == 0:
        os._exit(int(torch is not None and torch.cuda._is_in_bad_fork()))
    if os.waitpid(trial, 0)[1] != 0:
        return "an import initialised CUDA"
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"imports started {threads - 1} threads"
    return None


def _fork_twice() -> int:
    """The new process' id, 0 in that process itself; it is an orphan."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(read)
            os.close(write)
            return 0
        os.write(write, str(pid).encode())
        os._exit(0)
    os.close(write)
    os.waitpid(between, 0)
    with open(read, "rb") as answer:  # noqa: PTH123  a descriptor
        return int(answer.read())


def _become_rank(request: dict[str, Any], files: list[int], handlers: dict[signal.Signals, _Handler]) -> None:
    """Runs the module as if `python -u -m` had started it; returns, or raises, as it does."""
    os.setsid()
    os.dup2(files[0], 1)
    os.dup2(files[0], 2)
    for file in files:
        os.close(file)
    for signum, handler in handlers.items():
        signal.signal(signum, handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["pinning"] is not None:
        pin(Pinning(cpus=tuple(request["pinning"]["cpus"]), numa_node=request["pinning"]["numa_node"]))
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else all ranks would draw the same where nobody sets a seed
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next message with its descriptors; None at the channel's end."""
    head, files, _, _ = socket.recv_fds(channel, HEADER_BYTES, 1)
    while 0 < len(head) < HEADER_BYTES:
        head += channel.recv(HEADER_BYTES - len(head)) or b"\0" * HEADER_BYTES
    left, pieces = int.from_bytes(head, "little"), []
    while left and (piece := channel.recv(left)):
        pieces.append(piece)
        left -= len(piece)
    if not head or left:
        return None
    return json.loads(b"".join(pieces)), list(files)


def send(channel: socket.socket, message: dict[str, Any], files: tuple[int, ...] = ()) -> None:
    body = json.dumps(message).encode()
    head = len(body).to_bytes(HEADER_BYTES, "little")
    if files:
        socket.send_fds(channel, [head], files)
    else:
        channel.sendall(head)
    channel.sendall(body)


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        send(channel, message)
    except OSError:
        os._exit(0)  # the launcher has gone


if __name__ == "__main__":
    main()
