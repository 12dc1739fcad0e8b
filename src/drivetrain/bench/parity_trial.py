"""One rank of one trial: trains the recipe with a loop that records what it sees."""

from __future__ import annotations

import dataclasses
import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from drivetrain.bench.parity_fingerprint import fingerprints, gradients_of, parameters_of, sample_digests
from drivetrain.bench.parity_plan import Trial
from drivetrain.bench.parity_records import Piece, RankFacts, RankStep, RecordWriter, Sample
from drivetrain.config.load import load
from drivetrain.config.schema import RunConfig
from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.engine.objective import Objective
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepOutput, StepScope
from drivetrain.engine.strategies.base import Strategy
from drivetrain.spec.errors import ExplainedError, InputError
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.run_dir import RUN_DIR_VARIABLE
from drivetrain.train.run import Run
from drivetrain.train.stream import RunStream
from drivetrain.train.task import Task
from drivetrain.train.trainer import Trainer


def run_trial(trial: Trial, rank: int, num_steps: int) -> int:
    """Trains `num_steps` steps of the trial's run file and writes the record. Called by all its ranks, each
    in a process of its own. Returns the exit code: 0, 2 where the recipe is refused, 1 where it failed."""
    record = RecordWriter(trial.record(rank))
    trainer: Trainer | None = None
    try:
        _take_place(os.environ, trial)
        config = load(trial.config)
        if trial.world_size > 1:
            _open_group(trial, rank, config)
        trainer = Trainer(config, output=trial.run)
        _Recorded(trainer, record, num_steps).train(reverses=trial.reverses)
    except ExplainedError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        if isinstance(error, InputError) and (trainer is None or not trainer.run.has_stepped):
            record.end("refused", _one_line(error))
            return ExitCode.USAGE
        record.end("failed", _one_line(error))
        return ExitCode.FAILED
    except Exception as error:  # noqa: BLE001 - the process's outermost frame
        sys.stderr.write("".join(traceback.format_exception(error)))
        record.end("failed", f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")
        return ExitCode.FAILED
    record.end("done")
    return ExitCode.DONE


def _one_line(error: ExplainedError) -> str:
    return " ".join(f"{error.asked}: {error.found} → {error.do}".split())


def _take_place(environ: MutableMapping[str, str], trial: Trial) -> None:
    """Makes this process one of the trial's ranks, as a launcher would have: the launch may have more."""
    environ["WORLD_SIZE"] = environ["LOCAL_WORLD_SIZE"] = str(trial.world_size)
    # Both are those of the launch, and several trials must not write into one file.
    environ.pop(RUN_DIR_VARIABLE, None)
    environ.pop("TORCHELASTIC_ERROR_FILE", None)


def _open_group(trial: Trial, rank: int, config: RunConfig) -> None:
    """The trial's own process group over the launch's store. `Run` finds it made; it makes the same one, but
    under names in the store that an earlier trial has used."""
    timeout = timedelta(seconds=config.timeout_s)
    on_gpu = config.device != "cpu" and torch.cuda.device_count() > 0
    device = torch.device("cuda", rank) if on_gpu else None
    if device is not None:
        torch.cuda.set_device(device)
    store, _, _ = next(rendezvous("env://", rank, trial.world_size, timeout=timeout))
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=PrefixStore(trial.folder.name, store),
        rank=rank,
        world_size=trial.world_size,
        timeout=timeout,
        device_id=device,
    )


class _Watched:
    """A strategy that shows its gradients when they are reduced and not yet clipped; otherwise the same."""

    def __init__(self, strategy: Strategy, recorded: _Recorded) -> None:
        self._strategy = strategy
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        self._strategy.run_micro_batches(state, scope, objective)
        self._recorded.gradients_are_ready(state)


