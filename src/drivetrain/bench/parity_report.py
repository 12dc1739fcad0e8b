"""A comparison as text, and as JSON."""

from __future__ import annotations

import math
from typing import Any

from drivetrain.bench.parity import Parity, Result
from drivetrain.bench.parity_compare import Difference

_HEADINGS = ("strategy", "layout", "ranks", "loss error", "gradient error", "weight error", "verdict")
_WHAT = {
    "samples": "the samples",
    "inputs": "what the samples hold",
    "initial_weights": "the weights that training starts from",
    "loss": "the loss",
    "gradient": "the gradient",
    "gradient_norm": "the gradient's norm",
    "weight": "the weights",
}


def as_json(parity: Parity, *, recipe: str, settings: dict[str, str], folder: str | None) -> dict[str, Any]:
    """The keys are part of the public interface; see docs/parity.md. Numbers that are not finite are text."""
    return {
        "recipe": recipe,
        "steps": parity.steps,
        "settings": settings,
        "reference": {
            "strategy": "single",
            "world_size": 1,
            "batch": parity.batch,
            "losses": [_number(loss) for loss in parity.losses],
        },
        "results": [_result(result) for result in parity.results],
        "folder": folder,
    }


def as_text(parity: Parity, *, recipe: str, settings: dict[str, str], folder: str | None) -> str:
    """A table, and a paragraph for each candidate that differs or failed."""
    forced = ", ".join(f"{key} {value}" for key, value in settings.items())
    rows = [_HEADINGS, *(_row(result) for result in parity.results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS) - 1)]
    table = [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
    head = f"{recipe}: {parity.steps} steps against single on 1 process ({parity.batch}); {forced}"
    parts = [head, "\n".join(table), *filter(None, (_paragraph(result) for result in parity.results))]
    if folder is not None:
        parts.append(f"The runs and what each rank recorded are kept in {folder}")
    return "\n\n".join(parts)


def _row(result: Result) -> tuple[str, ...]:
    found, candidate = result.comparison, result.candidate
    verdict = found.verdict.replace("_", " ")
    if found.verdict in ("not_checked", "failed"):
        verdict += f": {found.reason}"
    elif found.difference is not None:
        verdict += f": {found.difference.cause.name}"
    errors = (found.loss_error, found.gradient_error, found.weight_error)
    shown = ("-" if error is None else f"{error:.1e}" for error in errors)
    return candidate.name, candidate.describe_layout(), str(candidate.world_size), *shown, verdict


def _paragraph(result: Result) -> str:
    difference = result.comparison.difference
    if difference is None:
        return ""
    who = f"{result.candidate.name} on {result.candidate.world_size} ranks"
    what = _WHAT[difference.what] + (f" ({difference.name})" if difference.name else "")
    error = "" if difference.error is None else f" (relative error {difference.error:.1e})"
    cause = difference.cause
    return (
        f"{who} differs first at step {difference.step}, in {what}: expected {_shown(difference.expected)},"
        f" found {_shown(difference.found)}{error}.\nLikely cause: {cause.name}. {_sentence(cause.evidence)}"
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.8g}"


def _result(result: Result) -> dict[str, Any]:
    found, candidate = result.comparison, result.candidate
    return {
        "strategy": candidate.name,
        "layout": candidate.describe_layout(),
        "world_size": candidate.world_size,
        "status": found.verdict,
        "reason": found.reason or None,
        "max_rel_loss_error": _number(found.loss_error),
        "max_rel_gradient_error": _number(found.gradient_error),
        "max_rel_weight_error": _number(found.weight_error),
        "first_difference": None if found.difference is None else _difference(found.difference),
    }


def _difference(difference: Difference) -> dict[str, Any]:
    return {
        "step": difference.step,
        "what": difference.what,
        "name": difference.name or None,
        "expected": _number(difference.expected),
        "found": _number(difference.found),
        "likely_cause": difference.cause.name,
        "evidence": difference.cause.evidence,
    }


def _number(value: str | float | None) -> str | float | None:
    """JSON has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
