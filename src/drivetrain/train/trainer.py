"""The trainer: a run file's settings and a task become a finished run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import torch

from drivetrain.config import advice
from drivetrain.config.dump import write
from drivetrain.config.fitted_batch import fitted_micro_batch
from drivetrain.config.schema import RunConfig
from drivetrain.data.labels import CheckedLabels
from drivetrain.data.stream import check_map_style
from drivetrain.engine.optimizers import OptimizerSpec, Schedule
from drivetrain.engine.settings import CheckpointPolicy, RunSettings
from drivetrain.engine.state import TrainState
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.sinks.table import SinkRequest, open_sinks
from drivetrain.train.run import Run
from drivetrain.train.stream import RunStream
from drivetrain.train.task import Task
from drivetrain.train.task_by_kind import task_of

# ResNet-50 on an H200: compiling takes about a minute and saves 17 ms of a 54 ms step of 256 images.
_COMPILE_REPAYS_AFTER_STEPS = 4000


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """How training ended: steps done, the last evaluation's metrics (empty without evaluation data), and what
    the process is to exit with: 75 where the run was asked to stop before its end, with its state saved."""

    steps: int
    metrics: dict[str, float]
    exit_code: int = 0


class Trainer:
    """Trains a task as a run file says. Made and used by all ranks.

    Args:
        config: the run file, resolved; see `drivetrain.config`.
        task: what to train; None makes it from the run file.
        output: the run directory; None takes the run file's, or writes nothing.
    """

    def __init__(self, config: RunConfig, task: Task | None = None, *, output: Path | None = None) -> None:
        self.config = config
        self.task = task or task_of(config)
        check_map_style(self.task.train_data)
        if self.task.eval_data is not None:
            check_map_style(self.task.eval_data)
        num_samples = len(self.task.train_data)
        self.steps_per_epoch = num_samples / config.global_batch
        self.total_steps = _total_steps(config, num_samples)
        self.compiles = _compiles(config, self.total_steps)
        folder = output or (Path(config.output) if config.output else None)
        self.run = Run(
            run_settings(
                config,
                folder,
                self.steps_per_epoch,
                compiles=self.compiles,
                static_graph=self.task.static_graph,
            ),
        )

    def fit(self) -> FitResult:
        """Trains to the end. Called by all ranks, once.

        Raises:
            InputError, BadSampleError, NonFiniteLossError, CheckpointError: see there.
        """
        run, config, task = self.run, self.config, self.task
        try:
            state, data = self.begin()
            if run.world.rank == 0 and run.run_dir is not None:
                # Only now: what was refused above must not overwrite what an earlier start trained with.
                write(config, run.run_dir.config, run.notes)
            self._open_sinks(state)
            self._metrics = task.build_metrics()
            metrics: dict[str, float] = {}
            # The start before may have ended between the save and the evaluation of this step.
            if state.step and self._is_evaluation_due(state.step) and not run.has_evaluated(state.step):
                metrics = self._evaluate(state)
            for step in data:
                run.train_step(state, step, task.objective)
                run.checkpoint_if_due(state, step)
                if self._is_evaluation_due(state.step):
                    metrics = self._evaluate(state)
            if not metrics and not run.is_stopping:
                metrics = self._evaluate(state)
            run.save(state)
            run.end()
        except BaseException as error:
            run.fail(error)
            raise
        return FitResult(steps=state.step, metrics=metrics, exit_code=run.exit_code)

    def begin(self) -> tuple[TrainState, RunStream]:
        """Model, optimizer and the batches: what `fit` begins with, for those whose loop is their own. Called
        by all ranks, once.

        Raises:
            InputError, CheckpointError: see there.
        """
        run, config, task = self.run, self.config, self.task
        schedule = self._schedule()
        run.notes += advice.warm_up(schedule.warmup_steps, self.total_steps)
        state = run.setup(task.build_model, task.build_optimizer or optimizer_of(config), schedule)
        run.notes += task.notes
        data = run.stream(
            self._checked(task.train_data),
            steps=self.total_steps,
            draw=task.draw,
            render=task.render,
            shuffle=config.data.shuffle,
            loader_cost=task.loader_cost,
            sample_unit=task.sample_unit,
        )
        return state, data

    def _checked(self, dataset: Any) -> Any:
        num_classes = self.task.num_classes
        return dataset if num_classes is None else CheckedLabels(dataset, num_classes)

    def _schedule(self) -> Schedule:
        config = self.config.schedule
        warmup = config.warmup_steps
        if warmup is None:
            warmup = round(config.warmup_epochs * self.steps_per_epoch)
        return Schedule(
            name=config.name,
            total_steps=self.total_steps,
            warmup_steps=warmup,
            step_size=max(1, round(config.step_epochs * self.steps_per_epoch)),
            gamma=config.gamma,
            min_factor=config.min_factor,
        )

    def _open_sinks(self, state: TrainState) -> None:
        run, telemetry = self.run, self.config.telemetry
        if run.world.rank != 0 or run.run_dir is None:
            return
        names = [
            name
            for name, wanted in (("csv", telemetry.csv), ("tensorboard", telemetry.tensorboard))
            if wanted
        ]
        if telemetry.wandb != "off":
            names.append("wandb")
        request = SinkRequest(
            run_dir=run.run_dir,
            start_step=state.step,
            config=self.config.model_dump(mode="json"),
            wandb_mode=telemetry.wandb,
            wandb_project=telemetry.wandb_project,
        )
        run.recorder.feed(
            open_sinks(names, request, on_warning=lambda text: run.recorder.message(text, "warning"))
        )

    def _is_evaluation_due(self, step: int) -> bool:
        """After `step` steps: at the end, every so many steps, and at the first step past an epoch's end."""
        config = self.config.evaluate
        if self.task.eval_data is None:
            return False
        if step == self.total_steps:
            return True
        if config.every_steps is not None and step % config.every_steps == 0:
            return True
        if config.every_epochs is None:
            return False
        span = config.every_epochs * self.steps_per_epoch
        return math.floor(step / span) > math.floor((step - 1) / span)

    def _evaluate(self, state: TrainState) -> dict[str, float]:
        task, run = self.task, self.run
        if task.eval_data is None:
            return {}
        if run.is_stopping:
            run.postpone_evaluation()
            return {}
        return run.evaluate(
            state,
            self._checked(task.eval_data),
            task.eval_objective or task.objective,
            self._metrics,
            batch=_number(self.config.evaluate.batch),
            render=task.eval_render,
            update=task.update_metric,
            loader_cost=task.loader_cost,
        )


