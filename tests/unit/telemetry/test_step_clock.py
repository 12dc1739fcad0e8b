"""The parts of a step sum to the step, steps touch, and none of it costs much."""

from __future__ import annotations

import time

import pytest
import torch

from drivetrain.spec.parts import StepPart
from drivetrain.telemetry.ranks.step_clock import StepClock, StepTiming

CPU = torch.device("cpu")


def run_steps(clock: StepClock, count: int) -> None:
    for step in range(1, count + 1):
        clock.start_step(step)
        clock.mark(StepPart.DATA_WAIT)
        for _ in range(2):
            clock.mark(StepPart.FORWARD)
            clock.mark(StepPart.BACKWARD)
        clock.mark(StepPart.OPTIMIZER)
        clock.end_step()


def test_parts_sum_to_the_step_exactly_and_steps_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    readings_ns: list[int] = []

    def perf_counter_ns() -> int:
        readings_ns.append((readings_ns[-1] if readings_ns else 10**15) + 1 + len(readings_ns) ** 2)
        return readings_ns[-1]

    monkeypatch.setattr(time, "perf_counter_ns", perf_counter_ns)
    clock = StepClock(CPU)
    run_steps(clock, 200)
    timings = clock.pop_finished()
    assert [timing.step for timing in timings] == list(range(1, 201))
    for timing in timings:
        assert sum(timing.parts.values()) == pytest.approx(timing.total_s, rel=1e-9)
        assert set(timing.parts) == {
            StepPart.DATA_WAIT,
            StepPart.FORWARD,
            StepPart.BACKWARD,
            StepPart.OPTIMIZER,
            StepPart.HOST,
        }
    total_s = sum(timing.total_s for timing in timings)
    assert total_s == pytest.approx((readings_ns[-1] - readings_ns[0]) * 1e-9, rel=1e-12)


def test_time_goes_to_the_part_it_was_spent_in() -> None:
    clock = StepClock(CPU)
    clock.start_step(1)
    time.sleep(0.02)
    clock.mark(StepPart.DATA_WAIT)
    clock.mark(StepPart.FORWARD)
    time.sleep(0.01)
    clock.end_step()
    time.sleep(0.03)
    clock.start_step(2)
    clock.mark(StepPart.DATA_WAIT)
    clock.end_step()
    first, second = clock.pop_finished()
    assert first.parts[StepPart.DATA_WAIT] >= 0.02
    assert first.parts[StepPart.HOST] >= 0.01
    assert first.parts[StepPart.FORWARD] < 0.02
    # The loop's own time between two steps belongs to the second one.
    assert second.parts[StepPart.DATA_WAIT] >= 0.03
    assert second.host_parts[StepPart.DATA_WAIT] >= 0.03


def test_an_evaluation_between_steps_belongs_to_none() -> None:
    clock = StepClock(CPU)
    clock.start_step(1)
    clock.end_step()
    time.sleep(0.2)
    clock.start_step(2, after_pause=True)
    clock.end_step()
    assert sum(timing.total_s for timing in clock.pop_finished()) < 0.2


def test_a_part_that_was_not_marked_is_absent() -> None:
    clock = StepClock(CPU)
    clock.start_step(1)
    clock.mark(StepPart.FORWARD)
    clock.end_step()
    (timing,) = clock.pop_finished()
    assert set(timing.parts) == {StepPart.FORWARD, StepPart.HOST}


def test_finished_steps_come_once_and_an_open_one_not_at_all() -> None:
    clock = StepClock(CPU)
    run_steps(clock, 2)
    clock.start_step(3)
    assert [timing.step for timing in clock.pop_finished()] == [1, 2]
    assert clock.pop_finished() == []
    clock.end_step()
    assert [timing.step for timing in clock.pop_finished()] == [3]


def test_a_step_that_was_given_up_is_dropped_and_the_next_starts_anew() -> None:
    clock = StepClock(CPU)
    clock.start_step(1)
    time.sleep(0.2)
    clock.start_step(1)
    clock.end_step()
    (timing,) = clock.pop_finished()
    assert timing.total_s < 0.2


def test_steps_nobody_asks_for_do_not_pile_up() -> None:
    clock = StepClock(CPU, max_pending=10)
    run_steps(clock, 25)
    assert [timing.step for timing in clock.pop_finished()] == list(range(16, 26))
    assert clock.num_dropped == 15


def test_a_mark_outside_a_step_is_refused() -> None:
    with pytest.raises(RuntimeError, match="outside a step"):
        StepClock(CPU).mark(StepPart.FORWARD)


