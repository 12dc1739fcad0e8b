"""Checks a launch request before anything is created, and says which kind of rendezvous it asks for."""

from __future__ import annotations

from enum import StrEnum

from drivetrain.spec.errors import InputError
from drivetrain.spec.job import LaunchRequest

DEFAULT_MASTER_PORT = 29500  # torchrun's
DEFAULT_RDZV_PORT = 29400  # torch's c10d rendezvous


class Rendezvous(StrEnum):
    """How the machines of a job find each other."""

    LOCAL = "local"  # one machine
    STATIC = "static"  # node 0 listens on master_addr:master_port, every machine knows its number
    C10D = "c10d"  # any machine listens on rdzv_endpoint, which numbers them


def rendezvous_of(request: LaunchRequest) -> Rendezvous:
    if request.rdzv_endpoint is not None:
        return Rendezvous.C10D
    return Rendezvous.LOCAL if request.is_single_node else Rendezvous.STATIC


def hosts_the_store(request: LaunchRequest) -> bool:
    """Whether this machine listens on the master port. Unknown (False) for c10d, where torch finds out."""
    kind = rendezvous_of(request)
    return kind is Rendezvous.LOCAL or (kind is Rendezvous.STATIC and request.node_rank == 0)


def check(request: LaunchRequest) -> None:
    """Raises InputError for a request that cannot be launched; looks at the request only."""
    if not request.command:
        raise InputError("an empty command", "there is nothing to run", "give a script after --")
    for word in (*request.command, *request.environment, *request.environment.values()):
        if "\0" in word:
            raise InputError(repr(word), "a NUL byte cannot be passed to a process", "remove it")
    for name in request.environment:
        if not name or "=" in name:
            raise InputError(f"--env {name!r}", "this is no variable's name", "give --env NAME=VALUE")
    if request.nproc_per_node < 1:
        raise InputError(
            f"--nproc-per-node {request.nproc_per_node}", "it must be at least 1", "give a positive number"
        )
    if not 1 <= request.min_nodes <= request.max_nodes:
        raise InputError(
            f"--nnodes {request.min_nodes}:{request.max_nodes}",
            "the minimum must be at least 1 and at most the maximum",
            "give --nnodes N or MIN:MAX",
        )
    if request.max_restarts < 0:
        raise InputError(f"--max-restarts {request.max_restarts}", "it is negative", "give 0 or more")
    if request.grace_s < 0 or request.monitor_interval_s <= 0:
        raise InputError(
            f"grace {request.grace_s} s, monitor interval {request.monitor_interval_s} s",
            "a time is negative, or the interval is 0",
            "give a positive --monitor-interval",
        )
    _check_port("--master-port", request.master_port)
    if rendezvous_of(request) is Rendezvous.STATIC:
        _check_static(request)
    elif rendezvous_of(request) is Rendezvous.C10D:
        split_endpoint(request.rdzv_endpoint or "")
    elif request.node_rank not in (None, 0):
        raise InputError(
            f"--node-rank {request.node_rank} on one machine",
            "the only machine has number 0",
            "give --nnodes as well, or leave --node-rank out",
        )


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Host and port of `host[:port]`, also `[v6]:port`."""
    if endpoint.startswith("["):
        host, _, rest = endpoint[1:].partition("]")
        port_text = rest.removeprefix(":")
    elif endpoint.count(":") == 1:
        host, _, port_text = endpoint.partition(":")
    else:
        host, port_text = endpoint, ""
    port = DEFAULT_RDZV_PORT if port_text == "" else int(port_text) if port_text.isdigit() else -1
    if not host or not 0 <= port < 65536:
        raise InputError(
            f"--rdzv-endpoint {endpoint!r}", "it is not host:port", "give the host and port of one machine"
        )
    if port == 0:
        raise InputError(
            f"--rdzv-endpoint {endpoint!r}",
            "with port 0 the other machines cannot know the port",
            "give a port, or leave the endpoint out on one machine",
        )
    return host, port


def _check_static(request: LaunchRequest) -> None:
    where = f"{request.max_nodes} machines"
    if request.min_nodes != request.max_nodes:
        raise InputError(
            f"--nnodes {request.min_nodes}:{request.max_nodes}",
            "a number of machines that may change needs a rendezvous that numbers them",
            "give --rdzv-endpoint HOST:PORT and --rdzv-id NAME, the same on every machine",
        )
    if request.master_addr is None:
        raise InputError(
            where,
            "neither --master-addr nor --rdzv-endpoint says where they meet",
            "give --master-addr HOST --node-rank N, or --rdzv-endpoint HOST:PORT, on every machine",
        )
    if request.node_rank is None:
        raise InputError(
            f"{where} with --master-addr",
            "this machine's number is missing",
            "give --node-rank (0 on the machine of --master-addr), or set PET_NODE_RANK",
        )
    if not 0 <= request.node_rank < request.max_nodes:
        raise InputError(
            f"--node-rank {request.node_rank} of {where}",
            f"it must be at least 0 and at most {request.max_nodes - 1}",
            "number the machines from 0",
        )


def _check_port(flag: str, port: int | None) -> None:
    if port is not None and not 0 < port < 65536:
        raise InputError(f"{flag} {port}", "a port is between 1 and 65535", "choose one, or leave it out")
