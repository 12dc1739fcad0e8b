"""What machines tell each other besides the rendezvous: who failed, who is done, who is still alive.

Every call that touches the network runs in one daemon thread with a connection of its own, and its caller
waits with a deadline: a store whose host vanished can block a client for good.
"""

from __future__ import annotations

import dataclasses
import json
import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from drivetrain.launch.ports import is_listening
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.outcome import RankOutcome

_T = TypeVar("_T")
_CONNECT_TIMEOUT_S = 30.0
_LOOK_S = 0.3
_BEAT_S = 2.0
LOST_AFTER_S = 60.0
# Where the job can go on without a machine, sooner: five missed beats.
ELASTIC_LOST_AFTER_S = 10.0


class _Epoch:
    """What belongs to one attempt; replaced as a whole, since the serving thread reads it meanwhile."""

    def __init__(self, name: str, node_rank: int, num_nodes: int) -> None:
        self.name, self.node_rank, self.num_nodes = name, node_rank, num_nodes
        self.peer_failed = threading.Event()
        self.is_regrouping = threading.Event()
        self.next_look_s = self.next_beat_s = 0.0
        self.seen_s: dict[int, float] = {}  # when a node's beat last changed, by our own clock
        self.beats: dict[int, bytes] = {}


class Bulletin:
    """Notices of all machines of one job. No method raises: a store that is gone answers nothing.

    Keys live under an epoch, one an attempt, so that notices of an earlier attempt are never taken for new.
    """

    def __init__(self, host: str, port: int, *, run_id: str, lost_after_s: float = LOST_AFTER_S) -> None:
        self._host, self._port, self._run_id = host, port, run_id
        self._lost_after_s = lost_after_s
        self._calls: queue.SimpleQueue[Callable[[Any], None] | None] = queue.SimpleQueue()
        self._epoch: _Epoch | None = None
        self.is_gone = False
        threading.Thread(target=self._serve, daemon=True, name="bulletin").start()

    def open_epoch(self, epoch: str, *, node_rank: int, num_nodes: int) -> None:
        """From now on notices belong to `epoch`, which is the same text on all machines of this attempt."""
        self._epoch = _Epoch(epoch, node_rank, num_nodes)

    @property
    def num_nodes(self) -> int:
        return self._now().num_nodes

    @property
    def peer_failed(self) -> bool:
        """Whether any machine has announced a failure in this epoch, as of the last look."""
        return self._now().peer_failed.is_set()

    @property
    def is_regrouping(self) -> bool:
        """Whether any machine has announced that ranks save and leave, to go on in another world."""
        return self._now().is_regrouping.is_set()

    def announce_regrouping(self) -> None:
        """A machine waits to join: this machine's ranks are asked to save, and so all ranks will. Does not
        wait."""
        epoch = self._now()
        epoch.is_regrouping.set()
        self._calls.put(lambda store: store.set(f"{epoch.name}/regroup", b"1"))

    def announce_leaving(self) -> None:
        """This machine was told to stop, and will not be there when the others go on. Does not wait."""
        epoch = self._now()
        self._calls.put(lambda store: store.set(f"{epoch.name}/leaving/{epoch.node_rank}", b"1"))

    def leaving_nodes(self, *, timeout_s: float) -> tuple[int, ...]:
        """Machines that have said so."""
        epoch = self._now()

        def read(store: Any) -> tuple[int, ...]:
            return tuple(n for n in range(epoch.num_nodes) if store.check([f"{epoch.name}/leaving/{n}"]))

        return self._ask(read, (), timeout_s)

    def announce_failure(self) -> None:
        """At once, so that the other machines stop; details follow with `publish_end`. Does not wait."""
        key = f"{self._now().name}/failed"
        self._calls.put(lambda store: store.set(key, b"1"))

    def publish_end(self, failure: RankOutcome | None, *, timeout_s: float) -> None:
        """This machine's ranks have ended: with their earliest failure, or all well."""
        epoch = self._now()
        key = f"{epoch.name}/end/{epoch.node_rank}"
        text = json.dumps(dataclasses.asdict(failure)) if failure is not None else "null"
        self._ask(lambda store: store.set(key, text.encode()), None, timeout_s)

    def ends(self, *, timeout_s: float) -> dict[int, RankOutcome | None]:
        """What the machines that have ended published, by node rank."""
        epoch = self._now()

        def read(store: Any) -> dict[int, RankOutcome | None]:
            keys = {node: f"{epoch.name}/end/{node}" for node in range(epoch.num_nodes)}
            there = {node: store.get(key) for node, key in keys.items() if store.check([key])}
            return {node: _outcome(value) for node, value in there.items()}

        return self._ask(read, {}, timeout_s)

    def collect_ends(self, *, deadline_s: float) -> dict[int, RankOutcome | None]:
        """Waits, until monotonic time `deadline_s`, for the ends of all machines that are not lost; returns
        those that came."""
        found: dict[int, RankOutcome | None] = {}
        num_nodes = self._now().num_nodes
        while not self.is_gone and (left := deadline_s - time.monotonic()) > 0:
            found |= self.ends(timeout_s=left)
            if set(range(num_nodes)) <= {*found, *self.lost_nodes()}:
                break
            time.sleep(min(left, 0.1))
        return found

    def leave(self, *, timeout_s: float) -> None:
        """Says that this machine needs nothing more. The host of the store waits until all have said so."""
        epoch = self._now()
        key = f"{epoch.name}/left"
        left = self._ask(lambda store: int(store.add(key, 1)), epoch.num_nodes, timeout_s)
        if not is_listening(self._port):
            return
        deadline = time.monotonic() + timeout_s
        while left < epoch.num_nodes and time.monotonic() < deadline and not self.is_gone:
            time.sleep(0.05)
            left = self._ask(lambda store: int(store.add(key, 0)), epoch.num_nodes, timeout_s)

    def lost_nodes(self) -> tuple[int, ...]:
        """Machines that have given no sign of life for `lost_after_s`."""
        now = time.monotonic()
        return tuple(node for node, seen_s in self._now().seen_s.items() if now - seen_s > self._lost_after_s)

    def close(self) -> None:
        """Lets the thread go; does not wait for it."""
        self._calls.put(None)

    def _now(self) -> _Epoch:
        assert self._epoch is not None, "no epoch has been opened"
        return self._epoch

    def _ask(self, question: Callable[[Any], _T], otherwise: _T, timeout_s: float) -> _T:
        answer: queue.SimpleQueue[_T] = queue.SimpleQueue()

        def call(store: Any) -> None:
            answer.put(question(store))

        if self.is_gone:
            return otherwise
        self._calls.put(call)
        deadline = time.monotonic() + timeout_s
        while not self.is_gone and (left := deadline - time.monotonic()) > 0:
            try:
                return answer.get(timeout=min(left, 0.2))
            except queue.Empty:
                continue
        return otherwise

    def _serve(self) -> None:
        try:
            client = TCPStore(
                self._host,
                self._port,
                is_master=False,
                timeout=timedelta(seconds=_CONNECT_TIMEOUT_S),
                wait_for_workers=False,
            )
            store = PrefixStore(f"drivetrain-bulletin/{self._run_id}", client)
            while True:
                epoch = self._epoch
                if epoch is not None and time.monotonic() >= epoch.next_look_s:
                    epoch.next_look_s = time.monotonic() + _LOOK_S
                    _look_around(store, epoch)
                try:
                    call = self._calls.get(timeout=_LOOK_S)
                except queue.Empty:
                    continue
                if call is None:
                    return
                call(store)
        except (RuntimeError, OSError, ValueError):
            # Connection lost, or a time-out inside the store. Callers see `is_gone` and go on alone.
            self.is_gone = True


def lost_after_s(request: LaunchRequest) -> float:
    return ELASTIC_LOST_AFTER_S if request.is_elastic else LOST_AFTER_S


def _look_around(store: Any, epoch: _Epoch) -> None:
    """Looks for failures; at times says that this machine is alive, and looks for the others' saying so."""
    if store.check([f"{epoch.name}/failed"]):
        epoch.peer_failed.set()
    if not epoch.is_regrouping.is_set() and store.check([f"{epoch.name}/regroup"]):
        epoch.is_regrouping.set()
    now = time.monotonic()
    if now < epoch.next_beat_s:
        return
    epoch.next_beat_s = now + _BEAT_S
    store.set(f"{epoch.name}/beat/{epoch.node_rank}", str(now).encode())
    for node in range(epoch.num_nodes):
        key = f"{epoch.name}/beat/{node}"
        beat = store.get(key) if store.check([key]) else b""
        if node not in epoch.seen_s or beat != epoch.beats[node]:
            epoch.beats[node], epoch.seen_s[node] = beat, now


def _outcome(value: bytes) -> RankOutcome | None:
    raw = json.loads(value)
    return RankOutcome(**raw) if raw is not None else None