@pytest.mark.parametrize(
    ("device", "enabled", "reason"),
    [(CPU, False, "switched off"), (torch.device("meta"), True, "no timing events for device type meta")],
)
def test_a_clock_that_cannot_measure_gives_nothing_and_says_why(
    device: torch.device, enabled: bool, reason: str
) -> None:
    clock = StepClock(device, enabled=enabled)
    run_steps(clock, 3)
    clock.mark(StepPart.FORWARD)
    assert clock.pop_finished() == []
    assert reason in str(clock.unavailable)


def test_a_step_on_the_cpu_costs_little() -> None:
    clock = StepClock(CPU)
    costs_s = []
    for _ in range(10):
        start = time.thread_time()
        run_steps(clock, 100)
        clock.pop_finished()
        costs_s.append((time.thread_time() - start) / 100)
    print(f"one step of 7 marks: best {min(costs_s) * 1e6:.1f} µs, worst {max(costs_s) * 1e6:.1f} µs")
    # 50 µs is the budget; the best of ten rounds, since other processes share the machine.
    assert min(costs_s) < 50e-6


class FakeEvent:
    """A timing event of a stream that runs when the test says so. Refuses to be recorded while in use."""

    clock_ms = 0.0
    finished_ms = 0.0
    made = 0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        FakeEvent.made += 1
        self.at_ms: float | None = None

    def record(self, stream: str) -> None:
        assert stream == "the current stream"
        assert self.at_ms is None or self.at_ms <= FakeEvent.finished_ms, (
            "recorded again before it had passed"
        )
        FakeEvent.clock_ms += 1.0
        self.at_ms = FakeEvent.clock_ms

    def query(self) -> bool:
        assert self.at_ms is not None
        return self.at_ms <= FakeEvent.finished_ms

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.at_ms is not None
        assert end.at_ms is not None
        assert end.at_ms <= FakeEvent.finished_ms, "asked before it had passed"
        assert end.at_ms > self.at_ms, "one of the two was recorded again"
        return end.at_ms - self.at_ms


def test_cuda_events_are_used_again_only_when_no_step_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("clock_ms", "finished_ms", "made"):
        monkeypatch.setattr(FakeEvent, name, 0)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the current stream")
    clock = StepClock(torch.device("cuda"))
    timings: list[StepTiming] = []
    for step in range(1, 1001):
        clock.start_step(step, after_pause=step % 100 == 0)
        for part in (StepPart.DATA_WAIT, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER):
            clock.mark(part)
        clock.end_step()
        FakeEvent.finished_ms = max(FakeEvent.clock_ms - 13, 0.0)  # the device is 13 events behind
        timings += clock.pop_finished()
    FakeEvent.finished_ms = FakeEvent.clock_ms
    timings += clock.pop_finished()
    assert [timing.step for timing in timings] == list(range(1, 1001))
    for timing in timings:
        assert timing.total_s == sum(timing.parts.values()) == pytest.approx(0.005)
    assert FakeEvent.made < 50


@pytest.mark.gpu
def test_on_cuda_the_parts_are_the_streams_and_nothing_waits() -> None:
    device = torch.device("cuda")
    clock = StepClock(device)
    busy_cycles = 200_000_000
    timings: list[StepTiming] = []
    host_start = time.perf_counter()
    for step in range(1, 4):
        clock.start_step(step)
        torch.cuda._sleep(busy_cycles)
        clock.mark(StepPart.FORWARD)
        torch.cuda._sleep(2 * busy_cycles)
        clock.mark(StepPart.BACKWARD)
        clock.end_step()
        timings += clock.pop_finished()
    host_s = time.perf_counter() - host_start
    assert timings == []
    deadline_s = time.monotonic() + 30
    while len(timings) < 3 and time.monotonic() < deadline_s:
        timings += clock.pop_finished()
        time.sleep(0.01)
    assert [timing.step for timing in timings] == [1, 2, 3]
    for timing in timings:
        assert sum(timing.parts.values()) == pytest.approx(timing.total_s, rel=1e-4)
        ratio = timing.parts[StepPart.BACKWARD] / timing.parts[StepPart.FORWARD]
        assert ratio == pytest.approx(2.0, rel=0.1)
    assert host_s < 0.5 * sum(timing.total_s for timing in timings)

    wall_start = time.perf_counter()
    for step in range(4, 504):
        clock.start_step(step, after_pause=step == 4)
        for part in (StepPart.DATA_WAIT, StepPart.FORWARD, StepPart.BACKWARD, StepPart.OPTIMIZER):
            clock.mark(part)
        clock.end_step()
        timings += clock.pop_finished()
    cost_s = (time.perf_counter() - wall_start) / 500
    torch.cuda.synchronize()
    timings += clock.pop_finished()
    assert len(timings) == 503
    print(f"one step of 5 events on CUDA: {cost_s * 1e6:.1f} µs of the host")
    boundaries = clock._boundaries
    assert boundaries is not None
    assert len(boundaries._free) < 600  # type: ignore[attr-defined]  events are used again
