"""One rank that trains some steps of a run file and says what they took: memory, time, bytes sent.

    drivetrain launch -j 1x2 --module drivetrain.bench.traffic_worker FOLDER RECIPE [--key value …]

Each rank writes FOLDER/rank-00000.json. Flight recorders list collectives; the environment must switch them
on before torch makes a process group: `RECORDER`.
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _distributed_c10d as c10d
from torch.distributed.tensor import DTensor

from drivetrain.bench.traffic import (
    Collective,
    Work,
    expected_bytes,
    parse_record,
    total_by_kind,
)
from drivetrain.config.load import load
from drivetrain.config.overrides import Override
from drivetrain.config.schema import RunConfig
from drivetrain.engine.blocks import blocks_of
from drivetrain.engine.state import TrainState, local_part
from drivetrain.spec.unknown import Unknown
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.run import Run
from drivetrain.train.trainer import Trainer, optimizer_of

RECORDER = {"TORCH_FR_BUFFER_SIZE": "20000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "20000"}
"""What the environment of each rank needs; the second is the name in older versions of torch."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a rank saw; a value that could not be had is Unknown.

    Attributes:
        samples_per_s: of all ranks together.
        state_bytes: weights and optimizer state that this rank keeps.
        peak_bytes: GPUs: allocated by torch at most; CPU: growth of the resident memory from before the model
            was built to its peak.
        sent: bytes that the rank sent a step, by kind of collective.
        expected: by formula.
        other: bytes a step of small collectives between hosts: the control word and weights of losses.
    """

    rank: int
    strategy: str
    layout: str
    num_ranks: int
    device: str
    precision: str
    steps: int
    loss: float
    samples_per_s: float
    step_s: float
    state_bytes: int
    peak_bytes: int | Unknown
    reserved_bytes: int | Unknown
    sent: dict[str, float] | Unknown
    expected: float | Unknown
    other: float | Unknown


def measure(config: RunConfig, *, warm_steps: int = 2, steps: int = 6) -> Measured:
    """Trains `warm_steps`, then `steps` that are measured. Called by all ranks."""
    trainer = Trainer(config)
    run, task = trainer.run, trainer.task
    # Those that exist before the model does carry words between hosts; what a strategy needs it makes itself.
    host_groups = {name for name in _group_sizes() if name != _default_group()}
    memory = _Memory(run.world.device)
    with run:
        state = run.setup(task.build_model, task.build_optimizer or optimizer_of(config))
        data = run.stream(
            task.train_data,
            steps=warm_steps + steps,
            draw=task.draw,
            render=task.render,
            loader_cost=task.loader_cost,
        )
        record = _Record()
        losses = []
        started_s = 0.0
        with _counting_sends(record):
            for step in data:
                if step.index == warm_steps:
                    _settle(run)
                    record.start()
                    started_s = time.perf_counter()
                losses.append(run.train_step(state, step, task.objective))
            _settle(run)
            seconds = time.perf_counter() - started_s
        loss = losses[-1].loss
        recorded = record.collectives()
        work = work_of(run, state)
        return Measured(
            rank=run.world.rank,
            strategy=run.strategy.name,
            layout=run.layout.describe(),
            num_ranks=run.world.size,
            device=run.world.device.type,
            precision=run.precision.name,
            steps=steps,
            loss=loss,
            samples_per_s=steps * config.global_batch / seconds,
            step_s=seconds / steps,
            state_bytes=_state_bytes(state),
            peak_bytes=memory.peak_bytes(),
            reserved_bytes=memory.reserved_bytes(),
            sent=_sent(recorded, run, steps, lambda item: item.group not in host_groups),
            expected=expected_bytes(run.layout, run.world.rank, work),
            other=_sum(_sent(recorded, run, steps, lambda item: item.group in host_groups)),
        )


def work_of(run: Run, state: TrainState) -> Work:
    """The traffic's causes, read from a model as its strategy has placed it."""
    settings, module = run.settings, state.module
    blocks = blocks_of(module)
    in_blocks = {id(p) for block in blocks for p in block.parameters()}
    trained = [p for p in module.parameters() if p.requires_grad]
    reshard = settings.fsdp_reshard_after_forward
    stages = settings.pipeline_stages_per_rank
    several = settings.pipeline_schedule in ("interleaved", "zero_bubble")
    backend = dist.get_backend() if dist.is_initialized() else "none"
    return Work(
        micro_batches=run.plan.accumulation,
        micro_batch=run.plan.micro_batch,
        blocks=tuple(
            tuple(_shape_on_data_axes(p) for p in block.parameters() if p.requires_grad) for block in blocks
        ),
        rest=tuple(_shape_on_data_axes(p) for p in trained if id(p) not in in_blocks),
        tied=_tied(run, module),
        reshards=(True, False) if reshard is None else (reshard, reshard),
        gathered_bytes=_gathered_bytes(run, module),
        activation_bytes=run.precision.autocast_dtype.itemsize if run.precision.autocast_dtype else 4,
        activations=_activations(run, module),
        num_blocks=len(blocks),
        stages_per_rank=stages or (2 if several else 1),
        folds=settings.pipeline_schedule == "zero_bubble",
        has_reduce_scatter="nccl" in backend,
    )


