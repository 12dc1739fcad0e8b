"""A table by strategy: memory per rank, throughput, bytes communicated a step counted against the formula.

    python benchmarks/strategies.py recipes/gpt.yaml --device cpu -o benchmarks/strategies-cpu-DATE.md
    python benchmarks/strategies.py recipes/gpt_1b.yaml --device cuda --world-sizes 1,2 --global-batch 16

What follows the known options goes to every run as it is. Each strategy is a launch of its own; one that
cannot run here has a line that says why.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Name, ranks, options.
CASES: tuple[tuple[str, int, dict[str, str]], ...] = (
    ("single", 1, {"strategy": "single"}),
    ("data_parallel", 1, {"strategy": "data_parallel"}),
    ("ddp", 2, {"strategy": "ddp"}),
    ("fsdp", 2, {"strategy": "fsdp"}),
    ("fsdp, not resharded", 2, {"strategy": "fsdp", "fsdp.reshard_after_forward": "false"}),
    ("fsdp, selective", 2, {"strategy": "fsdp", "activation_checkpointing": "selective"}),
    ("fsdp, every block recomputed", 2, {"strategy": "fsdp", "activation_checkpointing": "1"}),
    ("tensor", 2, {"strategy": "tensor"}),
    ("pipeline, 1f1b", 2, {"strategy": "pipeline"}),
    ("pipeline, interleaved", 2, {"strategy": "pipeline", "pipeline.schedule": "interleaved"}),
    ("pipeline, zero_bubble", 2, {"strategy": "pipeline", "pipeline.schedule": "zero_bubble"}),
    ("ddp", 4, {"strategy": "ddp"}),
    ("fsdp", 4, {"strategy": "fsdp"}),
    ("hybrid: fsdp × dp_replicate 2", 4, {"strategy": "fsdp", "mesh.dp_replicate": "2"}),
    ("tensor × dp_replicate 2", 4, {"strategy": "tensor", "mesh.tp": "2", "mesh.dp_replicate": "2"}),
    ("fsdp × tp 2", 4, {"strategy": "fsdp", "mesh.tp": "2"}),
    ("pipeline × dp_replicate 2", 4, {"strategy": "pipeline", "mesh.pp": "2", "mesh.dp_replicate": "2"}),
)


def run(recipe: str, num_ranks: int, options: dict[str, str], rest: list[str]) -> list[dict[str, Any]] | str:
    """What each rank measured, or why there is nothing."""
    from drivetrain.bench.traffic_worker import RECORDER

    with tempfile.TemporaryDirectory() as folder:
        settings = [text for name, value in options.items() for text in (f"--{name}", value)]
        variables = [text for name, value in RECORDER.items() for text in ("--env", f"{name}={value}")]
        command = [
            *(sys.executable, "-m", "drivetrain", "launch", "--nproc-per-node", str(num_ranks)),
            *(*variables, "--output", f"{folder}/launch", "--module", "drivetrain.bench.traffic_worker"),
            *(folder, recipe, *settings, *rest),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        except subprocess.TimeoutExpired:
            return "not within 15 minutes"
        files = sorted(Path(folder).glob("rank-*.json"))
        if done.returncode or len(files) != num_ranks:
            said = [line for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
            return said[-1].strip() if said else f"exit code {done.returncode}"
        return [json.loads(file.read_text()) for file in files]


def _number(value: Any, scale: float = 1e6) -> str:
    return f"unknown: {value['unknown']}" if isinstance(value, dict) else f"{value / scale:,.2f}"


def row(name: str, num_ranks: int, found: list[dict[str, Any]] | str) -> str:
    """One line of the table. Where ranks differ, the one that sends, or holds, most stands."""
    if isinstance(found, str):
        return f"| {name} | {num_ranks} | not run: {found.replace('|', '/')} | | | | | | | |"
    most = max(found, key=lambda rank: _total(rank["sent"]))
    sent, expected = most["sent"], most["expected"]
    counted = _total(sent)
    by_kind = ", ".join(f"{kind} {value / 1e6:,.2f}" for kind, value in sent.items()) or "nothing"
    ratio = "–"
    if not isinstance(expected, dict):
        ratio = f"{counted / expected:.4f}" if expected else ("1" if counted == 0 else "∞")
    if "unknown" in sent:
        by_kind = ratio = sent["unknown"]
    peak = max((rank["peak_bytes"] for rank in found), key=lambda v: -1 if isinstance(v, dict) else v)
    state = max(rank["state_bytes"] for rank in found)
    rate = found[0]["samples_per_s"]
    cells = (
        name,
        num_ranks,
        _number(state),
        _number(peak),
        _number(found[0]["reserved_bytes"]) if found[0]["device"] == "cuda" else "–",
        f"{rate:,.1f}",
        f"{counted / 1e6:,.3f}",
        _number(expected) if isinstance(expected, dict) else f"{expected / 1e6:,.3f}",
        ratio,
        by_kind,
        f"{found[0]['loss']:.5f}",
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def _total(sent: dict[str, Any]) -> float:
    return 0.0 if "unknown" in sent else sum(sent.values())


HEAD = (
    "| strategy | ranks | weights + optimizer MB | peak MB | reserved MB | samples/s | sent MB a step |"
    " formula MB | counted / formula | by kind, MB | loss |\n|---|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("recipe")
    parser.add_argument("--world-sizes", default="1,2,4", help="Which numbers of ranks to run.")
    parser.add_argument("--only", default="", help="Only strategies whose name starts so; several by commas.")
    parser.add_argument("-o", "--output", type=Path, help="Also write the table here.")
    known, rest = parser.parse_known_args()
    sizes = {int(size) for size in known.world_sizes.split(",")}
    lines = [
        f"{known.recipe} {' '.join(rest)}".strip(),
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {_where()}",
        f"command: python benchmarks/strategies.py {' '.join(sys.argv[1:])}",
        "",
        HEAD,
    ]
    print("\n".join(lines), flush=True)
    for name, num_ranks, options in CASES:
        if num_ranks in sizes and name.startswith(tuple(known.only.split(","))):
            lines.append(row(name, num_ranks, run(known.recipe, num_ranks, options, rest)))
            print(lines[-1], flush=True)
    if known.output is not None:
        known.output.write_text("\n".join(lines) + "\n")
    return 0


def _where() -> str:
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"
    return f"{device}, torch {torch.__version__}, Python {platform.python_version()}"


if __name__ == "__main__":
    raise SystemExit(main())
