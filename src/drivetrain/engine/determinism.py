"""Whether kernels repeat bit for bit: process-wide switches of torch."""

from __future__ import annotations

import os

import torch


def set_determinism(*, deterministic: bool) -> None:
    """Called once a process, before its first CUDA computation."""
    if deterministic:
        # cuBLAS reads this when its first handle is made; torch refuses to be deterministic without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # cuDNN's search for the fastest kernel may choose another one the next time.
    torch.backends.cudnn.benchmark = not deterministic
