"""A machine's wiring as a drawing: GPUs on a circle by NUMA node, links as chords, NICs outside."""

from __future__ import annotations

import html
import math

from drivetrain.hardware.topology.graph import Topology, numa_groups
from drivetrain.hardware.topology.links import Link
from drivetrain.spec.unknown import Unknown

_SIZE, _CENTRE, _RADIUS = 760, 380, 230
_NIC_RADIUS, _BOX_WIDTH, _BOX_HEIGHT = 322, 84, 40
_LEGEND_LINE = 20
_STYLE = 'role="img" font-family="sans-serif" font-size="13"'

# Colours that differ for colour-blind readers too (Okabe and Ito's); width and dashes say the same again.
_STROKES = {
    "NV": ("#0072b2", 4.0, ""),
    "C2C": ("#0072b2", 4.0, ""),
    "PSB": ("#009e73", 3.0, ""),
    "PIX": ("#009e73", 3.0, ""),
    "PXB": ("#56b4e9", 2.5, ""),
    "PHB": ("#e69f00", 2.0, ""),
    "NODE": ("#d55e00", 1.5, ""),
    "SYS": ("#999999", 1.0, "6 4"),
}
_UNKNOWN_STROKE = ("#cc0000", 1.0, "2 5")
_FILLS = ("#e8f1f8", "#fdf1dc", "#e5f4ee", "#f6e8f0", "#f2f2e4", "#ece8f6", "#e4f4f7", "#f7e9e4")


def topology_svg(topology: Topology) -> str:
    """The drawing as one SVG document; it refers to no other file."""
    order = _round_order(topology)
    places = {gpu: _at(position, len(order), _RADIUS) for position, gpu in enumerate(order)}
    chords = [
        _chord(topology.links[pair], places[pair[0]], places[pair[1]], pair)
        for pair in sorted(topology.links, key=lambda pair: _order(topology.links[pair]))
    ]
    legend = _legend(topology)
    height = _SIZE + _LEGEND_LINE * (len(legend) + 1)
    title = html.escape(f"{len(order)} GPUs, from {topology.source}")
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE} {height}" {_STYLE}>',
        f"<title>{title}</title>",
        f'<rect width="{_SIZE}" height="{height}" fill="white"/>',
        f'<text x="20" y="30" font-size="16">{title}</text>',
        *chords,
        *_gpu_boxes(topology, places),
        *_nic_labels(topology, order),
        *(
            line.replace("@Y", str(_SIZE + _LEGEND_LINE * at)).replace(
                "@T", str(_SIZE + 4 + _LEGEND_LINE * at)
            )
            for at, line in enumerate(legend)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _round_order(topology: Topology) -> list[int]:
    """Neighbours on the circle share a NUMA node."""
    groups = numa_groups(topology)
    return sorted(topology.indices, key=lambda gpu: (gpu not in groups, _first(groups, gpu), gpu))


def _first(groups: dict[int, str], gpu: int) -> int:
    return min((other for other in groups if groups[other] == groups.get(gpu)), default=gpu)


def _at(position: int, count: int, radius: float) -> tuple[float, float]:
    angle = 2 * math.pi * (position + 0.5) / max(count, 1) - math.pi / 2
    return _CENTRE + radius * math.cos(angle), _CENTRE + radius * math.sin(angle)


def _order(link: Link | Unknown) -> int:
    return 0 if isinstance(link, Unknown) else link.order


def _stroke(link: Link | Unknown) -> tuple[str, float, str]:
    return _UNKNOWN_STROKE if isinstance(link, Unknown) else _STROKES[link.kind]


def _line(link: Link | Unknown, ends: str) -> str:
    colour, width, dashes = _stroke(link)
    dash = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dash}/>'


def _chord(
    link: Link | Unknown, start: tuple[float, float], end: tuple[float, float], pair: tuple[int, int]
) -> str:
    ends = f'x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}"'
    name = "unknown" if isinstance(link, Unknown) else str(link)
    return f"<g><title>GPU{pair[0]} - GPU{pair[1]}: {name}</title>{_line(link, ends)}</g>"


def _gpu_boxes(topology: Topology, places: dict[int, tuple[float, float]]) -> list[str]:
    groups = numa_groups(topology)
    fills = dict(zip(dict.fromkeys(groups[gpu] for gpu in sorted(groups)), _FILLS * 32, strict=False))
    boxes = []
    for gpu, (x, y) in places.items():
        group = groups.get(gpu, "NUMA node unknown")
        left, top = x - _BOX_WIDTH / 2, y - _BOX_HEIGHT / 2
        boxes.append(
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="6"'
            f' fill="{fills.get(group, "white")}" stroke="#333333"/>'
            f'<text x="{x:.1f}" y="{y - 2:.1f}" text-anchor="middle">GPU{gpu}</text>'
            f'<text x="{x:.1f}" y="{y + 13:.1f}" text-anchor="middle" font-size="9">{_short(group)}</text>'
        )
    return boxes


def _short(group: str) -> str:
    return html.escape(group if len(group) <= 17 else group[:16] + "…")


def _nic_labels(topology: Topology, order: list[int]) -> list[str]:
    labels = []
    for position, gpu in enumerate(order):
        nics, way = topology.nearest_nics(gpu)
        if not nics:
            continue
        x, y = _at(position, len(order), _NIC_RADIUS)
        names = ", ".join(nic.name for nic in nics[:2]) + (f" +{len(nics) - 2}" if len(nics) > 2 else "")
        text = html.escape(f"{names} ({way})")
        labels.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle" font-size="11">{text}</text>')
    return labels


def _legend(topology: Topology) -> list[str]:
    """A line a kind of link, best first; `@Y` and `@T` stand for its place."""
    kinds = {
        "unknown" if isinstance(link, Unknown) else str(link): link
        for link in sorted(topology.links.values(), key=_order, reverse=True)
    }
    lines = []
    for name, link in kinds.items():
        meaning = "could not be read" if isinstance(link, Unknown) else link.meaning
        sample = _line(link, 'x1="20" y1="@Y" x2="70" y2="@Y"')
        lines.append(f'{sample}<text x="80" y="@T">{name}: {html.escape(meaning)}</text>')
    return lines
