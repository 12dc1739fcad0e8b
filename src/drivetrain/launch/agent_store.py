"""The store that an elastic job's machines meet at, in a process of its own, which stays when they go."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from drivetrain.launch.ports import listen

_TIMEOUT_S = 60


def serve_store(port: int, *, ready: Callable[[], None]) -> None:
    """Serves on `port`, on all addresses, until SIGTERM or SIGINT; `ready` is called when clients may come.
    Call it from the main thread.

    Raises:
        InputError: the port is taken.
    """
    ending = {signal.SIGTERM, signal.SIGINT}
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    try:
        listener = listen(port, loopback_only=False)
        store = TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            timeout=timedelta(seconds=_TIMEOUT_S),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        ready()
        signal.sigwait(ending)
        del store
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
