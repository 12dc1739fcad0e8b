"""The stream: the same global batches whatever ranks, workers and micro-batches; bad samples; closing."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from drivetrain.data.batch import MicroBatch, StepBatch
from drivetrain.data.stream import Stream
from drivetrain.data.workers import LoaderPlan
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import BadSampleError, InputError, LoaderError

CPU = torch.device("cpu")


class Numbers:
    """Sample i is (i as a vector, i % 10); some indices fail."""

    def __init__(self, length: int = 100, bad: dict[int, Exception] | None = None) -> None:
        self.length = length
        self.bad = bad or {}

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index in self.bad:
            raise self.bad[index]
        return torch.full((3,), float(index)), index % 10


class SelfAugmenting(Numbers):
    """Draws from all three global generators, as users' own transforms do."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return torch.tensor(drawn, dtype=torch.float64), index


def draw(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    return generator.random(2)


def render(sample: tuple[torch.Tensor, int], params: np.ndarray[Any, Any]) -> tuple[torch.Tensor, int]:
    return sample[0] * float(params[0]) + float(params[1]), sample[1]


def stream(
    dataset: Any = None,
    *,
    global_batch: int = 8,
    ranks: int = 1,
    rank: int = 0,
    micro: int | None = None,
    workers: int = 0,
    **more: Any,
) -> Stream:
    return Stream(
        dataset if dataset is not None else Numbers(),
        plan=plan_batches(global_batch=global_batch, num_data_ranks=ranks, micro_batch=micro),
        data_rank=rank,
        loader=LoaderPlan(workers=workers, prefetch=2, timeout_s=30),
        device=CPU,
        **({"seed": 5} | more),
    )


def take(source: Stream, num_steps: int) -> list[StepBatch]:
    with source:
        return list(itertools.islice(source, num_steps))


def global_batches(num_steps: int, ranks: int, **more: Any) -> list[dict[int, tuple[int, list[float], Any]]]:
    """For each step: position → (id, pixels, params), over all ranks."""
    steps: list[dict[int, tuple[int, list[float], Any]]] = [{} for _ in range(num_steps)]
    for rank in range(ranks):
        for number, step in enumerate(take(stream(ranks=ranks, rank=rank, **more), num_steps)):
            for micro in step.micro_batches:
                for place in range(micro.size):
                    if micro.ids[place] >= 0:
                        drawn = None if micro.params is None else micro.params[place].tolist()
                        position = int(micro.positions[place])
                        assert position not in steps[number]
                        steps[number][position] = (int(micro.ids[place]), micro.x[place].tolist(), drawn)
    return steps


@pytest.mark.parametrize("ranks, micro", [(2, None), (3, None), (3, 1), (5, 1), (8, None), (1, 3)])
def test_a_global_batch_is_the_same_for_any_ranks_and_micro_batches(ranks: int, micro: int | None) -> None:
    expected = global_batches(30, 1, draw=draw, render=render)
    assert global_batches(30, ranks, micro=micro, draw=draw, render=render) == expected
    assert [sorted(batch) for batch in expected] == [list(range(8 * k, 8 * k + 8)) for k in range(30)]


@pytest.mark.parametrize("dataset", [SelfAugmenting(), Numbers()], ids=["own transforms", "draw and render"])
def test_two_workers_give_the_same_ids_params_and_pixels_as_none(dataset: Numbers) -> None:
    drawn = {} if isinstance(dataset, SelfAugmenting) else {"draw": draw, "render": render}
    without = take(stream(dataset, micro=3, **drawn), 20)
    with_two = take(stream(dataset, micro=3, workers=2, **drawn), 20)
    for ours, theirs in zip(without, with_two, strict=True):
        assert (ours.index, ours.position) == (theirs.index, theirs.position)
        for one, other in zip(ours.micro_batches, theirs.micro_batches, strict=True):
            assert torch.equal(one.ids, other.ids)
            assert torch.equal(one.positions, other.positions)
            assert torch.equal(one.x, other.x)
            assert torch.equal(one.y, other.y)
            assert torch.equal(one.weight, other.weight)
            assert (one.params is None) == (other.params is None) == (not drawn)
            if drawn:
                assert torch.equal(one.params, other.params)


def test_own_transforms_give_the_same_on_any_rank() -> None:
    expected = global_batches(15, 1, dataset=SelfAugmenting())
    assert global_batches(15, 3, dataset=SelfAugmenting()) == expected
    pixels = [tuple(entry[1]) for batch in expected for entry in batch.values()]
    assert len(set(pixels)) == len(pixels)  # and another one each epoch


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_the_training_process_its_random_numbers(workers: int) -> None:
    def three() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = three()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    take(stream(SelfAugmenting(), workers=workers), 3)
    assert three() == expected


def test_a_resumed_stream_goes_on_with_the_same_samples() -> None:
    whole = take(stream(draw=draw, render=render), 40)
    resumed = take(stream(draw=draw, render=render, start_position=8 * 29), 11)
    assert [step.index for step in resumed] == list(range(29, 40))
    for ours, theirs in zip(whole[29:], resumed, strict=True):
        assert torch.equal(ours.micro_batches[0].ids, theirs.micro_batches[0].ids)
        assert torch.equal(ours.micro_batches[0].x, theirs.micro_batches[0].x)


def test_position_counts_what_was_yielded_not_what_was_read_ahead() -> None:
    with stream(workers=1) as source:
        assert source.position == 0
        next(source)
        assert source.position == 8
        for _ in source:
            break
        assert source.position == 16


def test_a_position_inside_a_global_batch_is_refused() -> None:
    with pytest.raises(InputError, match="multiple of the global batch, 8"):
        stream(start_position=12)


def test_the_stream_ends_at_stop_step_and_stays_ended() -> None:
    source = stream(stop_step=3, start_position=8)
    assert [step.index for step in source] == [1, 2]
    assert list(source) == []


def test_a_data_set_smaller_than_the_global_batch_is_gone_through_more_than_once() -> None:
    step = take(stream(Numbers(3), global_batch=8), 1)[0]
    assert sorted(np.bincount(step.micro_batches[0].ids.numpy()).tolist()) == [2, 3, 3]
    assert step.num_samples == 8


def test_every_rank_runs_the_same_number_of_micro_batches() -> None:
    # 4 samples on 3 ranks, one at a time: ranks 1 and 2 have a padding slot.
    for rank, padded in ((0, 0), (1, 1), (2, 1)):
        micros = take(stream(global_batch=4, ranks=3, rank=rank, micro=1), 2)[1].micro_batches
        assert len(micros) == 2
        assert sum(micro.num_valid == 0.0 for micro in micros) == padded
        assert micros[1].x.shape == (1, 3)
        if padded:
            assert micros[1].ids.tolist() == [-1]
            assert micros[1].weight.tolist() == [0.0]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_ends_the_run_with_one_short_message(workers: int) -> None:
    dataset = Numbers(bad={17: OSError("image file is truncated")})
    with pytest.raises(BadSampleError) as caught:
        take(stream(dataset, workers=workers), 20)
    assert str(caught.value).startswith("sample 17 of Numbers: image file is truncated\n")
    assert "Traceback" not in str(caught.value)
    assert isinstance(caught.value.__cause__, OSError)


class UnpicklableError(ValueError):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"values {one} and {two}")


