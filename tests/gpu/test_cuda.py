"""On a GPU: trained as on the CPU, in every precision, compiled, resumed; over NCCL where there are two."""

import pytest
import torch

import rank_programs as programs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
NUM_GPUS = torch.cuda.device_count()
STEPS, STOP = 13, 6


@pytest.fixture(scope="module")
def on_cpu(ranks):
    return ranks.run(1, programs.train, steps=STEPS, precision="fp32")[0]


def test_a_gpu_trains_as_the_cpu_does(ranks, on_cpu):
    result = ranks.run(1, programs.train, steps=STEPS, device="cuda", precision="fp32", timeout_s=120)[0]
    assert programs.samples_by_step([result]) == programs.samples_by_step([on_cpu])
    assert result["losses"] == pytest.approx(on_cpu["losses"], rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "compiled"),
    [("tf32", False), ("bf16", False), ("fp16", False), ("bf16", True), ("fp16", True)],
)
def test_every_precision_learns_as_fp32_does(ranks, on_cpu, precision, compiled):
    result = ranks.run(
        1, programs.train, steps=STEPS, device="cuda", precision=precision, compile=compiled, timeout_s=240
    )[0]
    assert result["losses"] == pytest.approx(on_cpu["losses"], rel=0.1)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_deterministic_run_resumes_to_the_bit(ranks, tmp_path, world_size):
    if world_size > NUM_GPUS:
        pytest.skip(f"needs {world_size} GPUs, {NUM_GPUS} here")
    options = {
        "device": "cuda", "deterministic": True, "ema_decay": 0.9, "clip_norm": 0.5,
        "net": {"norm": "batch", "dropout": 0.3},
    }  # fmt: skip
    whole = ranks.run(world_size, programs.train, steps=STEPS, timeout_s=120, **options)
    ranks.run(world_size, programs.train, steps=STOP, output=str(tmp_path), save_every=STOP, **options)
    rest = ranks.run(world_size, programs.train, steps=STEPS, output=str(tmp_path), **options)
    for undisturbed, resumed in zip(whole, rest, strict=True):
        assert resumed["losses"] == undisturbed["losses"][STOP:]
        for name, weight in undisturbed["weights"].items():
            assert torch.equal(resumed["weights"][name], weight), name


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
def test_two_gpus_train_as_one(ranks, on_cpu):
    results = ranks.run(2, programs.train, steps=STEPS, device="cuda", precision="fp32", timeout_s=120)
    for result in results:
        assert result["losses"] == pytest.approx(on_cpu["losses"], rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
def test_sync_batchnorm_makes_two_gpus_train_as_one_with_batch_statistics(ranks):
    options = {"device": "cuda", "precision": "fp32", "net": {"norm": "batch"}, "timeout_s": 120}
    one = ranks.run(1, programs.train, steps=STEPS, **options)[0]
    two = ranks.run(2, programs.train, steps=STEPS, sync_batchnorm=True, **options)[0]
    apart = ranks.run(2, programs.train, steps=STEPS, **options)[0]
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert apart["losses"] != pytest.approx(one["losses"], rel=1e-3)


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
def test_a_nan_on_one_gpu_stops_both_naming_it(ranks):
    texts = ranks.run(
        2, programs.failing, expected="NonFiniteLossError", steps=40, device="cuda", data={"nan_at": 20}
    )
    assert len(set(texts)) == 1
    assert "the loss became nan first at step" in texts[0]


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
@pytest.mark.parametrize("options", [{"on_bad_sample": "skip"}, {"precision": "fp16", "clip_norm": 0.5}])
def test_one_gpu_alone_may_read_the_loss(ranks, options):
    """The others' words come although they may wait for this very rank in a collective."""
    results = ranks.run(
        2, programs.train, steps=STEPS, device="cuda", only_first_reads_loss=True, timeout_s=60, **options
    )
    assert len(results[0]["losses"]) == STEPS


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
@pytest.mark.parametrize(("task", "precision"), [("points", "fp32"), ("text", "fp32"), ("points", "bf16")])
def test_data_parallel_trains_and_evaluates_over_all_gpus_as_one_does(ranks, task, precision):
    options = {
        "steps": STEPS, "device": "cuda", "task": task, "precision": precision, "clip_norm": 0.5,
        "ema_decay": 0.9, "micro_batch": 5, "evaluate_every": STOP, "timeout_s": 120,
    }  # fmt: skip
    one = ranks.run(1, programs.train, strategy="single", **options)[0]
    all_of_them = ranks.run(1, programs.train, strategy="data_parallel", **options)[0]
    rel = 1e-3 if precision == "fp32" else 0.1
    assert all_of_them["losses"] == pytest.approx(one["losses"], rel=rel)
    assert all_of_them["losses"] != one["losses"]  # it is not one GPU that computed
    for key, values in one["evaluations"].items():
        assert all_of_them["evaluations"][key] == pytest.approx(values, rel=rel, abs=0.2 * (rel == 0.1))


@pytest.mark.skipif(NUM_GPUS < 2, reason=f"needs 2 GPUs, {NUM_GPUS} here")
@pytest.mark.parametrize("strategy", ["tensor", "fsdp"])
@pytest.mark.parametrize(
    ("precision", "compiled", "rel"),
    [("fp32", False, 1e-3), ("bf16", False, 0.1), ("bf16", True, 0.1), ("fp16", False, 0.1)],
)
def test_two_gpus_share_each_matrix_and_train_as_one(ranks, strategy, precision, compiled, rel):
    """fsdp has one data rank here: its machinery around the parts, nobody to gather from."""
    options = {
        "steps": STEPS, "device": "cuda", "task": "text", "precision": precision, "clip_norm": 0.5,
        "ema_decay": 0.9, "micro_batch": 5, "timeout_s": 240,
    }  # fmt: skip
    one = ranks.run(1, programs.train, strategy="single", **options)[0]
    both = ranks.run(2, programs.train, strategy=strategy, mesh={"tp": 2}, compile=compiled, **options)
    for result in both:
        assert result["losses"] == pytest.approx(one["losses"], rel=rel)
        assert result["losses"] == both[0]["losses"]
