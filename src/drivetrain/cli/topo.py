"""`drivetrain topo`: how the GPUs of this machine, or of a pasted matrix, are wired, and which to take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drivetrain.cli.streams import say, show
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown

if TYPE_CHECKING:
    from drivetrain.hardware.topology.graph import Topology
    from drivetrain.hardware.topology.placement import Best
    from drivetrain.hardware.topology.rank_layout import RankPlace


@click.command(
    name="topo",
    context_settings={
        "token_normalize_func": lambda name: name.replace("_", "-"),
        "help_option_names": ["-h", "--help"],
    },
)
@click.option(
    "--from",
    "source",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="A pasted `nvidia-smi topo -m` instead of this machine; - is standard input.",
)
@click.option(
    "-k", "sizes", type=click.IntRange(min=1), multiple=True, metavar="N", help="The best N GPUs; repeatable."
)
@click.option("--layout", metavar="tp=2,dp_replicate=2", help="Which ranks go on which GPU.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE.svg", help="Draw it.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def command(
    source: Path | None, sizes: tuple[int, ...], layout: str | None, output: Path | None, as_json: bool
) -> None:
    """Show how the GPUs are wired, what to expect of each link, and the best GPUs to take.

    \b
    drivetrain topo -k 2 -k 4
    drivetrain topo --from pasted.txt --layout tp=2,dp_shard=4 -o wiring.svg
    """
    from drivetrain.hardware.topology.placement import best_sets
    from drivetrain.hardware.topology.rank_layout import parse_layout, place_ranks

    topology = _read(source)
    places: list[RankPlace] = []
    if layout is not None:
        places = place_ranks(topology, parse_layout(layout, len(topology.gpus)))
    asked = sizes or (() if as_json else _usual_sizes(len(topology.gpus)))
    best = [found for size in dict.fromkeys(asked) if (found := best_sets(topology, size)) is not None]
    if output is not None:
        _draw(topology, output)
    if as_json:
        show(json.dumps(_as_json(topology, best, places)), what="the topology")
        return
    from drivetrain.report.topology_text import best_lines, layout_lines, topology_lines

    lines = topology_lines(topology)
    for found in best:
        lines += best_lines(topology, found)
    for size in sizes:
        if size > len(topology.gpus):
            lines += ["", f"best {size} GPUs: there are only {len(topology.gpus)}"]
    if layout is not None:
        lines += layout_lines(topology, places, layout)
    show("\n".join(lines), what="the topology")


def _read(source: Path | None) -> Topology:
    from drivetrain.hardware.topology.read import read_file, read_machine

    if source is None:
        return read_machine()
    content = sys.stdin.buffer.read() if str(source) == "-" else None
    matrices = read_file(source, content)
    others = [matrix for matrix in matrices[1:] if matrix.links != matrices[0].links]
    if others:
        sizes = ", ".join(f"{len(matrix.gpus)} GPUs" for matrix in others)
        which = "1 other matrix" if len(others) == 1 else f"{len(others)} other matrices"
        say(f"{source} holds {which} ({sizes}); shown is the first that is whole")
    return matrices[0]


def _usual_sizes(num_gpus: int) -> tuple[int, ...]:
    """Powers of two that leave a choice."""
    return tuple(size for size in (2, 4, 8) if size < num_gpus)


def _draw(topology: Topology, path: Path) -> None:
    from drivetrain.report.topology_svg import topology_svg

    if path.suffix != ".svg":
        raise InputError(f"-o {path}", "only SVG is drawn", "name a file that ends in .svg")
    try:
        path.write_text(topology_svg(topology), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"-o {path}", f"it cannot be written: {error.strerror}", "name another file"
        ) from error
    say(f"drawn: {path}")


def _as_json(topology: Topology, best: list[Best], places: list[RankPlace]) -> dict[str, Any]:
    """The public form; its keys are part of the interface. `layout` is there only if it was asked for."""
    from drivetrain.hardware.topology.islands import islands

    doubts = [f"best {found.size}: {found.doubt}" for found in best if found.doubt]
    facts: dict[str, Any] = {
        "gpus": list(topology.indices),
        "links": [
            {"a": a, "b": b, "link": "unknown" if isinstance(link, Unknown) else str(link)}
            for (a, b), link in topology.links.items()
        ],
        "islands": [list(island.gpus) for island in islands(topology)],
        "nics": {
            str(index): [nic.name for nic in topology.nearest_nics(index)[0]] for index in topology.indices
        },
        "best": {str(found.size): [list(chosen) for chosen in found.sets] for found in best},
        "unknown": [*topology.unknown, *doubts],
    }
    if places:
        facts["layout"] = [_place_json(topology, place, places) for place in places]
    return facts


def _place_json(topology: Topology, place: RankPlace, places: list[RankPlace]) -> dict[str, Any]:
    from drivetrain.hardware.topology.graph import write_ranges
    from drivetrain.hardware.topology.nic_choice import choose_nics

    nic = choose_nics(topology, sorted({other.gpu for other in places}))[place.gpu]
    cpus = topology.gpu(place.gpu).cpus
    return {
        "rank": place.rank,
        "node": place.node,
        "gpu": place.gpu,
        **place.coordinates,
        "cpus": None if isinstance(cpus, Unknown) else write_ranges(cpus),
        "nic": None if nic is None else nic.name,
    }
