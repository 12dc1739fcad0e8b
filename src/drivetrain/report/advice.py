"""What to try next: commands that fit what was seen of a run, and that exist."""

from __future__ import annotations

import math
import shlex
from pathlib import Path

from drivetrain.report.phrases import INPUT_BOUND
from drivetrain.report.state import RunState
from drivetrain.report.this_start import learning_rate
from drivetrain.spec.run_dir import RunDir
from drivetrain.telemetry.events import RunStarted


def try_next(
    state: RunState, run_dir: RunDir, *, is_done: bool, saved: Path | None, has_diverged: bool
) -> list[tuple[str, str]]:
    """Purposes and commands, the most useful first."""
    offers: list[tuple[str, str]] = []
    if has_diverged:
        offers += _lower_learning_rate(state, run_dir)
    if not is_done:
        if saved is not None:
            offers.append(("go on from the checkpoint", resume_command(run_dir)))
        return offers
    if has_diverged:
        return offers
    if saved is not None:
        command = f"drivetrain export {shlex.quote(str(run_dir.path))}"
        offers.append(("write the weights as safetensors", command))
    if state.started is not None:
        offers += _faster(state, state.started, run_dir)
        length = _twice_as_long(state, state.started)
        offers.append(("train twice as long, anew", f"{_again(run_dir, 'longer')} {length}"))
    return offers


def resume_command(run_dir: RunDir) -> str:
    """The command that goes on with this run where its last complete checkpoint stands."""
    path = shlex.quote(str(run_dir.path))
    return f"drivetrain train {shlex.quote(str(run_dir.config))} --output {path} --resume auto"


def _lower_learning_rate(state: RunState, run_dir: RunDir) -> list[tuple[str, str]]:
    rate = learning_rate(run_dir, state)
    if rate is None or rate <= 0:
        return []
    purpose = f"a tenth of the learning rate (it was {rate:.3g}), anew"
    return [(purpose, f"{_again(run_dir, 'lower-lr')} --lr {rate / 10:.3g}")]


def _faster(state: RunState, started: RunStarted, run_dir: RunDir) -> list[tuple[str, str]]:
    wait = state.throughput.whole().data_wait_share
    if wait is not None and wait >= INPUT_BOUND:
        now = f" (now {started.loader})" if started.loader else ""
        return [(f"give the input more workers{now}", f"{_again(run_dir, 'workers')} --workers NUMBER")]
    if not _fits_more_processes(state, started):
        return []
    num = 2 * started.world_size
    purpose = f"the same batches on {num} processes, if there are as many devices"
    return [(purpose, f"{_again(run_dir, f'{num}-processes')} --nproc-per-node {num}")]


def _fits_more_processes(state: RunState, started: RunStarted) -> bool:
    """One machine, a global batch that gives each of twice the ranks a sample, and GPUs; processes that share
    a machine's CPUs already get no faster by being more, unless there is only one."""
    hosts = {header.host for header in state.headers.values()}
    if len(hosts) != 1 or started.global_batch < 2 * started.world_size:
        return False
    return started.world_size == 1 or all(device.startswith("cuda") for device in started.devices)


def _twice_as_long(state: RunState, started: RunStarted) -> str:
    """In epochs where the run was a whole number of them, or else in steps; the other limit is lifted."""
    steps = max(started.total_steps, state.step)
    if started.num_samples > 0:
        epochs = round(steps * started.global_batch / started.num_samples)
        if epochs > 0 and steps == math.ceil(epochs * started.num_samples / started.global_batch):
            return f"--max-steps null --epochs {2 * epochs}"
    return f"--max-steps {2 * steps} --epochs null"


def _again(run_dir: RunDir, suffix: str) -> str:
    """Anew and beside this run, not resumed: a schedule is drawn over the whole run."""
    beside = shlex.quote(str(run_dir.path.with_name(f"{run_dir.path.name}-{suffix}")))
    return f"drivetrain train {shlex.quote(str(run_dir.config))} --output {beside}"
