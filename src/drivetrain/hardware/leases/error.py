"""The error of this room."""

from __future__ import annotations

from drivetrain.spec.errors import ExplainedError


class LeaseError(ExplainedError, RuntimeError):
    """A lease could not be had: the GPUs are taken, or the locks cannot be used. Ends a verb with code 1."""