def _shape_on_data_axes(parameter: Tensor) -> tuple[int, ...]:
    """The shape that data ranks share out: the whole one, or a tensor-parallel rank's part of it."""
    shape = list(parameter.shape)
    if isinstance(parameter, DTensor):
        names = parameter.device_mesh.mesh_dim_names or ()
        for axis, size, place in zip(names, parameter.device_mesh.shape, parameter.placements, strict=True):
            if axis == "tp" and place.is_shard():
                dim = getattr(place, "dim", 0)
                shape[dim] = math.ceil(shape[dim] / size)
    return tuple(shape)


def _gathered_bytes(run: Run, module: nn.Module) -> int:
    has_batchnorm = any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())
    dtype = None if has_batchnorm else run.precision.autocast_dtype
    return dtype.itemsize if dtype is not None else 4


def _activations(run: Run, module: nn.Module) -> int | Unknown:
    if not isinstance(module, Gpt):
        return Unknown(f"no formula for the activations of {type(module).__name__}")
    length = getattr(run._stream.source.dataset, "sequence_length", None) if run._stream else None
    return (length or module.config.max_sequence_length) * module.config.width


def _tied(run: Run, module: nn.Module) -> int:
    """Elements of a matrix of which two stages on different ranks have a copy each."""
    if run.layout.pp == 1 or not isinstance(module, Gpt) or not module.config.tied:
        return 0
    if run.settings.pipeline_schedule == "zero_bubble":
        return 0  # the pipeline folds: both ends are on one rank
    place = run.layout.place(run.world.rank)["pp"]
    is_end = place in (0, run.layout.pp - 1)
    return module.config.padded_vocab_size * module.config.width if is_end else 0