class _Recorded:
    """The loop of one rank."""

    def __init__(self, trainer: Trainer, record: RecordWriter, num_steps: int) -> None:
        self._trainer = trainer
        self._record = record
        self._num_steps = min(num_steps, trainer.total_steps)
        self._drew_random = False

    def train(self, *, reverses: bool) -> None:
        run, task = self._trainer.run, _unprepared(self._trainer.task)
        self._trainer.task = task
        state, data = self._trainer.begin()
        if reverses:
            _reverse(data)
        run.strategy = _Watched(run.strategy, self)
        self._record.facts(_facts(run, state.module))
        for batch in data:
            samples, pieces = _samples(batch), _pieces(batch, task.objective)
            output = run.train_step(state, batch, task.objective)
            self._record.step(self._step(output, samples, pieces))
            if self._is_printed(output.step):
                self._print_weights(state, output.step + 1)
            if output.step + 1 == self._num_steps:
                break
        run.end()

    def gradients_are_ready(self, state: TrainState) -> None:
        self._drew_random = _has_drawn(self._trainer.run.world.device)
        if state.step == 0:
            # Only now: some strategies make the weights the same on all ranks in their warm-up.
            self._print_weights(state, 0)
        if self._is_printed(state.step):
            self._record.prints(state.step + 1, "gradient", fingerprints(gradients_of(state.module)))

    def _is_printed(self, index: int) -> bool:
        return index in (0, self._num_steps - 1)

    def _print_weights(self, state: TrainState, step: int) -> None:
        self._record.prints(step, "weight", fingerprints(parameters_of(state.module)))
        if step:
            self._record.prints(step, "buffer", fingerprints(_float_buffers(state.module)))

    def _step(self, output: StepOutput, samples: dict[int, Sample], pieces: tuple[Piece, ...]) -> RankStep:
        return RankStep(
            step=output.step + 1,
            samples=samples,
            pieces=pieces,
            loss=output.loss,
            grad_norm=output.grad_norm,
            drew_random=self._drew_random,
        )


class _OneByOne:
    """A data set whose samples are read, although it has prepared batches, which do not depend on samples."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]


def _unprepared(task: Task) -> Task:
    is_prepared = getattr(task.train_data, "prepared", False)
    return dataclasses.replace(task, train_data=_OneByOne(task.train_data)) if is_prepared else task


def _reverse(data: RunStream) -> None:
    """From now on the model gets each micro-batch's samples the other way round."""
    given = data.device_batches

    def reversed_batches(step: StepBatch) -> Iterator[MicroBatch]:
        return (micro.map_tensors(lambda tensor: tensor.flip(0)) for micro in given(step))

    data.device_batches = reversed_batches  # type: ignore[method-assign]


def _samples(batch: StepBatch) -> dict[int, Sample]:
    return {
        position: Sample(id=id_, content=content)
        for micro in batch.micro_batches
        for position, (id_, content) in sample_digests(micro).items()
    }


def _pieces(batch: StepBatch, objective: Objective) -> tuple[Piece, ...]:
    return tuple(
        Piece(size=micro.size, num_valid=micro.num_valid, weight=objective.weight_of(micro))
        for micro in batch.micro_batches
    )


def _facts(run: Run, module: nn.Module) -> RankFacts:
    return RankFacts(
        strategy=run.strategy.name,
        layout=run.layout.describe(),
        batch=run.plan.describe(),
        batch_norms=tuple(
            name
            for name, part in module.named_modules()
            if isinstance(part, _BatchNorm) and (part.training or not part.track_running_stats)
        ),
        dropouts=tuple(
            name for name, part in module.named_modules() if isinstance(part, _DropoutNd) and part.p > 0
        ),
    )


def _float_buffers(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module.named_buffers() if buffer.is_floating_point()]


def _has_drawn(device: torch.device) -> bool:
    """Whether torch's generators have moved since they were seeded, which every micro-batch does."""
    fresh = torch.Generator().manual_seed(torch.initial_seed()).get_state()
    if not torch.equal(fresh, torch.get_rng_state()):
        return True
    if device.type != "cuda":
        return False
    fresh = torch.Generator(device).manual_seed(torch.cuda.initial_seed()).get_state()
    return not torch.equal(fresh, torch.cuda.get_rng_state(device))
