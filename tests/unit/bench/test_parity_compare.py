"""Comparison and causes on records made by hand; with real runs see tests/end_to_end/test_parity.py."""

import dataclasses
import json
import math

import pytest

from drivetrain.bench.parity import Parity, Result
from drivetrain.bench.parity_candidates import candidates
from drivetrain.bench.parity_compare import compare
from drivetrain.bench.parity_records import (
    Fingerprint,
    Piece,
    RankFacts,
    RankRecord,
    RankStep,
    Sample,
    TrialRecord,
)
from drivetrain.bench.parity_report import as_json, as_text

STEPS = 4
FACTS = RankFacts(strategy="ddp", layout="dp_replicate=2", batch="a batch")


def print_of(*products):
    return Fingerprint(norm=math.sqrt(sum(p * p for p in products) / len(products)), products=products)


def scaled(print_, factor):
    return Fingerprint(norm=print_.norm * factor, products=tuple(p * factor for p in print_.products))


START, GRADIENT = print_of(1.0, 2.0, 3.0), print_of(0.1, -0.2, 0.3)
LATER = print_of(1.1, 2.1, 2.9)


def rank(number, ranks, **changes):
    """Rank `number` of `ranks`, each with its share of 4 samples a step."""
    share = 4 // ranks
    steps = {
        step: RankStep(
            step=step,
            samples={
                position: Sample(id=position % 7, content=f"c{position % 7}")
                for position in range(4 * (step - 1) + number * share, 4 * (step - 1) + (number + 1) * share)
            },
            pieces=(Piece(size=share, num_valid=share, weight=share),),
            loss=2.0 / step,
            grad_norm=1.0,
            drew_random=False,
        )
        for step in range(1, STEPS + 1)
    }
    prints = {
        (0, "weight"): {"w": START},
        (1, "gradient"): {"w": GRADIENT},
        (1, "weight"): {"w": LATER},
        (1, "buffer"): {},
        (STEPS, "gradient"): {"w": GRADIENT},
        (STEPS, "weight"): {"w": LATER},
        (STEPS, "buffer"): {},
    }
    record = RankRecord(rank=number, facts=FACTS, steps=steps, prints=prints, status="done")
    return dataclasses.replace(record, **changes)


def trial(ranks=2, edit=lambda record: record, **changes):
    made = tuple(edit(rank(number, ranks)) for number in range(ranks))
    return TrialRecord(ranks=tuple(dataclasses.replace(item, **changes) for item in made))


def with_step(record, step, **changes):
    steps = {**record.steps, step: dataclasses.replace(record.steps[step], **changes)}
    return dataclasses.replace(record, steps=steps)


def with_losses(factors):
    def edit(record):
        for step, factor in factors.items():
            record = with_step(record, step, loss=record.steps[step].loss * factor)
        return record

    return edit


def with_print(step, what, print_, *, name="w", ranks=(0, 1)):
    def edit(record):
        if record.rank not in ranks:
            return record
        own = {**record.prints[step, what], name: print_}
        return dataclasses.replace(record, prints={**record.prints, (step, what): own})

    return edit


REFERENCE = trial(1)


def test_the_same_numbers_are_equal():
    found = compare(REFERENCE, trial())
    assert found.verdict == "equal"
    assert (found.loss_error, found.gradient_error, found.weight_error) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("error, verdict", [(0.9e-5, "equal"), (1.1e-5, "differs")])
def test_the_loss_may_be_off_by_1e_5(error, verdict):
    found = compare(REFERENCE, trial(edit=with_losses({3: 1 + error})))
    assert found.verdict == verdict
    assert found.loss_error == pytest.approx(error)


def test_a_loss_that_is_no_number_differs():
    found = compare(REFERENCE, trial(edit=with_losses({2: math.nan})))
    assert found.verdict == "differs"
    assert found.difference.step == 2


@pytest.mark.parametrize(
    "edit, step, what, cause",
    [
        (
            lambda r: with_step(r, 2, samples={p: Sample(id=99, content="c") for p in r.steps[2].samples}),
            2,
            "samples",
            "sample_order",
        ),
        (lambda r: with_step(r, 3, samples={}) if r.rank else r, 3, "samples", "sample_order"),
        (
            lambda r: with_step(
                r, 1, samples={p: dataclasses.replace(s, content="x") for p, s in r.steps[1].samples.items()}
            ),
            1,
            "inputs",
            "augmentation",
        ),
        (with_print(0, "weight", scaled(START, 1.01)), 1, "initial_weights", "initial_weights"),
        (with_print(1, "gradient", scaled(GRADIENT, 0.5)), 1, "gradient", "loss_averaging"),
        (with_losses(dict.fromkeys(range(1, 5), 2.0)), 1, "loss", "loss_averaging"),
        (with_print(1, "gradient", print_of(0.3, 0.1, 0.2), ranks=(1,)), 1, "gradient", "not_reduced"),
        (lambda r: with_step(r, 1, grad_norm=0.7), 1, "gradient_norm", "clipping"),
        (with_print(1, "weight", print_of(1.2, 2.1, 2.8)), 1, "weight", "optimizer"),
        (with_losses({1: 1 + 1e-7, 2: 1 + 1e-6, 3: 1 + 3e-5}), 3, "loss", "reduction_order"),
        (with_print(1, "gradient", print_of(0.3, 0.1, 0.2)), 1, "gradient", "unknown"),
    ],
)
def test_the_first_difference_is_found_with_its_cause(edit, step, what, cause):
    found = compare(REFERENCE, trial(edit=edit))
    assert found.verdict == "differs"
    assert (found.difference.step, found.difference.what) == (step, what)
    assert found.difference.cause.name == cause, found.difference.cause