def _state_bytes(state: TrainState) -> int:
    tensors = [local_part(p) for p in state.module.parameters()]
    for slots in state.optimizer.state.values():
        tensors += [local_part(value) for value in slots.values() if isinstance(value, Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors)


def _settle(run: Run) -> None:
    """Everything before is done, on all ranks."""
    run.settle()
    if run.world.device.type == "cuda":
        torch.cuda.synchronize(run.world.device)
    run.world.gather(None)


# -- memory ----------------------------------------------------------------------------------------------


class _Memory:
    """The peak since it was made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        _import_what_optimizers_do()
        self._before = _status_bytes("VmRSS")
        self._problem: str | None = None
        try:
            # 5 sets the peak, VmHWM, to what is resident now (proc(5), Linux 4.0).
            Path("/proc/self/clear_refs").write_text("5")
        except OSError as error:
            self._problem = f"the peak of resident memory cannot be reset: {error}"

    def peak_bytes(self) -> int | Unknown:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._problem is not None:
            return Unknown(self._problem)
        return _status_bytes("VmHWM") - self._before

    def reserved_bytes(self) -> int | Unknown:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._device)
        return Unknown("the CPU's allocator reserves nothing")


def _import_what_optimizers_do() -> None:
    """torch's first optimizer imports its compiler, tens of MB that are no strategy's."""
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter], fused=True).step()


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


# -- the record ------------------------------------------------------------------------------------------


class _Record:
    """Collectives since `start`, from torch's flight recorders."""

    def __init__(self) -> None:
        self._start_ns = 0
        self.is_on = False
        self.sends: list[Collective] = []

    def start(self) -> None:
        self._start_ns = time.time_ns()
        self.is_on = True
        self.sends.clear()

    def collectives(self) -> list[Collective] | Unknown:
        """Unknown where the recorders held nothing although ranks must have talked, or had no room."""
        entries = _recorded()
        if not entries:
            return Unknown(f"torch's flight recorder is empty; set {RECORDER} before its ranks start")
        recent = [entry for entry in entries if int(entry["time_created_ns"]) >= self._start_ns]
        # Full is no harm while something from before the start is still in it: none has been pushed out.
        if len(recent) == len(entries) and len(entries) >= int(RECORDER["TORCH_FR_BUFFER_SIZE"]):
            return Unknown("torch's flight recorder was too small for so many collectives")
        return parse_record(recent, _group_sizes()) + self.sends


def _recorded() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    # gloo's and NCCL's are apart; a build without NCCL has no such function.
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(c10d, name, None)
        if dump is not None:
            entries += json.loads(dump() or "{}").get("entries", [])
    unique = {(e["process_group"][0], e["time_created_ns"], e["record_id"]): e for e in entries}
    return list(unique.values())


@contextmanager
def _counting_sends(record: _Record) -> Iterator[None]:
    """gloo's recorder leaves sends out: they are counted where they are made. NCCL's has them."""
    module = dist.distributed_c10d
    plain = module.isend

    def isend(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group")
        if record.is_on and dist.get_backend(group) == "gloo":
            name = group.group_name if group is not None else str(_default_group())
            num_bytes = tensor.numel() * tensor.element_size()
            record.sends.append(
                Collective(
                    kind="send", num_bytes=num_bytes, group=name, group_size=dist.get_world_size(group)
                )
            )
        return plain(tensor, *args, **kwargs)

    module.isend = dist.isend = isend
    try:
        yield
    finally:
        module.isend = dist.isend = plain


def _group_sizes() -> dict[str, int]:
    if not dist.is_initialized():
        return {}
    names: Mapping[Any, str] = dist.distributed_c10d._world.pg_names
    return {name: dist.get_world_size(group) for group, name in names.items()}


def _default_group() -> str | None:
    return dist.group.WORLD.group_name if dist.is_initialized() and dist.group.WORLD is not None else None


def _sent(
    recorded: list[Collective] | Unknown, run: Run, steps: int, is_wanted: Any
) -> dict[str, float] | Unknown:
    if run.world.size == 1:
        return {}  # one rank sends nothing, whatever its collectives are called
    if isinstance(recorded, Unknown):
        return recorded
    totals = total_by_kind(item for item in recorded if is_wanted(item))
    return {kind: total / steps for kind, total in totals.items()}


def _sum(sent: dict[str, float] | Unknown) -> float | Unknown:
    return sent if isinstance(sent, Unknown) else sum(sent.values())


def to_json(measured: Measured) -> dict[str, Any]:
    return {
        name: value.to_json() if isinstance(value := getattr(measured, name), Unknown) else value
        for name in asdict(measured)
    }


def main(arguments: list[str]) -> int:
    folder, recipe, *rest = arguments
    pairs = zip(rest[::2], rest[1::2], strict=True)
    overrides = [
        Override(key=flag.removeprefix("--").replace("-", "_"), text=text, where=flag) for flag, text in pairs
    ]
    measured = measure(load(recipe, overrides))
    path = Path(folder) / f"rank-{measured.rank:05d}.json"
    path.write_text(json.dumps(to_json(measured)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