def test_an_error_that_cannot_cross_processes_still_tells_its_reason() -> None:
    dataset = Numbers(bad={17: UnpicklableError(1, 2)})
    with pytest.raises(BadSampleError, match="UnpicklableError: values 1 and 2") as caught:
        take(stream(dataset, workers=1), 20)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("workers", [0, 1])
def test_a_skipped_sample_keeps_its_slot_with_weight_0_and_is_named(workers: int) -> None:
    dataset = Numbers(bad={17: ValueError("no label"), 40: KeyError("caption")})
    good = take(stream(draw=draw, render=render), 13)
    source = stream(dataset, workers=workers, on_bad_sample="skip", draw=draw, render=render)
    steps = take(source, 13)  # 104 samples: one epoch and a little
    micros = [step.micro_batches[0] for step in steps]
    skipped = [sample for micro in micros for sample in micro.skipped]
    assert {sample.source for sample in skipped} == {"sample 17 of Numbers", "sample 40 of Numbers"}
    assert {sample.reason for sample in skipped} == {"no label", "KeyError: 'caption'"}
    assert source.num_skipped == len(skipped) >= 2
    for micro, other in zip(micros, (step.micro_batches[0] for step in good), strict=True):
        assert torch.equal(micro.ids, other.ids)
        for place, sample_id in enumerate(micro.ids.tolist()):
            is_bad = sample_id in (17, 40)
            assert micro.weight[place] == (0.0 if is_bad else 1.0)
            assert torch.equal(micro.x[place], torch.zeros(3) if is_bad else other.x[place])
        assert micro.num_valid == micro.weight.sum()


