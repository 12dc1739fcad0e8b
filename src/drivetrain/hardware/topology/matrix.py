"""`nvidia-smi topo -m`, as printed or as pasted, into a `Topology`. What does not fit is unknown."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from drivetrain.hardware.topology.graph import GpuNode, Nic, Pair, Topology
from drivetrain.hardware.topology.links import Link, read_link
from drivetrain.hardware.topology.matrix_affinity import Affinity, check_affinities, read_affinity
from drivetrain.hardware.topology.matrix_cells import PEER_CODES, SELF
from drivetrain.hardware.topology.matrix_columns import Columns, gpu_number, place_cells
from drivetrain.hardware.topology.matrix_tables import Table, read_tables
from drivetrain.hardware.topology.matrix_text import gpu_names, nic_names, plain_lines
from drivetrain.spec.unknown import Unknown


def read_matrices(content: bytes | str, source: str) -> list[Topology]:
    """Every matrix in a paste, in order; none where there is none. Raises nothing, whatever the bytes.

    A matrix that is read whole stands before those that are not, and one of all links before one of the
    PCIe paths alone (`topo -mp`). Peer tables (`topo -p2p`) are held to the matrix that they follow.
    """
    lines = plain_lines(content)
    tables = read_tables(lines)
    names = _Names(nics=nic_names(lines), gpus=gpu_names(lines))
    found: list[tuple[Table, Topology]] = []
    for at, table in enumerate(tables):
        if table.is_peer:
            continue
        following = itertools.takewhile(lambda other: other.is_peer, tables[at + 1 :])
        topology = _topology(table, list(following), names, source)
        if topology.gpus and table.rows:
            found.append((table, topology))
    if not found:  # a heading alone still tells how many GPUs there are
        bare = [(table, _topology(table, [], names, source)) for table in tables if not table.is_peer]
        found = [(table, topology) for table, topology in bare if len(topology.gpus) > 1]
    return [topology for _, topology in sorted(found, key=lambda pair: _merit(*pair))]


def _merit(table: Table, topology: Topology) -> tuple[bool, bool, int]:
    """Sorts first what is whole. Of incomplete ones the fuller goes first."""
    num_known = sum(isinstance(link, Link) for link in topology.links.values())
    is_whole = num_known == len(topology.links)
    return (table.command.startswith("-mp"), not is_whole, 0 if is_whole else -num_known)


_NO_ROW = Affinity(
    cpus=Unknown("its row is missing or cannot be read"),
    numa=Unknown("its row is missing or cannot be read"),
)


@dataclass(frozen=True, kw_only=True)
class _Names:
    nics: dict[str, str]
    gpus: dict[int, tuple[str, str | None]]


def _topology(table: Table, peers: list[Table], names: _Names, source: str) -> Topology:
    columns = place_cells(table)
    problems = list(columns.problems)
    if table.heading is None and columns.labels:
        problems.append("the heading is missing; columns are named by the rows")
    gpus = sorted(number for label in columns.labels if (number := gpu_number(label)) is not None)
    nics = [label for label in columns.labels if label is not None and gpu_number(label) is None]
    links = {(a, b): _link(columns, f"GPU{a}", f"GPU{b}") for a, b in itertools.combinations(gpus, 2)}
    nic_links = {(gpu, nic): _link(columns, f"GPU{gpu}", nic) for gpu in gpus for nic in nics}
    affinities, contradictions = check_affinities(_affinities(table, gpus))
    problems += contradictions + _unknown_affinities(affinities)
    problems += [
        f"GPU{a}-GPU{b}: {link.reason}" for (a, b), link in links.items() if isinstance(link, Unknown)
    ]
    problems += _unknown_nics(nic_links)
    return Topology(
        gpus=tuple(_gpu(number, affinities[number], names) for number in gpus),
        links=links,
        nics=tuple(Nic(label=label, name=names.nics.get(label, label)) for label in nics),
        nic_links=nic_links,
        refused_peers=_refused(peers, set(gpus)),
        source=source,
        unknown=tuple(problems),
    )


def _gpu(number: int, affinity: Affinity, names: _Names) -> GpuNode:
    name, uuid = names.gpus.get(number, (None, None))
    return GpuNode(
        index=number,
        name=name or Unknown("the matrix does not name GPUs"),
        uuid=uuid or Unknown("the matrix holds no UUIDs"),
        cpus=affinity.cpus,
        numa=affinity.numa,
        memory_numa=affinity.memory_numa,
    )


def _link(columns: Columns, a: str, b: str) -> Link | Unknown:
    """The link that both rows agree on, or the one that stands there alone."""
    codes = {code for pair in ((a, b), (b, a)) if (code := columns.cells.get(pair)) is not None}
    if not codes:
        return Unknown("its cells are missing or cannot be read")
    if len(codes) > 1:
        return Unknown(f"{a}'s row and {b}'s row differ: {' and '.join(sorted(codes))}")
    code = codes.pop()
    link = None if code == SELF else read_link(code)
    return link or Unknown(f"its cell says {code}")


def _affinities(table: Table, gpus: list[int]) -> dict[int, Affinity]:
    columns = table.heading.columns if table.heading else ()
    affinities = {}
    for gpu in gpus:
        row = table.rows.get(f"GPU{gpu}")
        is_clear = row is not None and row.label not in table.unclear
        affinities[gpu] = read_affinity(row.tail, columns) if row is not None and is_clear else _NO_ROW
    return affinities


def _unknown_affinities(affinities: dict[int, Affinity]) -> list[str]:
    """GPUs whose place is not known although that of others is."""
    lost = [
        f"GPU{gpu}"
        for gpu, affinity in affinities.items()
        if isinstance(affinity.cpus, Unknown) and isinstance(affinity.numa, Unknown)
    ]
    return [f"{', '.join(lost)}: no affinity could be read"] if 0 < len(lost) < len(affinities) else []


def _unknown_nics(nic_links: dict[tuple[int, str], Link | Unknown]) -> list[str]:
    """A sentence a GPU, not one a cell: NIC rows are the first that pastes leave out."""
    missing: dict[int, list[str]] = {}
    for (gpu, nic), link in nic_links.items():
        if isinstance(link, Unknown):
            missing.setdefault(gpu, []).append(nic)
    return [f"GPU{gpu}: its link to {', '.join(nics)} cannot be read" for gpu, nics in missing.items()]


def _refused(peers: list[Table], gpus: set[int]) -> dict[Pair, str]:
    """Pairs without direct access, by tables of reads and writes (`-p2p n`, `a`, `p` say other things)."""
    refused = {}
    for table in peers:
        if table.command[5:] not in ("", "r", "w", "rw"):
            continue
        for (a_label, b_label), code in place_cells(table).cells.items():
            a, b = gpu_number(a_label), gpu_number(b_label)
            if a is None or b is None or not {a, b} <= gpus or code not in PEER_CODES:
                continue
            if a != b and code not in ("OK", "U"):
                refused[(min(a, b), max(a, b))] = code
    return refused
