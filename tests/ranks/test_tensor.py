"""tensor, and its compositions with data ranks: the same training as on one rank, each matrix shared."""

import pytest
import torch

import rank_programs
import text_programs as programs

STEPS, STOP = 20, 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("corpus")
    programs.write_corpus(made / "corpus.tokens")
    return str(made)


@pytest.fixture(scope="module")
def alone(ranks, folder):
    return ranks.run(1, programs.train, folder=folder, steps=STEPS, ema_decay=0.9)[0]


# A global batch of 7 sequences: shares are uneven, and accumulation too.
@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (2, {"strategy": "tensor", "activation_checkpointing": 1}),
        (4, {"strategy": "tensor", "mesh": {"tp": 2}, "micro_batch": 2}),
        (4, {"strategy": "fsdp", "mesh": {"tp": 2}, "micro_batch": 2}),
    ],
)
def test_shared_matrices_train_as_whole_ones(ranks, folder, alone, world_size, options):
    results = ranks.run(world_size, programs.train, folder=folder, steps=STEPS, ema_decay=0.9, **options)
    for result in results:
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        assert result["norms"] == pytest.approx(alone["norms"], rel=1e-4)
        assert result["metrics"] == pytest.approx(alone["metrics"], rel=1e-4)
        for kind in ("weights", "ema"):
            for name, weight in alone[kind].items():
                torch.testing.assert_close(result[kind][name], weight, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((1, {}), (4, {"strategy": "fsdp", "mesh": {"tp": 2}})),
        ((4, {"strategy": "fsdp", "mesh": {"tp": 2}}), (2, {"strategy": "tensor"})),
        ((2, {"strategy": "tensor"}), (2, {"strategy": "ddp"})),
        ((2, {"strategy": "fsdp"}), (2, {"strategy": "tensor"})),
        ((2, {"strategy": "tensor"}), (1, {})),
    ],
)
def test_a_checkpoint_of_one_strategy_goes_on_under_another(ranks, folder, tmp_path, alone, first, then):
    shared = {"folder": folder, "ema_decay": 0.9, "output": str(tmp_path), "resume": "auto"}
    (size, options), (other_size, other_options) = first, then
    ranks.run(size, programs.train, steps=STOP, **shared, **options)
    rest = ranks.run(other_size, programs.train, steps=STEPS, **shared, **other_options)[0]
    assert rest["first_step"] == STOP
    assert rest["losses"] == pytest.approx(alone["losses"][STOP:], rel=1e-5)
    for name, weight in alone["ema"].items():
        torch.testing.assert_close(rest["ema"][name], weight, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("world_size", "options"),
    [(2, {"strategy": "tensor", "precision": "bf16"}), (4, {"strategy": "fsdp", "mesh": {"tp": 2}})],
)
def test_a_resumed_run_is_the_same_to_the_bit(ranks, folder, tmp_path, world_size, options):
    shared = {"folder": folder, "ema_decay": 0.9, **options}
    whole = ranks.run(world_size, programs.train, steps=STEPS, **shared)
    shared |= {"output": str(tmp_path), "resume": "auto"}
    ranks.run(world_size, programs.train, steps=STOP, **shared)
    for undisturbed, resumed in zip(
        whole, ranks.run(world_size, programs.train, steps=STEPS, **shared), strict=True
    ):
        assert resumed["losses"] == undisturbed["losses"][STOP:]
        for kind in ("weights", "ema"):
            for name, weight in undisturbed[kind].items():
                assert torch.equal(resumed[kind][name], weight), f"{kind} {name}"


@pytest.mark.parametrize(
    ("model", "net"),
    [
        ("torchvision_vit", {}),
        ("timm_vit", {"qk_norm": True, "init_values": 0.1}),
        ("timm_vit", {"scale_attn_norm": True}),  # whose attention cannot be split
        ("Planned", {}),
    ],
)
def test_models_of_others_train_as_on_one_rank(ranks, model, net):
    if model == "timm_vit":
        pytest.importorskip("timm")
    options = {"steps": 6, "clip_norm": 0.5, "model": model, "net": net, "optimizer": "sgd", "lr": 0.1}
    alone = ranks.run(1, rank_programs.train, **options)[0]
    for result in ranks.run(2, rank_programs.train, strategy="tensor", **options):
        assert result["losses"] == pytest.approx(alone["losses"], rel=1e-5)
        for name, weight in alone["weights"].items():
            torch.testing.assert_close(result["weights"][name], weight, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "Net"}, ["Net", "tensor_plan()"]),
        ({"model": "Planned", "net": {"inner": 40}, "mesh": {"tp": 3}}, ["40 outputs of up", "3", "or ddp"]),
        ({"model": "Planned", "net": {"plan": {"up": "column"}}}, ["says nothing of inside, down, head"]),
        ({"model": "Planned", "net": {"plan": {"inside": "row"}}}, ["'inside'", "LayerNorm"]),
        ({"model": "Planned", "net": {"plan": {"up": "columns"}}}, ["'columns'", "no such word"]),
        ({"model": "Planned", "precision": "fp16"}, ["fp16 on the CPU"]),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(ranks, options, words):
    size = options.get("mesh", {}).get("tp", 2)
    for text in ranks.run(
        size, rank_programs.failing, expected="InputError", steps=1, strategy="tensor", **options
    ):
        for word in words:
            assert word in text
