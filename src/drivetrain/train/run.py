"""`Run`: one training run, as a library. The trainer and people's own loops use the same one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch

from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.data.evaluation import EvalLoader
from drivetrain.data.fingerprint import explain_change, fingerprint
from drivetrain.data.stream import Stream
from drivetrain.data.workers import LoaderPlan, plan_loader
from drivetrain.engine.checkpoint.load import Loaded, find_checkpoint, load_checkpoint
from drivetrain.engine.checkpoint.save import Saved, save_checkpoint
from drivetrain.engine.control import ClusterWord, ControlChannel, WeightTotals
from drivetrain.engine.objective import Objective
from drivetrain.engine.precision import apply_matmul_mode, choose_precision
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import BuildModel, BuildOptimizer, LearningRateFactor, TrainState
from drivetrain.engine.step import StepContext, StepOutput, StepScope, forward_loss
from drivetrain.engine.strategies import load_strategy
from drivetrain.engine.strategies.base import Build
from drivetrain.engine.world import open_world
from drivetrain.hardware.cpu import usable_cpus
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError, NonFiniteLossError
from drivetrain.spec.parts import StepPart
from drivetrain.spec.rank_env import read_rank_env
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import CheckpointEvent, RunStarted
from drivetrain.telemetry.ranks.step_clock import StepClock
from drivetrain.train.evaluate import evaluate, update_with_targets
from drivetrain.train.recorder import Recorder, StepFacts

RUN_DIR_VARIABLE = "DRIVETRAIN_RUN_DIR"


def _constant(step: int) -> float:  # noqa: ARG001 - the factor of every step
    return 1.0


class Run:
    """One training run on however many ranks this process was started among (one, if by hand).

        run = Run(global_batch=1024, seed=0)
        state = run.setup(build_model, build_optimizer, schedule)
        for step in run.stream(dataset, steps=1000):
            out = run.train_step(state, step, objective)

    Every method that is not a plain reader is called by all ranks, in the same order. Settings are those of
    `RunSettings`, given as one object, by name, or both.

    Raises:
        InputError: settings that cannot run here; all reasons at once, before anything starts.
    """

    def __init__(self, settings: RunSettings | None = None, /, *, log_every_steps: int = 10, **options: Any) -> None:
        settings = (settings or RunSettings()).changed(**options)
        if settings.output is None and os.environ.get(RUN_DIR_VARIABLE):
            settings = settings.changed(output=Path(os.environ[RUN_DIR_VARIABLE]))
        self.settings = settings
        _set_determinism(settings)
        self.world = open_world(read_rank_env(os.environ), device=settings.device, timeout_s=settings.timeout_s)
        self.strategy = load_strategy(settings.strategy, world_size=self.world.size)
        refusals = self.strategy.refusals(settings, self.world)
        if refusals:
            raise InputError(f"strategy {self.strategy.name}", "; ".join(refusals), "change what is named")
        self.precision = choose_precision(settings.precision, self.world.device)
        apply_matmul_mode(self.precision)
        self.data_rank, num_data_ranks = self.strategy.data_place(self.world)
        self.plan = plan_batches(
            global_batch=settings.global_batch, num_data_ranks=num_data_ranks, micro_batch=settings.micro_batch
        )
        self.run_dir = RunDir(Path(settings.output)) if settings.output is not None else None
        self.recorder = Recorder(self.run_dir, self.world, log_every_steps=log_every_steps)
        self.resumed: Loaded | None = None
        self.notes: list[str] = [f"precision {self.precision.name}: {self.precision.reason}"]
        self._clock = StepClock(self.world.device)
        self._control = ControlChannel(self.world, settings.timeout_s)
        self._totals = WeightTotals(self.world, settings.timeout_s)
        self._stream: RunStream | None = None
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._save_asked = False
        self._is_warm = False
        self._paused = True
        self._ended = False

    # -- set-up -------------------------------------------------------------------------------------------

    def setup(
        self, build_model: BuildModel, build_optimizer: BuildOptimizer, schedule: LearningRateFactor = _constant
    ) -> TrainState:
        """Builds model and optimizer, and resumes them where `settings.resume` says.

        Args:
            build_model: makes the model; every rank calls it after the same seed.
            build_optimizer: makes the optimizer from the bare model.
            schedule: the learning rate's factor for a step, counted from 0.

        Raises:
            InputError, CheckpointError: see `engine.checkpoint.load`.
        """
        build = Build(
            model=build_model,
            optimizer=build_optimizer,
            schedule=schedule,
            settings=self.settings,
            precision=self.precision,
            world=self.world,
        )
        state = self.strategy.setup(build)
        path, notes = find_checkpoint(self.settings.resume, self.run_dir, self.world)
        self.notes += notes
        if path is not None:
            self.resumed = load_checkpoint(state, self.world, path)
            self.notes += [f"resumed from {path} at step {state.step}", *self.resumed.notes]
            self._check_resumed_batch(path)
            self._saved_step = state.step
        return state

    def _check_resumed_batch(self, path: Path) -> None:
        assert self.resumed is not None
        was, now = self.resumed.facts.get("global_batch"), self.settings.global_batch
        if was is not None and was != now:
            raise InputError(
                f"global batch {now}",
                f"{path} was trained with {was}; the stream of samples would not go on where it stopped",
                f"--global-batch {was}",
            )

    def stream(
        self,
        dataset: Any,
        *,
        steps: int | None = None,
        draw: Callable[..., Any] | None = None,
        render: Callable[..., Any] | None = None,
        shuffle: bool = True,
        loader_cost: Literal["memory", "decode"] = "decode",
    ) -> RunStream:
        """The batches of `dataset` from where the state stands, for this rank; call it after `setup`.

        Args:
            dataset: any map-style data set.
            steps: where to end, counted from the run's first step; None never ends.
            draw, render: augmentation, see `drivetrain.Task`.
        """
        if len(dataset) == 0:
            raise InputError(f"training on {type(dataset).__name__}", "it has no samples", "check the data")
        loader = self._plan_loader(loader_cost)
        self._stream = RunStream(
            self,
            dataset,
            loader=loader,
            steps=steps,
            draw=draw,
            render=render,
            shuffle=shuffle,
        )
        return self._stream

    def _plan_loader(self, cost: Literal["memory", "decode"]) -> LoaderPlan:
        return plan_loader(
            workers=self.settings.workers,
            prefetch=self.settings.prefetch,
            pin_memory=self.settings.pin_memory,
            num_cpus=usable_cpus().count,
            local_world_size=self.world.env.local_world_size,
            cost=cost,
            device_type=self.world.device.type,
        )

    # -- the loop -----------------------------------------------------------------------------------------

    def train_step(self, state: TrainState, step: StepBatch, objective: Objective) -> StepOutput:
        """One optimizer step: forward, backward, reduction, clipping, update.

        Raises:
            NonFiniteLossError: a loss was NaN or infinite some steps ago, on some rank; raised by all.
        """
        self._warm_up(state, step, objective)
        scope = StepScope(
            self._context(),
            state,
            step,
            weight_of=objective.weight_of,
            static_total=self._static_total(own_weight=objective.weight is not None),
        )
        with scope:
            self.strategy.run_micro_batches(state, scope, objective)
            if self.settings.clip_norm is not None:
                scope.clip(self.settings.clip_norm)
            output = scope.apply()
        self._after_step(step, output)
        return output

    def step(
        self, state: TrainState, step: StepBatch, weight: Callable[[MicroBatch], float] | None = None
    ) -> OwnStep:
        """One step whose inner loop is the caller's: see `StepScope`.

            with run.step(state, step) as s:
                for micro in s.micro_batches():
                    s.backward(my_loss_sum(state.model, micro))
                s.clip(1.0)
                s.apply()

        Args:
            weight: the weight of a micro-batch's loss sum, known before its forward; None counts samples.
        """
        scope = OwnStep(
            self._context(),
            state,
            step,
            weight_of=weight or (lambda micro: micro.num_valid),
            static_total=self._static_total(own_weight=weight is not None),
        )
        scope.when_applied = lambda output: self._after_step(step, output)
        return scope

    def _context(self) -> StepContext:
        stream = self._stream
        if stream is None:
            raise RuntimeError("a step without run.stream(): the batches must come from it")
        return StepContext(
            world=self.world,
            strategy=self.strategy,
            precision=self.precision,
            clock=self._clock,
            control=self._control,
            totals=self._totals,
            seed=self.settings.seed,
            to_device=stream.to_device,
            data_wait_s=lambda: stream.last_wait_s,
            save_due=self._is_save_due_by_clock,
        )

    def _static_total(self, *, own_weight: bool) -> float | None:
        is_static = self.settings.on_bad_sample == "fail" and not own_weight
        return float(self.settings.global_batch) if is_static else None

    def _warm_up(self, state: TrainState, step: StepBatch, objective: Objective) -> None:
        """Once a start: lets the strategy settle, leaving weights, buffers and generators as they were."""
        if self._is_warm:
            return
        self._is_warm = True
        micro = self._stream.to_device(step.micro_batches[0]) if self._stream else step.micro_batches[0]
        buffers = {name: b.detach().clone() for name, b in state.module.named_buffers()}

        def forward_backward() -> None:
            forward_loss(state, objective, micro).backward()  # type: ignore[no-untyped-call]

        devices = [self.world.device] if self.world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            notes = self.strategy.warm_up(state, forward_backward)
        with torch.no_grad():
            for name, buffer in state.module.named_buffers():
                buffer.copy_(buffers[name])
        for note in notes:
            self.recorder.message(note, "warning")
        self._clock.start_step(step.index, after_pause=True)

    def _after_step(self, step: StepBatch, output: StepOutput) -> None:
        skipped = [sample for micro in step.micro_batches for sample in micro.skipped]
        for sample in skipped:
            self.recorder.skipped(sample.source, sample.reason, step.index + 1)
        facts = StepFacts(
            index=step.index,
            position=step.position + self.settings.global_batch,
            num_samples=sum(micro.size for micro in step.micro_batches),
            num_skipped=len(skipped),
            lr=output.lr,
        )
        words = self._control.take_due()
        self.recorder.step(facts, self._clock.pop_finished(), words)
        self._act(words)

    def _act(self, words: Any) -> None:
        """What all ranks decide from the same words at the same step."""
        for word in words:
            self._save_asked = self._save_asked or word.save
            _check_finite(word, self.run_dir, has_scaler=self.precision.uses_scaler)

    def settle(self) -> None:
        """Waits until every step so far is known to be good on all ranks."""
        words = self._control.drain()
        self.recorder.late(self._clock.pop_finished(), words)
        self._act(words)

    # -- checkpoints --------------------------------------------------------------------------------------

    def checkpoint_if_due(self, state: TrainState, step: StepBatch) -> Saved | None:
        """Saves if the policy says so at this step; by time, all ranks agree through the control word."""
        policy = self.settings.checkpoint
        by_step = policy.every_steps is not None and (step.index + 1) % policy.every_steps == 0
        return self.save(state) if by_step or self._save_asked else None

    def save(self, state: TrainState) -> Saved | None:
        """Saves now; None without a run directory, or where this step is saved already.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are untouched.
            NonFiniteLossError: a step so far was not finite; nothing was written.
        """
        self._save_asked = False
        if self.run_dir is None or state.step == self._saved_step:
            return None
        self._mark(StepPart.HOST)
        self.settle()
        saved = save_checkpoint(
            state, self.world, self.run_dir, facts=self._facts(), keep=self.settings.checkpoint.keep
        )
        self._saved_at, self._saved_step = time.monotonic(), state.step
        self._mark(StepPart.CHECKPOINT)
        if self.world.rank == 0:
            self.recorder.write(
                CheckpointEvent(
                    step=saved.step, path=str(saved.path), seconds=saved.seconds, bytes=saved.num_bytes
                )
            )
        return saved

    def _facts(self) -> dict[str, Any]:
        stream = self._stream
        return {
            "global_batch": self.settings.global_batch,
            "seed": self.settings.seed,
            "strategy": self.strategy.name,
            "data": stream.fingerprint if stream is not None else None,
            "num_samples": stream.num_samples if stream is not None else None,
        }

    def _is_save_due_by_clock(self) -> bool:
        minutes = self.settings.checkpoint.every_minutes
        return minutes is not None and self.world.rank == 0 and time.monotonic() - self._saved_at >= 60 * minutes

    # -- evaluation and the end ---------------------------------------------------------------------------

    def evaluate(
        self,
        state: TrainState,
        dataset: Any,
        objective: Objective,
        metrics: Mapping[str, Any],
        *,
        batch: int | None = None,
        render: Callable[..., Any] | None = None,
        update: Callable[[Any, Any, MicroBatch], None] = update_with_targets,
        loader_cost: Literal["memory", "decode"] = "decode",
    ) -> dict[str, float]:
        """Evaluates over all ranks, each sample counted once, with the averaged weights where there are any.

        Args:
            metrics: torchmetrics metrics by name; `loss` is added.
            batch: samples a rank runs at once; None takes the micro-batch.
        """
        self._pause()
        loader = EvalLoader(
            dataset,
            batch=batch or self.plan.micro_batch,
            rank=self.data_rank,
            num_ranks=self.plan.num_data_ranks,
            render=render,
            loader=self._plan_loader(loader_cost),
            on_bad_sample=self.settings.on_bad_sample,
        )
        return evaluate(state, self.world, loader, objective, metrics, update=update)

    def started(self, *, name: str, total_steps: int, start_step: int, sample_unit: str) -> None:
        """Announces the run: what is trained, where and how."""
        devices = self.world.gather(_device_name(self.world.device))
        stream = self._stream
        assert stream is not None
        if self.world.rank != 0:
            return
        self.recorder.write(
            RunStarted(
                name=name,
                strategy=self.strategy.name,
                devices=tuple(devices),
                precision=self.precision.name,
                total_steps=total_steps,
                num_samples=stream.num_samples,
                global_batch=self.settings.global_batch,
                accumulation=self.plan.accumulation,
                micro_batch=self.plan.micro_batch,
                world_size=self.world.size,
                shares=tuple(len(self.plan.share(r)) for r in range(self.plan.num_data_ranks)),
                batch=self.plan.describe(),
                loader=stream.loader.reason,
                notes=tuple(self.notes),
                start_step=start_step,
                sample_unit=sample_unit,
            )
        )

    def end(self, state: TrainState) -> None:
        """Ends a good run: the last words are heard, events closed, the process group left."""
        self.settle()
        self._pause()
        self.recorder.late(self._clock.pop_finished(), ())
        self.recorder.end("done", state.step)
        self.close()

    def fail(self, error: BaseException, step: int) -> None:
        """Records how the run failed. Says nothing to other ranks: they may be gone."""
        if not self._ended:
            self._ended = True
            self.recorder.end("failed", step, str(error) or type(error).__name__)

    def close(self) -> None:
        """Stops the loader's processes and leaves the process group."""
        self._ended = True
        if self._stream is not None:
            self._stream.close()
        self.world.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error, -1)
        elif not self._ended:
            self.settle()
            self.recorder.end("done", self._stream.next_step if self._stream else 0)
            self.close()

    # -- the clock ----------------------------------------------------------------------------------------

    def _mark(self, part: StepPart) -> None:
        if not self._paused:
            self._clock.mark(part)

    def _pause(self) -> None:
        """Ends the open step, so that what follows counts to none."""
        if not self._paused:
            self._clock.end_step()
            self._paused = True

    def _begin_step(self, index: int) -> None:
        if self._paused:
            self._clock.start_step(index, after_pause=True)
        else:
            self._clock.end_step()
            self._clock.start_step(index)
        self._paused = False


