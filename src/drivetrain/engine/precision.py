"""Number formats: what the forward and backward run in, and what that needs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from drivetrain.engine.settings import PrecisionName
from drivetrain.spec.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Precision:
    """A chosen precision. Weights and optimizer state stay fp32 in all of them.

    Attributes:
        autocast_dtype: what matrix products run in, None for none.
        uses_scaler: whether losses are scaled so that fp16 gradients do not vanish.
        reason: why this one, as printed.
    """

    name: str
    autocast_dtype: torch.dtype | None
    uses_tf32: bool
    uses_scaler: bool
    device_type: str
    reason: str

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.autocast_dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device_type, dtype=self.autocast_dtype)


def choose_precision(name: PrecisionName, device: torch.device) -> Precision:
    """Resolves "auto" and checks that the device can do what was asked.

    Raises:
        InputError: the device lacks the format.
    """
    if name == "auto":
        chosen, reason = _best_for(device)
    else:
        chosen, reason = name, "asked for"
    if chosen == "tf32" and device.type != "cuda":
        raise InputError(
            "precision tf32", f"it is a mode of NVIDIA GPUs; this rank is on {device.type}", "fp32"
        )
    if chosen in ("bf16", "tf32") and device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            raise InputError(
                f"precision {chosen}",
                f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}, below 8.0",
                "--precision fp16 or fp32",
            )
    return Precision(
        name=chosen,
        autocast_dtype={"bf16": torch.bfloat16, "fp16": torch.float16}.get(chosen),
        uses_tf32=chosen != "fp32" and device.type == "cuda",
        uses_scaler=chosen == "fp16",
        device_type=device.type,
        reason=reason,
    )


def apply_matmul_mode(precision: Precision) -> None:
    """Sets the process-wide tf32 switches. Called once a process, at set-up."""
    if precision.device_type == "cuda":
        mode = "tf32" if precision.uses_tf32 else "ieee"
        torch.backends.cuda.matmul.fp32_precision = mode
        torch.backends.cudnn.conv.fp32_precision = mode  # type: ignore[attr-defined]


def _best_for(device: torch.device) -> tuple[str, str]:
    if device.type != "cuda":
        return "fp32", "auto: on the CPU"
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    if major >= 8:
        return "bf16", f"auto: {name} (compute capability {major}.{minor}) computes in bf16"
    if major >= 7:
        return "fp16", f"auto: {name} (compute capability {major}.{minor}) has fp16 but no bf16 matrix units"
    return "fp32", f"auto: {name} (compute capability {major}.{minor}) has no half-precision matrix units"
