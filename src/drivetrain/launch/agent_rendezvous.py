"""How torch's agent meets the other machines: a store that the launcher of node 0 hosts, or torch's c10d."""

from __future__ import annotations

import socket
import time
from datetime import timedelta

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    dynamic_rendezvous,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from drivetrain.launch.check import DEFAULT_MASTER_PORT, Rendezvous, rendezvous_of
from drivetrain.launch.ports import listen
from drivetrain.spec.job import LaunchRequest

JOIN_TIMEOUT_S = 600  # torchrun's default for machines that come late
# An elastic job starts with what is there this long after enough machines are (torch: 30 s).
_LAST_CALL_S = 3
# A machine whose heartbeat stays out for 5 of these is out of the rendezvous (torch: 3 of 5 s).
_KEEP_ALIVE_S = 2
_KEEP_ALIVE_ATTEMPTS = 5
_LEAVE_S = 5.0


class HostedStoreRendezvous(RendezvousHandler):
    """A fixed set of machines whose numbers are known; node 0's launcher hosts the store, for the ranks too.

    torch's static rendezvous does the same, but leaves the keys of earlier attempts in place, so that a
    restarted rank may read the address of a peer that is gone ("connectFullMesh … Connection refused"), and
    binds the port late. Here each attempt has keys of its own and, after the first, a store of its own for
    its ranks on a port of its own; and the store takes over a socket that already listens, so that ranks may
    be started before.

    Args:
        listener: the bound, listening socket on node 0; None on the others. The store owns it from now on.
    """

    def __init__(
        self,
        *,
        master_addr: str,
        master_port: int,
        node_rank: int,
        num_nodes: int,
        run_id: str,
        listener: socket.socket | None,
    ) -> None:
        self._address = RendezvousStoreInfo(master_addr, master_port)
        self._node_rank = node_rank
        self._num_nodes = num_nodes
        self._run_id = run_id
        self._round = 0
        self._rank_store: TCPStore | None = None  # kept alive for as long as its attempt lasts
        self._store = _host(master_addr, master_port, listener)

    def get_backend(self) -> str:
        return "drivetrain-static"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Every machine calls it once an attempt; the rank assignment that follows waits for all of them."""
        store = PrefixStore(f"drivetrain/{self._run_id}/{self._round}", self._store)
        address = self._address if self._round == 0 else self._new_rank_store(store)
        self._round += 1
        return RendezvousInfo(store, self._node_rank, self._num_nodes, address)

    def _new_rank_store(self, store: PrefixStore) -> RendezvousStoreInfo:
        host = self._address.master_addr
        if self._node_rank == 0:
            listener = listen(0, loopback_only=host == "127.0.0.1" and self._num_nodes == 1)
            port = listener.getsockname()[1]
            self._rank_store = _host(host, port, listener)
            store.set("rank_store_port", str(port))
        return RendezvousStoreInfo(host, int(store.get("rank_store_port")))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """A fixed set of machines has nobody to keep out."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def withdraw(handler: RendezvousHandler) -> None:
    """Takes this machine out of a c10d rendezvous, so that the others do not wait for its heartbeat to stay
    out. torch does so only as the first part of joining again, and under a name of its own."""
    leave = getattr(dynamic_rendezvous, "_RendezvousExitOp", None)
    if not isinstance(handler, DynamicRendezvousHandler) or leave is None:
        return
    try:
        handler._stop_heartbeats()
        handler._op_executor.run(leave(), time.monotonic() + _LEAVE_S)
    except (RuntimeError, AttributeError):
        return  # the store is gone, or another torch: the others will notice by themselves


def _host(host: str, port: int, listener: socket.socket | None) -> TCPStore:
    """The store behind `listener`, or without one a client of the store at `host`; waits until it answers."""
    return TCPStore(
        "127.0.0.1" if listener is not None else host,
        port,
        is_master=listener is not None,
        timeout=timedelta(seconds=JOIN_TIMEOUT_S),
        wait_for_workers=False,
        master_listen_fd=listener.detach() if listener is not None else None,
    )


def open_rendezvous(
    request: LaunchRequest, *, run_id: str, listener: socket.socket | None
) -> RendezvousHandler:
    """The handler for `request`; blocks until the store answers, at most JOIN_TIMEOUT_S."""
    if rendezvous_of(request) is Rendezvous.C10D:
        return get_rendezvous_handler(
            RendezvousParameters(
                backend="c10d",
                endpoint=request.rdzv_endpoint or "",
                run_id=run_id,
                min_nodes=request.min_nodes,
                max_nodes=request.max_nodes,
                local_addr=request.local_addr,
                join_timeout=JOIN_TIMEOUT_S,
                last_call_timeout=_LAST_CALL_S,
                keep_alive_interval=_KEEP_ALIVE_S,
                keep_alive_max_attempt=_KEEP_ALIVE_ATTEMPTS,
            )
        )
    port = listener.getsockname()[1] if listener is not None else request.master_port or DEFAULT_MASTER_PORT
    return HostedStoreRendezvous(
        master_addr=request.master_addr or "127.0.0.1",
        master_port=port,
        node_rank=request.node_rank or 0,
        num_nodes=request.max_nodes,
        run_id=run_id,
        listener=listener,
    )
