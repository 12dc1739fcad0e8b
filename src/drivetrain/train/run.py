"""`Run`: one training run, as a library. The trainer and people's own loops use the same one.

Long because the whole public interface of a run stands here; what the methods do stands in the modules that
they call.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.data.evaluation import EvalLoader
from drivetrain.data.fingerprint import fingerprint
from drivetrain.data.stream import check_map_style
from drivetrain.data.workers import LoaderPlan, plan_loader
from drivetrain.engine.certificate import FIRST_LINK, odd_ranks, weights_sum
from drivetrain.engine.checkpoint.load import Loaded
from drivetrain.engine.checkpoint.save import Saved
from drivetrain.engine.control import ClusterWord, ControlChannel, WeightTotals
from drivetrain.engine.determinism import set_determinism
from drivetrain.engine.objective import Objective
from drivetrain.engine.precision import apply_matmul_mode, choose_precision
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.state import BuildModel, BuildOptimizer, LearningRateFactor, TrainState
from drivetrain.engine.step import StepContext, StepOutput, StepScope
from drivetrain.engine.strategies import load_strategy
from drivetrain.engine.strategies.base import Build
from drivetrain.engine.warm_up import warm_up
from drivetrain.engine.world import open_world
from drivetrain.hardware.cpu import usable_cpus
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import CorruptionError, InputError, LossSpikeError, NonFiniteLossError
from drivetrain.spec.exit_codes import ExitCode
from drivetrain.spec.layout import plan_layout, strategy_of
from drivetrain.spec.parts import StepPart
from drivetrain.spec.rank_env import read_rank_env
from drivetrain.spec.run_dir import RUN_DIR_VARIABLE, RunDir
from drivetrain.telemetry.events import CheckpointEvent, EvalEvent
from drivetrain.telemetry.reader import read_events
from drivetrain.train.bad_numbers import SkippedSteps, SpikeWatch
from drivetrain.train.certificate_file import CertificateFile
from drivetrain.train.evaluate import UpdateMetric, evaluate, update_with_targets
from drivetrain.train.imports import write_imports
from drivetrain.train.interruption import stop_listening
from drivetrain.train.opening import device_name, run_started
from drivetrain.train.recorder import Recorder, StepFacts
from drivetrain.train.run_clock import RunClock
from drivetrain.train.saver import Saver
from drivetrain.train.stopping import Stopping
from drivetrain.train.stream import RunStream, StreamPlace, StreamSource

LoaderCost = Literal["memory", "decode"]


def _constant(step: int) -> float:  # noqa: ARG001 - the factor of every step
    return 1.0


class Run:
    """One training run on however many ranks this process was started among (one, if by hand).

        run = Run(global_batch=1024, seed=0)
        state = run.setup(build_model, build_optimizer, schedule)
        for step in run.stream(dataset, steps=1000):
            out = run.train_step(state, step, objective)
            run.checkpoint_if_due(state, step)
        run.end()

    Every method is called by all ranks, in the same order. As a context manager it ends itself. Settings are
    those of `RunSettings`, given as one object, by name, or both.

    Raises:
        InputError: settings that cannot run here; all reasons at once, before anything starts.
    """

    def __init__(self, settings: RunSettings | None = None, /, **options: Any) -> None:
        settings = (settings or RunSettings()).changed(**options)
        if settings.output is None and os.environ.get(RUN_DIR_VARIABLE):
            settings = settings.changed(output=Path(os.environ[RUN_DIR_VARIABLE]))
        self.settings = settings
        set_determinism(deterministic=settings.deterministic)
        env = read_rank_env(os.environ)
        name = strategy_of(settings.strategy, env.world_size)
        self.strategy = load_strategy(name)
        self.layout = replace(
            plan_layout(name, env.world_size, settings.mesh),
            folds=settings.pipeline_schedule == "zero_bubble",
        )
        self.world = open_world(
            env,
            device=settings.device,
            timeout_s=settings.timeout_s,
            needs_group=self.strategy.needs_group,
        )
        refusals = self.strategy.refusals(settings, self.layout, self.world.device)
        if refusals:
            raise InputError(f"strategy {self.strategy.name}", "; ".join(refusals), "change what is named")
        self.precision = choose_precision(settings.precision, self.world.device)
        apply_matmul_mode(self.precision)
        self.data_rank = self.layout.data_rank(env.rank)
        self.plan = plan_batches(
            global_batch=settings.global_batch,
            num_data_ranks=self.layout.num_data_ranks,
            micro_batch=settings.micro_batch,
            num_stages=self.layout.pp,
        )
        self.run_dir = RunDir(Path(settings.output)) if settings.output is not None else None
        self.recorder = Recorder(self.run_dir, self.world, log_every_steps=settings.log_every_steps)
        self.notes: list[str] = [f"precision {self.precision.name}: {self.precision.reason}"]
        is_first = self.world.rank == 0
        self._certificate = CertificateFile(self.run_dir.certificate if self.run_dir and is_first else None)
        self._clock = RunClock(self.world.device)
        self._control = ControlChannel(self.world, settings.timeout_s)
        self._totals = WeightTotals(self.world, settings.timeout_s)
        self._resumed: Loaded | None = None
        self._stream: RunStream | None = None
        self._num_steps = 0
        self._latest_timing = (math.nan, math.nan)
        self._stopping = Stopping(self.world)
        self._skipped, self._spikes = SkippedSteps(), SpikeWatch()
        self._evaluation_postponed = False
        self._saver = Saver(settings, self.world, self.run_dir)
        self.has_stepped = False
        self._is_warm = False
        self._said_unsaved = False
        self._is_prepared = False
        self._has_ended = False

    # -- set-up -------------------------------------------------------------------------------------------

    def setup(
        self,
        build_model: BuildModel,
        build_optimizer: BuildOptimizer,
        schedule: LearningRateFactor = _constant,
    ) -> TrainState:
        """Builds model and optimizer, and resumes them where `settings.resume` says.

        Args:
            build_model: makes the model; every rank calls it after the same seed.
            build_optimizer: makes the optimizer from the bare model.
            schedule: the learning rate's factor for a step, counted from 0.

        Raises:
            InputError, CheckpointError: see `engine.checkpoint.load`.
        """
        state = self.strategy.setup(
            Build(
                model=build_model,
                optimizer=build_optimizer,
                schedule=schedule,
                settings=self.settings,
                precision=self.precision,
                world=self.world,
                layout=self.layout,
            )
        )
        self._resumed, notes = self._saver.resume(state)
        facts = self._resumed.facts if self._resumed is not None else {}
        self._certificate.start(state.step, facts.get("certificate", FIRST_LINK))
        self.notes += notes
        self._num_steps = state.step
        return state

    def stream(
        self,
        dataset: Any,
        *,
        steps: int | None = None,
        draw: Callable[..., Any] | None = None,
        render: Callable[..., Any] | None = None,
        shuffle: bool = True,
        loader_cost: LoaderCost = "decode",
        sample_unit: str = "samples",
    ) -> RunStream:
        """The batches of `dataset` from where the state stands, for this rank; call it after `setup`.

        Args:
            dataset: any map-style data set.
            steps: where to end, counted from the run's first step; None never ends.
            draw, render, loader_cost, sample_unit: see `drivetrain.Task`.
        """
        check_map_style(dataset)
        facts = self._resumed.facts if self._resumed is not None else {}
        if facts.get("shuffle", shuffle) != shuffle:
            raise InputError(
                f"shuffle {shuffle}",
                f"the checkpoint was trained with {facts['shuffle']}; other samples would follow",
                f"data.shuffle {str(facts['shuffle']).lower()}",
            )
        if facts.get("steps", steps) != steps:
            what = f"the run now ends after {steps} steps, and was to end after {facts['steps']}"
            self.notes.append(f"{what}: a schedule over the whole run moves with its end")
        self._stream = RunStream(
            StreamSource(
                dataset=dataset,
                # For a folder of files this asks the file system once a file: one rank is enough.
                fingerprint=self.world.gather(fingerprint(dataset) if self.world.rank == 0 else "")[0],
                steps=steps,
                draw=draw,
                render=render,
                shuffle=shuffle,
                loader=self._plan_loader(loader_cost),
                sample_unit=sample_unit,
            ),
            StreamPlace(
                plan=self.plan,
                data_rank=self.data_rank,
                device=self.world.device,
                start_step=facts.get("step", 0),
                start_position=facts.get("position", 0),
                resumed_data=facts.get("data"),
            ),
            self.settings,
            self._clock,
            self._announce,
        )
        return self._stream

    def _plan_loader(self, cost: LoaderCost) -> LoaderPlan:
        return plan_loader(
            workers=self.settings.workers,
            prefetch=self.settings.prefetch,
            pin_memory=self.settings.pin_memory,
            num_cpus=usable_cpus().count,
            local_world_size=self.world.env.local_world_size,
            cost=cost,
            device_type=self.world.device.type,
        )

    def _announce(self, stream: RunStream) -> None:
        """Says what is trained, where and how, when the first batch is asked for."""
        devices = self.world.gather(device_name(self.world.device))
        if self._stopping.agree(math.nan):
            self._begin_stop()
        if stream.change is not None:
            self.notes.append(stream.change)
        if self.world.rank == 0:
            self.recorder.write(
                run_started(
                    self.settings,
                    self.plan,
                    stream,
                    strategy=self.strategy.name,
                    precision=self.precision.name,
                    devices=tuple(devices),
                    notes=tuple(self.notes),
                )
            )

    # -- the loop -----------------------------------------------------------------------------------------

    def train_step(self, state: TrainState, step: StepBatch, objective: Objective) -> StepOutput:
        """One optimizer step: forward, backward, reduction, clipping, update.

        Raises:
            NonFiniteLossError: a loss was NaN or infinite some steps ago, on some rank; raised by all.
        """
        self._warm_up(state, step, objective)
        scope = self._scope(state, step, objective.weight_of, has_own_weight=objective.weight is not None)
        with scope:
            self.strategy.run_micro_batches(state, scope, objective)
            if self.settings.clip_norm is not None:
                scope.clip(self.settings.clip_norm)
            output = scope.apply()
        if not self._is_prepared:
            self._is_prepared = True
            self._saver.prepare(state)
        return output

    def step(
        self, state: TrainState, step: StepBatch, weight: Callable[[MicroBatch], float] | None = None
    ) -> StepScope:
        """One step whose inner loop is the caller's:

            with run.step(state, step) as s:
                for micro in s.micro_batches():
                    s.backward(my_loss_sum(state.model, micro))
                s.clip(1.0)
                s.apply()

        From 3 ranks on, such a run resumes to float tolerance, not bit by bit as with `train_step`: DDP lays
        out its buckets from the first backward, which cannot be run beforehand here.

        Args:
            weight: the weight of a micro-batch's loss sum, known before its forward; None counts samples.
        """
        if self.strategy.owns_backward:
            raise InputError(
                f"run.step under strategy {self.strategy.name}",
                "it runs forward and backward itself, in an order of its own",
                "use run.train_step(state, step, objective)",
            )
        self._warm_up(state, step, None)
        weight_of = weight or (lambda micro: micro.num_valid)
        return self._scope(state, step, weight_of, has_own_weight=weight is not None)

    def _scope(
        self,
        state: TrainState,
        step: StepBatch,
        weight_of: Callable[[MicroBatch], float],
        *,
        has_own_weight: bool,
    ) -> StepScope:
        stream = self._stream
        if stream is None:
            raise RuntimeError("a step without run.stream(): the batches must come from it")
        # Where every sample weighs 1 and none can be skipped, the total is known without asking the others.
        is_static = self.settings.on_bad_sample == "fail" and not has_own_weight
        return StepScope(
            StepContext(
                world=self.world,
                layout=self.layout,
                strategy=self.strategy,
                clock=self._clock,
                control=self._control,
                totals=self._totals,
                seed=self.settings.seed,
                device_batches=stream.device_batches,
                latest_timing=lambda: self._latest_timing,
                save_due=self._saver.is_due_by_clock,
                save_failed=lambda: self._saver.has_failed,
                stop_wish=lambda: self._stopping.wish(self._latest_timing[0]),
                skips_nonfinite=self.settings.on_nan == "skip",
                is_verified=self._is_verified,
                when_applied=self._after_step,
            ),
            state,
            step,
            weight_of=weight_of,
            static_total=float(self.settings.global_batch) if is_static else None,
        )

    def _is_verified(self, num_steps: int) -> bool:
        every = self.settings.verify_every_steps
        return every > 0 and num_steps % every == 0

    def _warm_up(self, state: TrainState, step: StepBatch, objective: Objective | None) -> None:
        if self._is_warm or self._stream is None:
            return
        self._is_warm = True
        micro = self._stream.to_device(step.micro_batches[0])
        is_counted = self.layout.is_counted(self.world.rank)
        for note in warm_up(self.strategy, state, self.world, objective, micro, is_counted=is_counted):
            self.recorder.message(note, "warning")
        self._clock.restart_step(step.index)

    def _after_step(self, step: StepBatch, output: StepOutput) -> None:
        if not self.has_stepped and self.run_dir is not None and self.world.env.local_rank == 0:
            write_imports(self.run_dir.imports)
        self.has_stepped = True
        self._num_steps = step.index + 1
        skipped = [sample for micro in step.micro_batches for sample in micro.skipped]
        for sample in skipped:
            self.recorder.skipped(sample.source, sample.reason, step.index + 1)
        facts = StepFacts(
            index=step.index,
            position=step.position + step.num_samples,
            num_samples=len(self.plan.share(self.data_rank)),
            num_skipped=len(skipped),
            lr=output.lr,
        )
        words, timings = self._control.take_due(), self._clock.pop_finished()
        if timings:
            parts = timings[-1].parts
            # Without the checkpoint: a rate that falls at each save would say nothing about speed.
            step_s = timings[-1].total_s - parts.get(StepPart.CHECKPOINT, 0.0)
            self._latest_timing = (step_s, parts.get(StepPart.DATA_WAIT, 0.0))
        self.recorder.step(facts, timings, words)
        self._act(words)
        self._tell_saved(self._saver.take_finished())

    def _act(self, words: Sequence[ClusterWord]) -> None:
        """What all ranks decide from the same words at the same step."""
        for word in words:
            self._certificate.add(word)
            if word.weights_sums is not None:
                self._refuse_odd_weights(word.step + 1, word.weights_sums)
            if word.save_failed:
                self._saver.finish()  # raises, on every rank
            if word.save:
                self._saver.ask()
            if word.stop and not self._stopping.has_agreed:
                self._stopping.agreed = word.stop
                self._begin_stop()
            self._judge(word)

    def _judge(self, word: ClusterWord) -> None:
        """What is done about a word whose numbers are bad."""
        problem = word.nonfinite(has_scaler=self.precision.uses_scaler)
        is_skipped = problem is not None and self.settings.on_nan == "skip"
        is_too_much = self._skipped.add(is_skipped)
        if problem is not None:
            what, ranks, value = problem
            if not is_skipped or is_too_much:
                raise NonFiniteLossError(
                    step=word.step + 1, ranks=ranks, what=what, value=value, do=self._after_nonfinite()
                )
            if self.world.rank == 0:
                who = ", ".join(map(str, ranks))
                text = f"step {word.step + 1} changed nothing: {what} was {value} (rank {who})"
                self.recorder.message(text, "warning")
        spike = self._spikes.add(word) if self.settings.on_spike != "ignore" else None
        if spike is not None and self.settings.on_spike == "stop":
            raise LossSpikeError(step=spike.step, found=spike.describe(), do=self._after_nonfinite())
        if spike is not None and self.world.rank == 0:
            self.recorder.message(spike.describe(), "warning")

    def _refuse_odd_weights(self, step: int, sums: Sequence[float]) -> None:
        odd = odd_ranks(sums, self.layout)
        if odd:
            do = "go on from the last checkpoint, whose weights were compared, on other hardware"
            raise CorruptionError(step=step, ranks=odd, do=do)

    @property
    def is_stopping(self) -> bool:
        """Whether all ranks have agreed to stop (a signal, the job's time limit): the stream yields no more
        batches. The same on every rank at the same step."""
        return self._stopping.has_agreed

    @property
    def exit_code(self) -> int:
        """What a script exits with after `end`: 75 where the run was stopped with its state saved, else 0."""
        last = self._stream.source.steps if self._stream is not None else None
        is_whole = self._num_steps == last and not self._evaluation_postponed
        return ExitCode.PREEMPTED if self.is_stopping and not is_whole else ExitCode.DONE

    def _begin_stop(self) -> None:
        """All ranks have agreed: the stream ends, and the state is saved where it stands."""
        if self._stream is not None:
            self._stream.stop()
        self._saver.ask()
        if self.world.rank == 0:
            self.recorder.message(f"asked to stop by {self._stopping.reason}: saving, then ending", "warning")

    def _after_nonfinite(self) -> str:
        do = "lower the learning rate, clip the gradient (optim.clip_norm), or use --precision bf16 or fp32"
        if self.run_dir is not None and self.run_dir.latest.exists():
            do += f"; the last good checkpoint is {self.run_dir.latest.resolve()}"
        return do

    def settle(self) -> None:
        """Waits until every step so far is known to be good on all ranks.

        Raises:
            NonFiniteLossError: one was not.
        """
        words = self._control.drain()
        self.recorder.late(self._clock.pop_finished(), words)
        self._act(words)

    # -- checkpoints --------------------------------------------------------------------------------------

    def checkpoint_if_due(self, state: TrainState, step: StepBatch) -> bool:
        """Saves if the policy says so at this step; by time, all ranks agree through the control word.

        Training waits only until the state is copied to host memory; the copy is written meanwhile. Returns
        whether a save was begun.

        Raises:
            CheckpointError: an earlier save could not be written; earlier checkpoints are untouched.
            NonFiniteLossError: a step so far was not finite; nothing was written.
        """
        if self.run_dir is None and not self._said_unsaved:
            self._said_unsaved = True
            self.recorder.message("nothing is saved: the run has no output=FOLDER", "warning")
        if not self._saver.is_due(step.index + 1) or self._saver.has(state):
            return False
        self._begin_save(state)
        return True

    def has_evaluated(self, step: int) -> bool:
        """Whether an earlier start of this run evaluated it after `step` steps. Called by all ranks."""
        done = False
        if self.world.rank == 0 and self.run_dir is not None:
            events = read_events(self.run_dir.rank_events(0), kinds={EvalEvent})
            done = any(isinstance(event, EvalEvent) and event.step == step for event in events)
        return bool(self.world.gather(done)[0])

    def postpone_evaluation(self) -> None:
        """An evaluation is due, but the run is stopping: it is made after the resume."""
        self._evaluation_postponed = True

    def save(self, state: TrainState) -> Saved | None:
        """Saves and waits until it is written; None without a run directory, or if this step is saved.

        Raises:
            CheckpointError: it could not be written; earlier checkpoints are untouched.
            NonFiniteLossError: a step so far was not finite; nothing was written.
        """
        if not self._saver.has(state):
            self._begin_save(state)
        return self._finish_save()

    def _begin_save(self, state: TrainState) -> None:
        self._clock.mark(StepPart.HOST)
        self._finish_save()  # bounds the copies in memory to one
        self.settle()
        self._certificate.flush()
        sums = self.world.gather(float(weights_sum(state.module)))
        self._refuse_odd_weights(state.step, sums)
        self._saver.begin(state, self._facts())
        self._clock.mark(StepPart.CHECKPOINT)

    def _finish_save(self) -> Saved | None:
        """Waits for the save under way, if there is one."""
        self._clock.mark(StepPart.HOST)
        saved = self._saver.finish()
        self._clock.mark(StepPart.CHECKPOINT)
        self._tell_saved(saved)
        return saved

    def _tell_saved(self, saved: Saved | None) -> None:
        if saved is None:
            return
        self._stopping.saved(saved.seconds)
        if self.world.rank == 0:
            self.recorder.write(
                CheckpointEvent(
                    step=saved.step,
                    path=str(saved.path),
                    seconds=self._saver.waited_s,
                    bytes=saved.num_bytes,
                    written_s=saved.seconds,
                )
            )

    def _facts(self) -> dict[str, Any]:
        stream = self._stream
        return {
            "global_batch": self.settings.global_batch,
            "seed": self.settings.seed,
            "strategy": self.strategy.name,
            "steps": stream.source.steps if stream is not None else None,
            "shuffle": stream.source.shuffle if stream is not None else True,
            "data": stream.source.fingerprint if stream is not None else None,
            "num_samples": stream.num_samples if stream is not None else None,
            "certificate": self._certificate.link,
        }

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
        update: UpdateMetric = update_with_targets,
        loader_cost: LoaderCost = "decode",
    ) -> dict[str, float]:
        """Evaluates over all ranks, each sample counted once, with the averaged weights where there are any.

        Where a stop is agreed on meanwhile it ends early, empty, and is due again after the resume.

        Args:
            metrics: torchmetrics metrics by name; `loss` is added.
            batch: samples a rank runs at once; None takes the micro-batch.
            render: prepares a sample.
            update: feeds one metric from the model's output and a micro-batch.
        """
        self._clock.pause()
        started = time.monotonic()
        loader = EvalLoader(
            dataset,
            batch=batch or self.plan.micro_batch,
            rank=self.data_rank,
            num_ranks=self.plan.num_data_ranks,
            render=render,
            loader=self._plan_loader(loader_cost),
            device=self.world.device,
            on_bad_sample=self.settings.on_bad_sample,
        )
        poll = self._stopping.poll()
        results = evaluate(
            state,
            self.world,
            loader.device_batches(),
            objective,
            metrics,
            update=update,
            forwards=self.strategy.evaluation(state),
            is_counted=self.layout.is_counted(self.world.rank),
            is_over=poll,
        )
        poll.close()
        if results is None:
            self.postpone_evaluation()
            self._begin_stop()
            return {}
        if self.is_stopping:  # agreed on in the last batches
            self._begin_stop()
        if self.world.rank == 0:
            num_samples = self._stream.num_samples if self._stream is not None else 0
            self.recorder.write(
                EvalEvent(
                    step=state.step,
                    epoch=state.position / num_samples if num_samples else 0.0,
                    num_samples=len(dataset),
                    metrics=results,
                    seconds=time.monotonic() - started,
                )
            )
            self.recorder.scalars(state.step, {f"eval/{name}": value for name, value in results.items()})
        return results

    def end(self) -> None:
        """Ends a good run: the last words are heard, events closed, the process group left."""
        self.settle()
        self._finish_save()
        self._certificate.flush()
        self._clock.pause()
        self.recorder.late(self._clock.pop_finished(), ())
        if self.exit_code == ExitCode.PREEMPTED:
            self.recorder.end("stopped", self._num_steps, self._stopping.reason)
        else:
            self.recorder.end("done", self._num_steps)
        stop_listening()
        self._has_ended = True
        if self._stream is not None:
            self._stream.close()
        self.world.close()

    def fail(self, error: BaseException) -> None:
        """Records how the run failed. Says nothing to other ranks: they may be gone."""
        if not self._has_ended:
            self._has_ended = True
            self._saver.leave()
            self.recorder.end("failed", self._num_steps, str(error) or type(error).__name__)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.fail(error)
        elif not self._has_ended:
            self.end()