def test_a_wholly_bad_micro_batch_takes_the_shape_of_another_sample() -> None:
    # The very first micro-batch, so that no good sample is remembered yet.
    first_ids = take(stream(micro=2), 1)[0].micro_batches[0].ids.tolist()
    dataset = Numbers(bad={index: OSError("gone") for index in first_ids})
    micro = take(stream(dataset, micro=2, on_bad_sample="skip"), 1)[0].micro_batches[0]
    assert micro.num_valid == 0.0
    assert micro.x.shape == (2, 3)
    assert micro.y.dtype == torch.int64
    assert len(micro.skipped) == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_skipping_everything_is_refused(workers: int) -> None:
    dataset = Numbers(bad={index: OSError(f"gone {index}") for index in range(100)})
    with pytest.raises(
        InputError, match=r"none of 64 samples could be read; the last was sample \d+ of Numbers"
    ):
        take(stream(dataset, workers=workers, on_bad_sample="skip"), 1)


@pytest.mark.parametrize(
    "kind, workers",
    [
        (NameError, 0),
        (TypeError, 0),
        (AttributeError, 0),
        (MemoryError, 0),
        (NotImplementedError, 0),
        (TypeError, 1),
    ],
)
def test_a_bug_is_raised_as_it_is_even_when_bad_samples_are_skipped(
    kind: type[Exception], workers: int
) -> None:
    dataset = Numbers(bad={17: kind("a slip of the pen")})
    with pytest.raises(kind) as caught:
        take(stream(dataset, workers=workers, on_bad_sample="skip"), 20)
    told = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "a slip of the pen" in told
    assert "while reading sample 17 of Numbers" in told


class Ragged(Numbers):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(3 if index != 17 else 4), 0


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_of_different_shapes_are_told_by_sample_and_shape(workers: int) -> None:
    with pytest.raises(InputError) as caught:
        take(stream(Ragged(), workers=workers), 20)
    assert "(3,) float32" in caught.value.found
    assert "(4,) float32" in caught.value.found
    assert "17" in caught.value.found


def test_a_collate_function_of_ones_own_is_used() -> None:
    micro = take(stream(Ragged(), collate=lambda samples: [sample[0] for sample in samples]), 1)[
        0
    ].micro_batches[0]
    assert len(micro.data) == 8


def test_closures_need_not_pickle_for_workers() -> None:
    factor = 3.0
    local: Callable[..., Any] = lambda sample, params: (sample[0] * factor * float(params[0]), sample[1])  # noqa: E731
    assert len(take(stream(draw=draw, render=local, workers=1), 2)) == 2


class Slow(Numbers):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.05)
        return super().__getitem__(index)


def _processes(source: Stream) -> list[Any]:
    return list(source._loader._workers._workers)


def test_closing_ends_busy_workers_promptly() -> None:
    source = stream(Slow(10_000), global_batch=400, micro=200, workers=2)  # 10 s a micro-batch
    source.start()
    time.sleep(0.2)
    processes = _processes(source)
    started = time.monotonic()
    source.close()
    source.close()
    assert time.monotonic() - started < 3
    assert not any(process.is_alive() for process in processes)
    assert list(source) == []


class KilledWorker(Numbers):
    """Sample 17 kills the process that reads it, as the kernel does when memory runs out."""

    def __init__(self) -> None:
        super().__init__()
        self.main = os.getpid()

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 17:
            assert os.getpid() != self.main
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_killed_worker_is_an_error_not_a_hang() -> None:
    started = time.monotonic()
    with pytest.raises((LoaderError, RuntimeError), match=r"Killed|exited unexpectedly") as caught:
        take(stream(KilledWorker(), workers=2), 20)
    assert time.monotonic() - started < 15
    if isinstance(caught.value, LoaderError):
        assert "out of memory" in caught.value.do