class OwnStep(StepScope):
    """A step whose inner loop is the caller's; tells the run when it was applied."""

    when_applied: Callable[[StepOutput], None]

    def apply(self) -> StepOutput:
        output = super().apply()
        self.when_applied(output)
        return output


class RunStream:
    """The batches of one rank, measured: iterate over it once."""

    def __init__(
        self,
        run: Run,
        dataset: Any,
        *,
        loader: LoaderPlan,
        steps: int | None,
        draw: Callable[..., Any] | None,
        render: Callable[..., Any] | None,
        shuffle: bool,
    ) -> None:
        self.loader = loader
        self.num_samples = len(dataset)
        self.fingerprint = fingerprint(dataset)
        self.last_wait_s = 0.0
        self._run = run
        facts = run.resumed.facts if run.resumed is not None else {}
        self.next_step = int(facts.get("step", 0))
        if facts.get("data") not in (None, self.fingerprint):
            run.notes.append(explain_change(facts, self.fingerprint, self.num_samples))
        self._stream = Stream(
            dataset,
            plan=run.plan,
            data_rank=run.data_rank,
            seed=run.settings.seed,
            start_position=int(facts.get("position", 0)),
            stop_step=steps,
            draw=draw,
            render=render,
            on_bad_sample=run.settings.on_bad_sample,
            loader=loader,
            device=run.world.device,
            shuffle=shuffle,
        )

    def to_device(self, micro: MicroBatch) -> MicroBatch:
        return self._stream.to_device(micro)

    def close(self) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[StepBatch]:
        batches = iter(self._stream)
        while True:
            self._run._begin_step(self.next_step)
            started = time.perf_counter()
            batch = next(batches, None)
            if batch is None:
                return
            self.last_wait_s = time.perf_counter() - started
            self._run._mark(StepPart.DATA_WAIT)
            self.next_step = batch.index + 1
            yield batch


def _check_finite(word: ClusterWord, run_dir: RunDir | None, *, has_scaler: bool) -> None:
    do = "lower the learning rate, clip the gradient (optim.clip_norm), or use --precision bf16 or fp32"
    if run_dir is not None:
        do += f"; the last good checkpoint is {run_dir.latest}"
    if word.nonfinite_ranks:
        first = word.nonfinite_ranks[0]
        raise NonFiniteLossError(
            step=word.step + 1, ranks=word.nonfinite_ranks, what="the loss", value=word.loss_sums[first], do=do
        )
    # With a scaler an infinite gradient is ordinary: the step is skipped and the scale lowered.
    if word.grad_norm is not None and not has_scaler and word.grad_norm - word.grad_norm != 0:
        raise NonFiniteLossError(
            step=word.step + 1, ranks=(0,), what="the gradient's norm", value=word.grad_norm, do=do
        )


def _set_determinism(settings: RunSettings) -> None:
    if settings.deterministic:
        # cuBLAS reads this when its first handle is made; torch refuses to be deterministic without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not settings.deterministic


def _device_name(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"
