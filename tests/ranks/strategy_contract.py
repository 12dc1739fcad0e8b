"""What every strategy promises, held against the same training on one rank. Not collected by itself.

To put a strategy under it, write `tests/ranks/test_<strategy>.py`:

    from ranks.strategy_contract import StrategyContract

    class TestTensor(StrategyContract):
        strategy = "tensor"
        task = "text"                                 # a small GPT; "points" is a small convolutional net
        layouts = (
            (2, {}),                                  # the first is also resumed, and exchanged with single
            (4, {"mesh": {"tp": 2, "dp_replicate": 2}}),
            (4, {"strategy": "fsdp", "mesh": {"tp": 2}}),
        )
        refuses = {"own_loop": "its own words"}       # of the items below those that it cannot do
        also_refuses = (({"sync_batchnorm": True}, "its words"),)

What is inherited, all of it with uneven shares where 8 samples do not divide among the data ranks:

- each layout trains as one rank does: the same samples, losses to 1e-5, gradient norms, weights, averages,
  and evaluations of each sample once, with accumulation, clipping and a moving average on;
- every rank records the parts of each step, and they sum to it;
- 10 steps under the strategy and 10 under single are 20 under single, and the other way round;
- resumed at the same layout it goes on to the bit, in fp32 and, where the net has such, with dropout and
  running statistics;
- each of `ITEMS` works as on one rank, or is refused before the run starts in the words of `refuses`.

Put what only this strategy has (its own settings, its memory) beside it as plain test functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import rank_programs as programs
from drivetrain.spec.parts import StepPart

STEPS, STOP = 20, 10

ITEMS: dict[str, dict[str, Any]] = {
    "clipping": {"clip_norm": 0.5},
    "ema": {"ema_decay": 0.9},
    "accumulation": {"micro_batch": 2},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "clip_norm": 0.5},
    "own_loop": {"own_loop": True},
    "skipping": {"on_bad_sample": "skip", "data": {"bad": (3, 17, 30, 31)}},
    "activation_checkpointing": {"activation_checkpointing": 1},
    "selective": {"activation_checkpointing": "selective"},
}
"""Settings that a strategy takes or refuses. The first three are on together in the long runs."""

_IN_LONG_RUNS = ("clipping", "ema", "accumulation")
_NETS: dict[str, dict[str, Any]] = {"points": {"repeats": 2}, "text": {}}


class StrategyContract:
    """See the top of the file.

    Attributes:
        task: what is trained, see `rank_tasks`; `net` are options of its model.
        layouts: numbers of ranks, each with the settings that make the layout.
        micro_batch: of the long runs.
        parts: what every step must have.
        noise: options of a net with dropout and running statistics; None where the task or the strategy has
            none.
        refuses: the items of `ITEMS` that are refused, with words of the refusal.
        also_refuses: other options of `rank_programs.train` that are, at the first layout.
    """

    strategy: ClassVar[str]
    task: ClassVar[str] = "points"
    net: ClassVar[dict[str, Any]] = {}
    layouts: ClassVar[tuple[tuple[int, dict[str, Any]], ...]]
    micro_batch: ClassVar[int] = 2
    parts: ClassVar[set[StepPart]] = {
        StepPart.DATA_WAIT,
        StepPart.FORWARD,
        StepPart.BACKWARD,
        StepPart.OPTIMIZER,
    }
    noise: ClassVar[dict[str, Any] | None] = None
    refuses: ClassVar[dict[str, str]] = {}
    also_refuses: ClassVar[tuple[tuple[dict[str, Any], str], ...]] = ()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Each subclass has layouts, items and refusals of its own."""
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.layouts, ids=_name)
        if "item" in metafunc.fixturenames:
            taken_apart = [item for item in ITEMS if item not in _IN_LONG_RUNS or item in self.refuses]
            metafunc.parametrize("item", taken_apart)
        if "refusal" in metafunc.fixturenames:
            metafunc.parametrize("refusal", self.also_refuses, ids=lambda refusal: refusal[1])
        if "noise" in metafunc.fixturenames:
            metafunc.parametrize("noise", [self.noise] if self.noise is not None else [])

    # -- runs ---------------------------------------------------------------------------------------------

    @classmethod
    def work(cls, **options: Any) -> dict[str, Any]:
        """What is trained: task and net."""
        return {"task": cls.task, "net": _NETS[cls.task] | cls.net | options}

    @classmethod
    def shared_settings(cls) -> dict[str, Any]:
        """What the long runs and the run on one rank have in common."""
        settings = cls.work()
        for item in _IN_LONG_RUNS:
            if item not in cls.refuses and item != "accumulation":
                settings |= ITEMS[item]
        return settings

    @classmethod
    def run_on(cls, ranks, layout, **options: Any) -> list[dict[str, Any]]:
        world_size, settings = layout
        return ranks.run(world_size, programs.train, **{"strategy": cls.strategy, **options, **settings})

    @classmethod
    def run_long(cls, ranks, layout, **options: Any) -> list[dict[str, Any]]:
        micro_batch = {} if "accumulation" in cls.refuses else {"micro_batch": cls.micro_batch}
        return cls.run_on(ranks, layout, **cls.shared_settings(), **micro_batch, **options)

    @pytest.fixture(scope="class")
    @classmethod
    def alone(cls, single_run) -> tuple[dict[str, Any], Path]:
        """20 steps on one rank, saved at 10."""
        return single_run(steps=STEPS, save_every=STOP, evaluate_every=5, **cls.shared_settings())

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, ranks, tmp_path_factory) -> tuple[list[dict[str, Any]], Path]:
        """20 steps at the first layout, saved at 10."""
        folder = tmp_path_factory.mktemp(cls.strategy)
        results = cls.run_long(
            ranks, cls.layouts[0], steps=STEPS, save_every=STOP, evaluate_every=5, output=str(folder)
        )
        return results, folder

    # -- tests --------------------------------------------------------------------------------------------

    def test_it_trains_as_one_rank_does(self, ranks, alone, whole, layout):
        if layout == self.layouts[0]:
            assert_same_training(whole[0], alone[0], steps=range(STEPS))
            assert_same_weights(whole[0], alone[0])
        else:
            results = self.run_long(ranks, layout, steps=STOP, evaluate_every=5)
            assert_same_training(results, alone[0], steps=range(STOP))

    def test_every_rank_records_the_parts_of_each_step_and_they_sum_to_it(self, whole):
        for rank, result in enumerate(whole[0]):
            assert [event.step for event in result["events"]] == list(range(1, STEPS + 1)), f"rank {rank}"
            for event in result["events"]:
                # The first step is timed from the end of the warm-up, when its data had come.
                needed = self.parts - {StepPart.DATA_WAIT} if event.step == 1 else self.parts
                assert needed <= event.parts.keys()
                assert sum(event.parts.values()) == pytest.approx(event.step_s, rel=1e-6)

    def test_resumed_it_goes_on_to_the_bit(self, ranks, whole):
        # Without the evaluations of the whole run: they leave training as it was.
        rest = self.run_long(ranks, self.layouts[0], steps=STEPS, resume=checkpoint_of(whole[1]))
        assert_same_bits(rest, whole[0], first_step=STOP)

    def test_its_checkpoint_goes_on_under_single(self, ranks, alone, whole):
        rest = ranks.run(
            1,
            programs.train,
            strategy="single",
            steps=STEPS,
            resume=checkpoint_of(whole[1]),
            **self.shared_settings(),
        )
        assert rest[0]["first_step"] == STOP
        assert_same_training(rest, alone[0], steps=range(STOP, STEPS))
        assert_same_weights(rest, alone[0])

    def test_a_checkpoint_of_single_goes_on_under_it(self, ranks, alone):
        rest = self.run_long(ranks, self.layouts[0], steps=STEPS, resume=checkpoint_of(alone[1]))
        assert {result["first_step"] for result in rest} == {STOP}
        assert_same_training(rest, alone[0], steps=range(STOP, STEPS))
        assert_same_weights(rest, alone[0])

    def test_dropout_and_running_statistics_go_on_to_the_bit(self, ranks, tmp_path, noise):
        options = self.work(**noise)
        if "bf16" not in self.refuses:
            options["precision"] = "bf16"
        whole = self.run_on(ranks, self.layouts[0], steps=8, save_every=4, output=str(tmp_path), **options)
        rest = self.run_on(ranks, self.layouts[0], steps=8, resume=checkpoint_of(tmp_path, step=4), **options)
        assert_same_bits(rest, whole, first_step=4)

    def test_it_works_as_on_one_rank_or_is_refused_by_name(self, ranks, single_run, item):
        if item in self.refuses:
            self.assert_refused(ranks, ITEMS[item], self.refuses[item])
            return
        options = self.work() | ITEMS[item]
        reference, _ = single_run(steps=6, **options)
        results = self.run_on(ranks, self.layouts[0], steps=6, **options)
        if "precision" not in options:
            assert_same_training(results, reference, steps=range(6))
            return
        in_fp32, _ = single_run(steps=6, **options | {"precision": "fp32"})
        for result in results:  # rounded otherwise, and in fp16 another step may overflow
            assert result["losses"] == pytest.approx(reference["losses"], rel=0.1)
            assert result["losses"] != pytest.approx(in_fp32["losses"], rel=1e-5)

    def test_what_it_cannot_do_is_refused_by_name(self, ranks, refusal):
        self.assert_refused(ranks, *refusal)

    def assert_refused(self, ranks, options: dict[str, Any], words: str) -> None:
        """On every rank, before any step."""
        world_size, settings = self.layouts[0]
        run = {"strategy": self.strategy, **self.work(), **settings, "steps": 2, **options}
        for text in ranks.run(world_size, programs.refused, **run):
            assert words in text


