"""Pasted files → facts by node: which blocks belong to one machine, and what they say together.

A block that names its host (NCCL's lines), or stands under a shell prompt with one, belongs to that node. The
others of a file belong to the only host that the file names, or else to the file. Files that name no host,
and that hold no kind of block twice, are read as one machine; else each is a node of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts, RdmaPort
from drivetrain.doctor.pasted.blocks import Block
from drivetrain.doctor.pasted.clean import clean, decode, prompt_host
from drivetrain.doctor.pasted.collect_env import collect_env_blocks
from drivetrain.doctor.pasted.infiniband import rdma_blocks
from drivetrain.doctor.pasted.nccl_lines import nccl_blocks
from drivetrain.doctor.pasted.small import count_topologies, small_blocks
from drivetrain.doctor.pasted.smi_query import smi_queries
from drivetrain.doctor.pasted.smi_table import smi_errors, smi_lists, smi_tables
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown

T = TypeVar("T")
_LARGEST_BYTES = 64 << 20
# Tools whose second output in one place is another machine's, or another moment's.
_ONE_A_NODE = frozenset({"nvidia-smi", "nvidia-smi -q", "collect_env", "ibstat", "ibstatus", "ibv_devinfo"})
_PARSERS = (
    smi_tables,
    smi_queries,
    smi_lists,
    smi_errors,
    collect_env_blocks,
    rdma_blocks,
    nccl_blocks,
    small_blocks,
)


def read_pasted(paths: Sequence[Path]) -> tuple[NodeFacts, ...]:
    """The facts of every node that the files tell of.

    Raises:
        InputError: a file cannot be read, or none of them holds anything that is known.
    """
    texts = {}
    for path in paths:
        texts[str(path)] = _read(path)
    nodes = facts_of_texts(texts)
    if not nodes:
        raise InputError(
            f"doctor --from {' '.join(texts)}",
            "nothing in it is known",
            "paste nvidia-smi, nvidia-smi -q, ibstat, ibstatus, ibv_devinfo, python -m"
            " torch.utils.collect_env,"
            " or NCCL's lines with NCCL_DEBUG=INFO",
        )
    return nodes


def facts_of_texts(texts: Mapping[str, str]) -> tuple[NodeFacts, ...]:
    """The same for texts by name; empty where nothing is known."""
    by_node: dict[str, list[Block]] = {}
    topologies: dict[str, int] = {}
    for name, text in texts.items():
        lines = clean(text)
        for node, block in _place(name, lines):
            by_node.setdefault(node, []).append(block)
        if count := count_topologies(lines):
            topologies[name] = count
    nodes = _join_unnamed(by_node, list(texts))
    for name, count in topologies.items():
        owner = name if name in nodes else next(iter(nodes), name)
        nodes.setdefault(owner, [])
        topologies = {**topologies, owner: count}
    return tuple(
        node
        for name, blocks in nodes.items()
        for node in _split(_label(name, texts), blocks, topologies.get(name, 0))
    )


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise InputError(f"--from {path}", error.strerror or "cannot be read", "check the path") from error
    if len(data) > _LARGEST_BYTES:
        raise InputError(f"--from {path}", "larger than 64 MiB", "cut out the start-up lines")
    return decode(data)


def _place(name: str, lines: Sequence[str]) -> Iterable[tuple[str, Block]]:
    blocks = [block for parse in _PARSERS for block in parse(lines)]
    prompts = [(at, host) for at, line in enumerate(lines) if (host := prompt_host(line)) is not None]
    named = {block.host for block in blocks if block.host} | {host for _, host in prompts}
    for block in blocks:
        above = [host for at, host in prompts if at <= block.line]
        if block.host:
            yield block.host, block
        elif above:
            yield above[-1], block
        else:
            yield next(iter(named)) if len(named) == 1 else name, block


def _join_unnamed(by_node: dict[str, list[Block]], names: Sequence[str]) -> dict[str, list[Block]]:
    """Files without a host's name become one node, unless two hold the same kind of block."""
    unnamed = [name for name in names if name in by_node]
    kinds = [kind for name in unnamed for kind in {block.kind for block in by_node[name]} & _ONE_A_NODE]
    if len(unnamed) < 2 or len(kinds) != len(set(kinds)):
        return dict(by_node)
    first, *others = unnamed
    joined = {node: blocks for node, blocks in by_node.items() if node not in others}
    joined[first] = [block for name in unnamed for block in by_node[name]]
    return joined


