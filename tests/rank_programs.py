"""What ranks run in tests: small trainings whose every sample, loss and weight is handed back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor

import drivetrain as dt
from drivetrain.engine.objective import call_model
from drivetrain.engine.optimizers import OptimizerSpec, Schedule
from drivetrain.engine.settings import CheckpointPolicy
from drivetrain.telemetry.events import StepEvent
from drivetrain.telemetry.reader import read_events
from rank_tasks import TASKS, Net, Points, SmallTask

GLOBAL_BATCH = 8  # which 3 does not divide
EVALUATED = (1, 7)  # samples: fewer than ranks, and a number that nothing divides


def train(
    *,
    steps: int,
    task: str = "points",
    output: str | None = None,
    save_every: int | None = None,
    every_minutes: float | None = None,
    keep: int = 10,
    pause_s: float = 0.0,
    weight_decay: float = 0.01,
    seed: int = 3,
    only_first_reads_loss: bool = False,
    evaluate_every: int | None = None,
    shuffle: bool = True,
    net: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    optimizer: str = "adamw",
    own_loop: bool = False,
    lr: float = 0.01,
    device: str = "cpu",
    losses: list[float] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Trains `steps` steps; the ids, parameters, losses and gradient norms of each, evaluations by step and
    number of samples, the step events of this rank (with an `output`), and the final weights and buffers."""
    small = TASKS[task]
    run = dt.Run(
        global_batch=GLOBAL_BATCH,
        seed=seed,
        device=device,
        output=Path(output) if output else None,
        checkpoint=CheckpointPolicy(every_steps=save_every, every_minutes=every_minutes, keep=keep),
        **settings,
    )
    seen: list[Any] = []
    losses = [] if losses is None else losses
    norms: list[float | None] = []
    evaluations: dict[tuple[int, int], dict[str, float]] = {}
    saved: list[int] = []
    with run:
        state = run.setup(
            lambda: small.build_model(**small.defaults | (net or {})),
            OptimizerSpec(name=optimizer, lr=lr, weight_decay=weight_decay, momentum=0.9),
            Schedule(name="cosine", total_steps=40, warmup_steps=4),
        )
        first_step = state.step
        for step in run.stream(
            small.build_data(**(data or {})),
            steps=steps,
            draw=small.draw,
            render=small.render,
            shuffle=shuffle,
            loader_cost="memory",
        ):
            for micro in step.micro_batches:
                valid = micro.positions >= 0
                seen.append(
                    (
                        step.index,
                        micro.positions[valid].tolist(),
                        micro.ids[valid].tolist(),
                        micro.params[valid].tolist() if micro.params is not None else None,
                    )
                )
            if own_loop:
                out = _own_step(run, state, step, small)
            else:
                out = run.train_step(state, step, small.objective)
            if run.world.rank == 0 or not only_first_reads_loss:
                losses.append(out.loss)
                norms.append(out.grad_norm)
            if run.checkpoint_if_due(state, step) is not None:
                saved.append(state.step)
            if evaluate_every and state.step % evaluate_every == 0:
                for size in EVALUATED:
                    evaluations[state.step, size] = _evaluate(run, state, small, size)
            time.sleep(pause_s)
        weights = {name: whole(t) for name, t in state.module.state_dict().items()}
        ema = {name: whole(t) for name, t in state.ema.weights.items()} if state.ema else {}
        scale = state.scaler.get_scale() if state.scaler else None
    return {
        "first_step": first_step,
        "seen": seen,
        "losses": losses,
        "norms": norms,
        "evaluations": evaluations,
        "events": _step_events(run),
        "saved": saved,
        "weights": weights,
        "ema": ema,
        "scale": scale,
        "notes": run.notes,
        "accumulation": run.plan.accumulation,
        "copies": run.world.size // run.layout.num_data_ranks,
    }


def _evaluate(run: dt.Run, state: Any, small: SmallTask, size: int) -> dict[str, float]:
    return run.evaluate(
        state,
        small.build_data(num_samples=size),
        small.objective,
        small.build_metrics(),
        batch=2,
        render=small.render,
        update=small.update,
        loader_cost="memory",
    )


def _step_events(run: dt.Run) -> list[StepEvent]:
    if run.run_dir is None:
        return []
    return [e for e in read_events(run.run_dir.rank_events(run.world.rank)) if isinstance(e, StepEvent)]


def whole(tensor: Tensor) -> Tensor:
    """A copy of all of a tensor that may be sharded. Called by all ranks."""
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().cpu().clone()


def _own_step(run: dt.Run, state: Any, step: Any, small: SmallTask) -> Any:
    objective = small.objective
    with run.step(state, step, objective.weight) as scope:
        for micro in scope.micro_batches():
            losses = objective.loss(call_model(state.model, objective.inputs(micro)), micro)
            scope.backward((losses * micro.weight).sum())
        scope.clip(0.5)
        return scope.apply()


def samples_by_step(results: list[dict[str, Any]]) -> dict[int, list[tuple[int, int, list[float]]]]:
    """Each global batch over all ranks: (position, id, parameters), in order of position. A sample that ranks
    see together stands once."""
    steps: dict[int, list[tuple[int, int, list[float]]]] = {}
    for result in results:
        for index, positions, ids, params in result["seen"]:
            rows = zip(positions, ids, params or [[]] * len(ids), strict=True)
            steps.setdefault(index, []).extend(rows)
    return {index: sorted(rows)[:: results[0]["copies"]] for index, rows in steps.items()}


def failing(expected: str, **arguments: Any) -> str:
    """Runs `train`, which must raise the exception called `expected`; returns its text."""
    try:
        train(**arguments)
    except Exception as error:
        if type(error).__name__ != expected:
            raise
        return str(error)
    raise AssertionError(f"{expected} was not raised")


def refused(**arguments: Any) -> str:
    """Runs `train`, which must raise `InputError` before any step; returns its text."""
    losses: list[float] = []
    try:
        train(losses=losses, **arguments)
    except dt.InputError as error:
        if losses:
            raise AssertionError(f"refused only after {len(losses)} steps: {error}") from error
        return str(error)
    raise AssertionError(f"not refused: {arguments}")


def train_with_full_disk(*, output: str, fill: str) -> tuple[str, str]:
    """Saves at step 2, then finds the disk full at step 4; returns the error and the last good checkpoint."""
    filler = Path(fill)
    run = dt.Run(global_batch=GLOBAL_BATCH, seed=3, device="cpu", output=Path(output))
    objective = dt.Objective(loss=lambda out, micro: dt.cross_entropy(out, micro.y))
    state = run.setup(Net, OptimizerSpec(lr=0.01))
    message = ""
    for step in run.stream(Points(), steps=6, loader_cost="memory"):
        run.train_step(state, step, objective)
        if state.step == 2:
            run.save(state)
        if state.step == 4:
            if run.world.rank == 0:
                _fill(filler)
            run.world.gather(None)
            try:
                run.save(state)
            except dt.CheckpointError as error:
                message = str(error)
            run.world.gather(None)
            if run.world.rank == 0:
                filler.unlink()
    run.end()
    return message, os.path.realpath(Path(output) / "checkpoints" / "latest")


def _fill(path: Path) -> None:
    """Writes until the file system has no room left."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
