"""The parts of the functional test, each run in processes of its own (`functional.py` starts them).

`python -m drivetrain.doctor.functional_worker rates|loader`, `… all_reduce RANK WORLD FILE DEVICE`.
"""

from __future__ import annotations

import datetime
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from drivetrain.doctor.child import answer

_GPU_SIZE = 8192
_CPU_SIZE = 1024
_MEASURED_S = 0.6
_COPY_BYTES = 256 << 20
_WAIT = datetime.timedelta(seconds=30)


def _devices() -> list[torch.device]:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]


def _name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matmul(device: torch.device) -> tuple[float, bool]:
    """TFLOP/s of a square product, and whether sampled rows agree with float64 on the CPU."""
    on_gpu = device.type == "cuda"
    size = _GPU_SIZE if on_gpu else _CPU_SIZE
    dtype = torch.float32
    if on_gpu:
        dtype = torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    generator = torch.Generator(device=device).manual_seed(0)
    a = torch.randn(size, size, device=device, generator=generator).to(dtype)
    b = torch.randn(size, size, device=device, generator=generator).to(dtype)
    for _ in range(3):
        product = a @ b
    _wait_for(device)
    start, rounds = time.perf_counter(), 0
    while time.perf_counter() - start < _MEASURED_S:
        for _ in range(10 if on_gpu else 1):
            product = a @ b
        _wait_for(device)
        rounds += 10 if on_gpu else 1
    seconds = time.perf_counter() - start
    rows = torch.arange(0, size, size // 4, device=device)
    wanted = a[rows].double().cpu() @ b.double().cpu()
    # Rounding of the result to bfloat16 is 2^-8 of values around sqrt(size).
    error = (product[rows].double().cpu() - wanted).abs().max().item() / size**0.5
    return 2.0 * size**3 * rounds / seconds / 1e12, error < 0.05


def copy(device: torch.device) -> tuple[float, bool]:
    """Bytes per second from host memory (pinned, where there is a GPU), and whether the copy is equal."""
    on_gpu = device.type == "cuda"
    source = torch.arange(_COPY_BYTES // 4, dtype=torch.int32)
    if on_gpu:
        source = source.pin_memory()
    target = torch.empty_like(source, device=device)
    target.copy_(source, non_blocking=True)
    _wait_for(device)
    start, rounds = time.perf_counter(), 0
    while time.perf_counter() - start < _MEASURED_S / 2:
        target.copy_(source, non_blocking=True)
        _wait_for(device)
        rounds += 1
    rate = _COPY_BYTES * rounds / (time.perf_counter() - start)
    return rate, torch.equal(target.cpu(), source)


def all_reduce(rank: int, world_size: int, file: str, kind: str) -> dict[str, Any]:
    """Two processes sum 1 MiB of rank + 1; the right sum is known."""
    device = torch.device("cuda", rank) if kind == "cuda" else torch.device("cpu")
    backend = "nccl" if kind == "cuda" else "gloo"
    if kind == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, init_method=f"file://{file}", rank=rank, world_size=world_size, timeout=_WAIT
    )
    try:
        values = torch.full((1 << 18,), float(rank + 1), device=device)
        dist.all_reduce(values)
        _wait_for(device)
        start = time.perf_counter()
        for _ in range(5):
            dist.all_reduce(values.fill_(float(rank + 1)))
        _wait_for(device)
        seconds = (time.perf_counter() - start) / 5
        wanted = world_size * (world_size + 1) / 2
        is_right = bool((values == wanted).all().item())
    finally:
        dist.destroy_process_group()
    return {"is_right": is_right, "seconds": seconds, "backend": backend}


def loader_start() -> dict[str, Any]:
    """Seconds until two worker processes hand over the first batch."""
    data = TensorDataset(torch.arange(64, dtype=torch.float32).repeat(256, 1))
    start = time.perf_counter()
    batches = iter(DataLoader(data, batch_size=32, num_workers=2))
    (first,) = next(batches)
    seconds = time.perf_counter() - start
    del batches
    return {"seconds": seconds, "is_right": bool(torch.equal(first[0], torch.arange(64.0)))}


def main() -> None:
    name, *args = sys.argv[1:]
    if name == "all_reduce":
        answer(all_reduce(int(args[0]), int(args[1]), args[2], args[3]))
    elif name == "loader":
        answer(loader_start())
    else:
        # Each part is handed back as soon as it is known: a crash in the next must not take it along.
        done: dict[str, Any] = {}
        for part, measure in (("matmul", matmul), ("copy", copy)):
            done[part] = [[_name(device), *measure(device)] for device in _devices()]
            answer(done)


if __name__ == "__main__":
    main()