class Exits(Numbers):
    """Sample 17 ends its process as a script would that is done."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index == 17:
            sys.exit(0)
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_bad_sample", ["fail", "skip"])
def test_sys_exit_in_a_sample_is_a_bug_of_its_code_and_no_end(workers: int, on_bad_sample: str) -> None:
    with pytest.raises(RuntimeError, match=r"sys.exit\(0\) was called while reading sample 17 of Exits"):
        take(stream(Exits(), workers=workers, on_bad_sample=on_bad_sample), 20)


def test_sys_exit_in_draw_is_a_bug_too() -> None:
    with pytest.raises(RuntimeError, match=r"sys.exit\(None\) was called"):
        take(stream(draw=lambda generator: sys.exit(), render=render), 1)


class CutOff:
    """Stands in for torch's iterator when a batch lies with a worker that is gone."""

    def __init__(self, worker: Any) -> None:
        self._workers = [worker]

    def __next__(self) -> Any:
        raise FileNotFoundError(2, "No such file or directory")

    def _shutdown_workers(self) -> None:
        pass


def test_a_batch_that_cannot_be_fetched_is_the_workers_failure_if_one_is_gone() -> None:
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    worker.start()
    source = stream(workers=1)
    source._loader._workers = CutOff(worker)
    with pytest.raises(FileNotFoundError):  # the data set's own: all workers are there
        next(source)
    worker.kill()
    with pytest.raises(LoaderError, match=r"ended before its batch was fetched \(FileNotFoundError"):
        next(source)
    worker.join(10)


def test_workers_leave_the_jobs_signals_to_the_rank() -> None:
    with stream(workers=2) as source:
        next(source)
        for process in _processes(source):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
                os.kill(process.pid, number)
        assert len(list(itertools.islice(source, 10))) == 10
        assert all(process.is_alive() for process in _processes(source))


class OneByOne(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(10))


class OneByOneWithLength(OneByOne):
    def __len__(self) -> int:
        return 10


def test_what_is_no_map_style_data_set_is_refused() -> None:
    with pytest.raises(InputError, match="map-style"):
        stream(iter([1, 2]))
    with pytest.raises(InputError, match="it has no __len__: samples have no positions"):
        stream(OneByOne())
    with pytest.raises(InputError, match="it is iterable only"):
        stream(OneByOneWithLength())
    with pytest.raises(InputError, match=r"the class itself[^→]*→ give Numbers"):
        stream(Numbers)
    with pytest.raises(InputError, match="0 samples"):
        stream(Numbers(0))
    with pytest.raises(InputError, match="draw without render"):
        stream(draw=draw)
    with pytest.raises(InputError, match="fail and skip"):
        stream(on_bad_sample="ignore")


def test_on_the_cpu_nothing_is_copied() -> None:
    with stream(micro=2) as source:
        step = next(source)
        assert source.to_device(step.micro_batches[0]) is step.micro_batches[0]
        assert [micro.ids.tolist() for micro in source.device_batches(step)] == [
            micro.ids.tolist() for micro in step.micro_batches
        ]


def test_seeking_costs_the_same_at_any_size_and_place() -> None:
    class Huge(Numbers):
        def __init__(self) -> None:
            super().__init__(10**8)

    def first_batch_s(dataset: Any, start_position: int) -> float:
        started = time.perf_counter()
        take(stream(dataset, start_position=start_position), 1)
        return time.perf_counter() - started

    first_batch_s(Numbers(), 0)
    near = min(first_batch_s(Numbers(), 0) for _ in range(5))
    far = min(first_batch_s(Huge(), 8 * (10**10 + 1)) for _ in range(5))
    assert far < 10 * near + 0.01
    assert math.isfinite(far)


@pytest.mark.gpu
def test_on_a_gpu_the_copies_hold_the_hosts_values_while_computing() -> None:
    device = torch.device("cuda")
    plan = plan_batches(global_batch=64, num_data_ranks=1, micro_batch=16)
    loader = LoaderPlan(workers=2, pin_memory=True, timeout_s=60)
    source = Stream(Numbers(1000), plan=plan, data_rank=0, seed=1, loader=loader, device=device)
    with source:
        for step in itertools.islice(source, 50):
            assert step.micro_batches[0].x.is_pinned()
            sums: list[tuple[torch.Tensor, MicroBatch]] = []
            for host, micro in zip(step.micro_batches, source.device_batches(step), strict=True):
                torch.cuda._sleep(100_000)  # type: ignore[no-untyped-call]
                sums.append((micro.x.sum(dim=1), host))
                del micro
            for total, host in sums:
                assert torch.equal(total.cpu(), host.x.sum(dim=1))