def test_a_factor_is_named_where_it_is_the_number_of_ranks():
    evidence = compare(REFERENCE, trial(edit=with_print(1, "gradient", scaled(GRADIENT, 2.0)))).difference
    assert "a sum over the 2 ranks where an average belongs" in evidence.cause.evidence


def test_ranks_that_see_the_same_samples_count_once():
    """As those of a tensor group do: their weights are no sign of wrong averaging."""
    whole = tuple(dataclasses.replace(rank(0, 1), rank=number) for number in (0, 1))
    edited = TrialRecord(ranks=tuple(with_losses({3: 1.5})(item) for item in whole))
    assert compare(REFERENCE, TrialRecord(ranks=whole)).verdict == "equal"
    assert compare(REFERENCE, edited).difference.cause.name == "reduction_order"


def test_batch_norm_is_a_cause_only_where_its_batches_differ():
    facts = dataclasses.replace(FACTS, batch_norms=("norm",))
    reference = TrialRecord(ranks=(rank(0, 1, facts=facts),))
    off = with_losses({1: 1.01, 2: 1.02})
    assert compare(reference, trial(edit=off)).difference.cause.name == "batchnorm"
    # Two ranks that each see all the samples, as in a tensor group.
    alike = TrialRecord(ranks=tuple(off(dataclasses.replace(rank(0, 1), rank=r)) for r in (0, 1)))
    assert compare(reference, alike).difference.cause.name == "unknown"


def test_rounding_alone_allows_more_for_weights_but_not_for_the_loss():
    moved = with_print(STEPS, "weight", print_of(1.11, 2.11, 2.9))
    rounding = trial(1, edit=with_print(STEPS, "weight", print_of(1.104, 2.1, 2.9)))
    assert compare(REFERENCE, trial(edit=moved)).verdict == "differs"
    assert compare(REFERENCE, trial(edit=moved), rounding).verdict == "equal"
    assert compare(REFERENCE, trial(edit=with_losses({4: 1.001})), rounding).verdict == "differs"


def test_a_growing_difference_is_rounding_only_if_the_reference_has_it_too():
    growing = trial(edit=with_losses({2: 1 + 1e-6, 3: 1 + 3e-5, 4: 1 + 1e-3}))
    steady, unsteady = trial(1), trial(1, edit=with_losses({3: 1 + 1e-4}))
    assert compare(REFERENCE, growing, steady).difference.cause.name == "unknown"
    assert compare(REFERENCE, growing, unsteady).difference.cause.name == "reduction_order"


def test_a_tensor_that_no_rank_has_differs():
    lost = trial(
        edit=lambda r: dataclasses.replace(r, prints={**r.prints, (1, "gradient"): {"other": GRADIENT}})
    )
    found = compare(REFERENCE, lost).difference
    assert (found.what, found.name, found.found) == ("gradient", "w", "no rank has it")


def test_a_failed_trial_is_compared_as_far_as_it_came():
    ended = dataclasses.replace(trial(status="failed"), reason="out of memory")
    half = TrialRecord(
        ranks=tuple(dataclasses.replace(r, steps={1: r.steps[1]}) for r in ended.ranks), reason=ended.reason
    )
    assert (compare(REFERENCE, half).verdict, compare(REFERENCE, half).reason) == ("failed", "out of memory")
    wrong = trial(edit=with_losses({1: 1.5}), status="failed")
    assert compare(REFERENCE, wrong).verdict == "differs"


def test_a_refused_trial_is_not_checked():
    refused = dataclasses.replace(trial(status="refused"), reason="no GPU")
    found = compare(REFERENCE, refused)
    assert (found.verdict, found.reason, found.loss_error) == ("not_checked", "no GPU", None)


def test_text_and_json_say_the_same_and_the_json_is_strict():
    kinds = candidates("ddp,fsdp,tensor:tp=3", [2])
    comparisons = (
        compare(REFERENCE, trial()),
        compare(REFERENCE, trial(edit=with_losses({1: math.nan}))),
        dataclasses.replace(compare(REFERENCE, trial()), verdict="not_checked", reason=kinds[2].reason),
    )
    parity = Parity(
        steps=STEPS,
        batch="a batch",
        losses=(2.0, 1.0),
        results=tuple(
            Result(candidate=kind, comparison=found) for kind, found in zip(kinds, comparisons, strict=True)
        ),
    )
    options = {"recipe": "r.yaml", "settings": {"precision": "fp32"}, "folder": "/kept"}
    document = json.loads(json.dumps(as_json(parity, **options), allow_nan=False))
    assert [item["status"] for item in document["results"]] == ["equal", "differs", "not_checked"]
    difference = document["results"][1]["first_difference"]
    assert (difference["step"], difference["what"], difference["found"]) == (1, "loss", "nan")
    assert document["results"][0]["max_rel_loss_error"] == 0.0
    text = as_text(parity, **options)
    assert "ddp" in text
    assert "fsdp on 2 ranks differs first at step 1, in the loss" in text
    assert f"not checked: {kinds[2].reason}" in text
    assert "/kept" in text
