"""certificate.jsonl: what each step consumed and gave, a line a step, so that two runs can be compared."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import IO, Any

from drivetrain.engine.certificate import FIRST_LINK, next_link
from drivetrain.engine.control import ClusterWord


class CertificateFile:
    """Keeps the chain of consumed samples on every rank, and writes it on the one that is given a path.

    A line: {"step": steps done, "samples": the chain, "loss", "grad_norm", "weights": a sum of their bits by
    rank, where it was taken}. Lines of steps that a resume goes back before are dropped.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[str] | None = None
        self.link = FIRST_LINK

    def start(self, step: int, link: str) -> None:
        """Goes on after `step` steps, whose chain is `link`."""
        self.link = link
        if self._path is None:
            return
        kept = [line for line in _lines(self._path) if _step_of(line) <= step]
        self._path.write_text("".join(kept), encoding="utf-8")
        self._file = self._path.open("a", encoding="utf-8")

    def add(self, word: ClusterWord) -> None:
        """Takes in the word of the next step."""
        self.link = next_link(self.link, word.samples)
        if self._file is None:
            return
        line: dict[str, Any] = {
            "step": word.step + 1,
            "samples": self.link,
            "loss": word.loss if math.isfinite(word.loss) else None,
            "grad_norm": word.grad_norm,
        }
        if word.weights_sums is not None:
            line["weights"] = word.weights_sums
        try:
            self._file.write(json.dumps(line) + "\n")
        except OSError:
            self._file = None  # a full disk must not end the training

    def flush(self) -> None:
        if self._file is not None:
            try:
                self._file.flush()
            except OSError:
                self._file = None


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            return [line for line in file if line.endswith("\n")]
    except OSError:
        return []


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
