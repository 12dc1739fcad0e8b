"""A launch request as shell text: what `--dry-run` prints, and `launch/command.txt` keeps. Needs no torch."""

from __future__ import annotations

import re
import shlex

from drivetrain.launch.check import DEFAULT_MASTER_PORT, Rendezvous, check, rendezvous_of
from drivetrain.launch.environment import Place, launcher_environment
from drivetrain.spec.job import LaunchRequest
from drivetrain.spec.run_dir import RunDir

_SECRET = re.compile(r"key|token|secret|passw|credential|auth|cookie", re.IGNORECASE)
# What is known only when the job runs is written as a shell variable, explained in a comment.
_RANK_BASE = "DRIVETRAIN_FIRST_RANK"
_LATER = {
    "MASTER_PORT": "a free port on rank 0's machine",
    "TORCHELASTIC_RUN_ID": "a name of this launch's own",
    "MASTER_ADDR": "rank 0's machine, told by the rendezvous",
    _RANK_BASE: "this machine's first rank, told by the rendezvous",
    "GROUP_RANK": "this machine's number, told by the rendezvous",
    "GROUP_WORLD_SIZE": "how many machines came",
    "WORLD_SIZE": "ranks on all machines that came",
}


def render_command(request: LaunchRequest, *, hide_secrets: bool = False) -> str:
    """POSIX shell text that starts this machine's ranks as `launch` would, quoted for any name.

    Only variables that the launcher sets are shown. `hide_secrets` masks the values of the user's own
    variables whose names look like a key, token or password.

    Raises:
        InputError: the request cannot be launched.
    """
    check(request)
    lines = [f"# {line}" for line in _explain(request)]
    run = RunDir(request.folder)
    for local_rank in range(request.nproc_per_node):
        variables = {
            shlex.quote(name): shlex.quote("***" if hide_secrets and _SECRET.search(name) else value)
            for name, value in request.environment.items()
        }
        variables |= _rank_variables(request, local_rank)
        words = [f"{name}={value}" for name, value in variables.items()]
        words += [shlex.quote(word) for word in request.command]
        log = shlex.quote(str(run.logs)) + f'/rank-"$(printf %05d {variables["RANK"]})".log'
        if variables["RANK"].isdigit():
            log = shlex.quote(str(run.log(int(variables["RANK"]))))
        pin = ""
        if request.pinnings and (cpus := request.pinnings[local_rank].cpus):
            pin = f"taskset -c {','.join(map(str, cpus))} "
        lines.append(f"{pin}env {' '.join(words)} </dev/null >>{log} 2>&1 &")
    return "\n".join([*lines, "wait", ""])


def _explain(request: LaunchRequest) -> list[str]:
    kind = rendezvous_of(request)
    nodes = (
        f"{request.min_nodes}"
        if request.min_nodes == request.max_nodes
        else (f"{request.min_nodes} to {request.max_nodes}")
    )
    summary = (
        f"{request.nproc_per_node} processes on this machine; machines: {nodes}; "
        f"{kind.value} rendezvous; restarts: up to {request.max_restarts}"
    )
    used = set(_open_variables(request))
    return [summary, *(f"${name}: {why}" for name, why in _LATER.items() if name in used)]


def _open_variables(request: LaunchRequest) -> list[str]:
    kind = rendezvous_of(request)
    if kind is Rendezvous.C10D:
        return [name for name in _LATER if name != "TORCHELASTIC_RUN_ID"]
    unset = {"MASTER_PORT": request.master_port, "TORCHELASTIC_RUN_ID": request.rdzv_id}
    return [name for name, value in unset.items() if value is None] if kind is Rendezvous.LOCAL else []


def _rank_variables(request: LaunchRequest, local_rank: int) -> dict[str, str]:
    """The rank's variables as shell words."""
    node_rank = request.node_rank or 0
    rank = node_rank * request.nproc_per_node + local_rank
    attempt_folder = RunDir(request.folder.absolute()).launch / "errors" / "attempt-0"
    place = Place(
        rank=rank,
        local_rank=local_rank,
        world_size=request.max_nodes * request.nproc_per_node,
        local_world_size=request.nproc_per_node,
        node_rank=node_rank,
        num_nodes=request.max_nodes,
        master_addr=request.master_addr or "127.0.0.1",
        master_port=request.master_port or DEFAULT_MASTER_PORT,
        attempt=0,
        max_restarts=request.max_restarts,
        run_id=request.rdzv_id or "drivetrain",
        store_is_hosted=rendezvous_of(request) is not Rendezvous.C10D,
        error_file=str(attempt_folder / f"rank-{rank:05d}.json"),
        run_dir=str(request.folder.absolute()),
    )
    words = {
        name: shlex.quote(value)
        for name, value in place.variables({**launcher_environment(), **request.environment}).items()
    }
    for name in _open_variables(request):
        if name in words:
            words[name] = f'"${name}"'
    if rendezvous_of(request) is Rendezvous.C10D:
        rank_word = f"$((${_RANK_BASE} + {local_rank}))"
        folder = shlex.quote(str(attempt_folder))
        words |= {
            "RANK": rank_word,
            "ROLE_RANK": rank_word,
            "ROLE_WORLD_SIZE": '"$WORLD_SIZE"',
            "TORCHELASTIC_ERROR_FILE": f'{folder}/rank-"$(printf %05d {rank_word})".json',
        }
    return words
