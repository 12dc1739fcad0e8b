"""What ranks run in tests of faults: a training as `drivetrain train` is asked for it."""

from __future__ import annotations

from pathlib import Path

from drivetrain.config.load import load
from drivetrain.config.overrides import from_command_line
from drivetrain.train.trainer import Trainer


def train(*, words: list[str], output: str) -> int:
    """Trains as the command line's `words` (each flag with its value) say; returns the steps done."""
    pairs = zip(words[::2], words[1::2], strict=True)
    config = load(None, [from_command_line(flag, value) for flag, value in pairs])
    return Trainer(config, output=Path(output)).fit().steps