def run_settings(
    config: RunConfig, output: Path | None, steps_per_epoch: float, *, compiles: bool, static_graph: bool
) -> RunSettings:
    """The run file in the library's terms."""
    return RunSettings(
        name=config.name,
        log_every_steps=config.log_every_steps,
        verify_every_steps=config.verify_every_steps,
        on_nan=config.on_nan,
        on_spike=config.on_spike,
        strategy=config.strategy,
        mesh=config.mesh.degrees(),
        fsdp_reshard_after_forward=_unless_auto(config.fsdp.reshard_after_forward),
        fsdp_cpu_offload=config.fsdp.cpu_offload,
        pipeline_schedule=config.pipeline.schedule,
        pipeline_stages_per_rank=_number(config.pipeline.stages_per_rank),
        activation_checkpointing=config.activation_checkpointing,
        global_batch=config.global_batch,
        micro_batch=_micro_batch(config, output),
        seed=config.seed,
        device=config.device,
        precision=config.precision,
        compile=compiles,
        channels_last=_unless_auto(config.channels_last),
        sync_batchnorm=config.sync_batchnorm,
        static_graph=static_graph,
        deterministic=config.deterministic,
        clip_norm=config.optim.clip_norm,
        ema_decay=config.ema_decay,
        output=output,
        resume=config.resume,
        checkpoint=_checkpoint_policy(config, steps_per_epoch),
        workers=config.data.workers,
        prefetch=config.data.prefetch,
        pin_memory=config.data.pin_memory,
        on_bad_sample=config.data.on_bad_sample,
        timeout_s=config.timeout_s,
    )


def _micro_batch(config: RunConfig, output: Path | None) -> int | None:
    if config.micro_batch != "auto":
        return config.micro_batch
    return fitted_micro_batch(RunDir(output)) if output is not None else None


def _number(value: int | Literal["auto"]) -> int | None:
    return None if value == "auto" else value


def _unless_auto(value: bool | Literal["auto"]) -> bool | None:
    return None if value == "auto" else value


def optimizer_of(config: RunConfig) -> OptimizerSpec:
    options: dict[str, Any] = config.optim.model_dump(exclude={"clip_norm"})
    return OptimizerSpec(**options)


def _total_steps(config: RunConfig, num_samples: int) -> int:
    limits = []
    if config.epochs is not None:
        # In whole numbers: 50 × 1.1 is a little more than 55.
        epochs = Fraction(config.epochs).limit_denominator(1_000_000)
        limits.append(math.ceil(epochs * num_samples / config.global_batch))
    if config.max_steps is not None:
        limits.append(config.max_steps)
    return min(limits)


def _compiles(config: RunConfig, total_steps: int) -> bool:
    if config.compile != "auto":
        return config.compile
    splits_backward = config.strategy == "pipeline" and config.pipeline.schedule == "zero_bubble"
    if config.strategy == "data_parallel" or splits_backward:
        return False  # it cannot be
    return config.device != "cpu" and torch.cuda.is_available() and total_steps >= _COMPILE_REPAYS_AFTER_STEPS


def _checkpoint_policy(config: RunConfig, steps_per_epoch: float) -> CheckpointPolicy:
    every = config.checkpoint.every_steps
    if every is None and config.checkpoint.every_epochs is not None:
        every = max(1, round(config.checkpoint.every_epochs * steps_per_epoch))
    return CheckpointPolicy(
        every_steps=every, every_minutes=config.checkpoint.every_minutes, keep=config.checkpoint.keep
    )
