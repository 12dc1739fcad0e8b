"""`drivetrain export`: a trained model's weights as one safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import click


@click.command(name="export", context_settings={"token_normalize_func": lambda name: name.replace("_", "-")})
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File; default RUN/model.safetensors.")
@click.option(
    "--weights",
    type=click.Choice(["auto", "model", "ema"]),
    default="auto",
    show_default=True,
    help="Moving average or plain weights; auto takes the average where there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def command(
    source: Path, output: Path | None, weights: Literal["auto", "model", "ema"], as_json: bool
) -> None:
    """Write the weights of SOURCE, a run directory or one of its checkpoints, to a safetensors file."""
    from drivetrain.train.export import export

    written = export(source, output, weights=weights)
    if as_json:
        facts = {
            "path": str(written.path),
            "step": written.step,
            "tensors": written.num_tensors,
            "bytes": written.num_bytes,
            "weights": "ema" if written.is_average else "model",
        }
        click.echo(json.dumps(facts))
    else:
        kind = "moving average" if written.is_average else "weights"
        click.echo(
            f"{written.path}: {written.num_tensors} tensors, {written.num_bytes / 1e6:.1f} MB,"
            f" {kind} of step {written.step}"
        )