def _label(name: str, texts: Mapping[str, str]) -> str:
    return Path(name).name if name in texts else name.strip("<>")


def _split(label: str, blocks: Sequence[Block], num_topologies: int) -> Iterable[NodeFacts]:
    """A second output of the same tool is a node of its own: two states are not mixed, and none is lost."""
    rounds: list[list[Block]] = [[]]
    seen: dict[str, int] = {}
    for block in blocks:
        turn = seen.get(block.kind, 0) if block.kind in _ONE_A_NODE else 0
        seen[block.kind] = turn + 1
        while len(rounds) <= turn:
            rounds.append([])
        rounds[turn].append(block)
    for number, members in enumerate(rounds):
        name = label if number == 0 else f"{label} (paste {number + 1})"
        yield _facts(name, members, num_topologies if number == 0 else 0)


def _facts(node: str, blocks: Sequence[Block], num_topologies: int) -> NodeFacts:
    values: dict[str, Any] = {}
    parts = ("system", "driver", "torch", "libraries", "python", "nccl")
    for part in parts:
        for block in blocks:
            found = getattr(block, part)
            if found == ABSENT:
                continue
            values[part] = _merge(values[part], found) if part in values else found
    for part in ("gpu_processes", "xids"):
        known = [getattr(block, part) for block in blocks if getattr(block, part) != ABSENT]
        if known:
            values[part] = known[0]
    gpus = [block.gpus for block in blocks if block.gpus != ABSENT]
    if gpus:
        values["gpus"] = _merge_gpus(gpus)
    ports = [block.rdma for block in blocks if block.rdma != ABSENT]
    if ports:
        values["rdma"] = _merge_ports([port for some in ports if isinstance(some, tuple) for port in some])
    read = tuple(dict.fromkeys(block.kind for block in blocks))
    read += ("nvidia-smi topo -m",) if num_topologies else ()
    return NodeFacts(node=node, read=read, topology_blocks=num_topologies, **values)


def _merge(first: T, second: T) -> T:
    """Field by field: what `first` does not know comes from `second`. A reason beats no reason."""
    changes = {}
    for item in dataclasses.fields(first):  # type: ignore[arg-type]
        mine, theirs = getattr(first, item.name), getattr(second, item.name)
        if mine == ABSENT or (isinstance(mine, Unknown) and not isinstance(theirs, Unknown)):
            changes[item.name] = theirs
        elif item.name == "errors":
            changes[item.name] = tuple(dict.fromkeys((*mine, *theirs)))
        elif item.name in ("trouble", "import_error") and mine == "" and isinstance(theirs, str):
            # A good answer and an error: the error is what needs a look.
            changes[item.name] = theirs
    return dataclasses.replace(first, **changes)  # type: ignore[type-var]


def _merge_gpus(groups: Sequence[tuple[Gpu, ...] | Unknown]) -> tuple[Gpu, ...] | Unknown:
    """GPUs of several tools are the same where bus ids (or, for want of them, indices) are."""
    merged: list[Gpu] = []
    for gpu in (gpu for group in groups if isinstance(group, tuple) for gpu in group):
        at = next((at for at, known in enumerate(merged) if _is_same(known, gpu)), None)
        if at is None:
            merged.append(gpu)
        else:
            merged[at] = _merge(merged[at], gpu)
    if merged:
        return tuple(merged)
    return next(group for group in groups if isinstance(group, Unknown))


def _is_same(first: Gpu, second: Gpu) -> bool:
    if isinstance(first.bus_id, str) and isinstance(second.bus_id, str):
        return _short_bus(first.bus_id) == _short_bus(second.bus_id)
    return isinstance(first.index, int) and first.index == second.index


def _short_bus(bus_id: str) -> str:
    """`00000000:1B:00.0` and `0000:1B:00.0` are one place."""
    domain, _, rest = bus_id.partition(":")
    return f"{domain[-4:].zfill(4)}:{rest}".upper()


def _merge_ports(ports: Sequence[RdmaPort]) -> tuple[RdmaPort, ...]:
    merged: dict[tuple[str, int], RdmaPort] = {}
    for port in ports:
        key = (port.device, port.port)
        merged[key] = _merge(merged[key], port) if key in merged else port
    return tuple(merged.values())