def checkpoint_of(folder: Path, *, step: int = STOP) -> str:
    return str(folder / "checkpoints" / f"step-{step:08d}")


def assert_same_training(
    results: list[dict[str, Any]], reference: dict[str, Any], *, steps: range, tolerance: float = 1e-5
) -> None:
    """The same samples, losses, gradient norms and evaluations, on every rank; `steps` are what was run."""
    expected = {i: rows for i, rows in programs.samples_by_step([reference]).items() if i in steps}
    assert programs.samples_by_step(results) == expected
    part = slice(steps.start, steps.stop)
    for result in results:
        assert result["losses"] == pytest.approx(reference["losses"][part], rel=tolerance)
        if reference["norms"][0] is not None:
            # A norm is of differences of large numbers: it is coarser than the loss.
            assert result["norms"] == pytest.approx(reference["norms"][part], rel=100 * tolerance)
        for (step, size), values in result["evaluations"].items():
            assert values["count"] == size
            assert values == pytest.approx(reference["evaluations"][step, size], rel=1e-4)


def assert_same_weights(results: list[dict[str, Any]], reference: dict[str, Any]) -> None:
    """Weights and averages, under the bare model's names; each rank has all, or a part of the names."""
    for kind in ("weights", "ema"):
        names = set().union(*(result[kind] for result in results))
        assert names == reference[kind].keys()
        for result in results:
            for name, weight in result[kind].items():
                torch.testing.assert_close(weight, reference[kind][name], rtol=1e-3, atol=1e-5)


def assert_same_bits(rest: list[dict[str, Any]], whole: list[dict[str, Any]], *, first_step: int) -> None:
    """`rest` went on from `first_step` exactly as `whole` had."""
    expected = {i: rows for i, rows in programs.samples_by_step(whole).items() if i >= first_step}
    assert programs.samples_by_step(rest) == expected
    for resumed, undisturbed in zip(rest, whole, strict=True):
        assert resumed["first_step"] == first_step
        assert resumed["losses"] == undisturbed["losses"][first_step:]
        assert resumed["scale"] == undisturbed["scale"]
        for kind in ("weights", "ema"):
            assert undisturbed[kind].keys() == resumed[kind].keys()
            for name, weight in undisturbed[kind].items():
                assert torch.equal(resumed[kind][name], weight), f"{kind} {name}"


def _name(layout: tuple[int, dict[str, Any]]) -> str:
    world_size, settings = layout
    words = [f"{name}={value}" for name, value in settings.items()]
    return " ".join([f"{world_size} ranks", *words])
