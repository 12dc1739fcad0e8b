"""Tells a rank that failed because another one had gone from a rank that failed by itself.

When a process dies its sockets close first; its peers then raise within a millisecond, often before the
kernel reports that very death. By time alone the survivor would be blamed.
"""

from __future__ import annotations

import re

# What a rank says when a peer, or the store's host, has gone or no longer answers. Compared without case.
SIGNS = (
    "connection reset by peer",  # the kernel, when a peer died with unread data: gloo, stores, sockets
    "connection closed by peer",  # gloo, when a peer's end of a pair was closed
    "connection refused",  # the kernel, when nobody listens any more: the peer or the store's host has gone
    "connection was likely closed",  # the TCP store's client, when the host of the store has gone
    "broken pipe",  # the kernel, on writing to a peer that has gone
    "gloo/transport/tcp/pair.cc",  # whatever else gloo finds wrong with a pair of ranks
    "connectfullmesh failed",  # gloo, when a rank died before all pairs were connected
    "ncclremoteerror",  # NCCL: "a network error or a remote process exiting prematurely"
    "remote process exited",  # the same, as older NCCL words it
    "distbackenderror",  # torch, around any failed NCCL call
    "distnetworkerror",  # torch, when a store or a peer cannot be reached
    "diststoreerror",  # torch, when a store did not answer, or the others never came
    "socket timeout",  # the TCP store, when its host or the rank that should set a key is silent
    "wait timeout after",  # the TCP store: a key that another rank should have set
    "seconds waiting for clients",  # the TCP store: ranks that never came
    "client socket has timed out",  # the TCP store, when its host was never there
    "client socket has failed to connect",  # the same
    "timed out waiting",  # gloo: a send, a receive or a barrier whose other side is silent
    "watchdog caught collective operation timeout",  # NCCL's watchdog: some rank never joined a collective
    "watchdog thread terminated with exception",  # NCCL's watchdog, when it brings the process down
    "taking the entire process down",  # the same: "to avoid data inconsistency, we are …"
    "heartbeat monitor",  # NCCL's monitor of the watchdog, after a collective has hung
)
_INDENTED = re.compile(r"\s+(?!\s*[|+])")  # a frame or its source; an exception group's lines begin with "|"


def sign_of_lost_peer(text: str) -> str | None:
    """The last line of `text` (a message, a traceback, a log's end) that tells of a lost peer, or None.

    Frames and source lines of a traceback do not count: only what exceptions say.
    """
    for line in reversed(text.split("\n")):
        lowered = line.lower()
        if not _INDENTED.match(line) and any(sign in lowered for sign in SIGNS):
            return line.strip()
    return None
