import pytest
import torch

from drivetrain.engine.precision import choose_precision
from drivetrain.spec.errors import InputError

CPU = torch.device("cpu")


def test_auto_on_the_cpu_is_fp32_and_says_why():
    precision = choose_precision("auto", CPU)
    assert (precision.name, precision.uses_scaler, precision.uses_tf32) == ("fp32", False, False)
    assert "CPU" in precision.reason


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_half_precisions_compute_products_in_their_format(name, dtype):
    precision = choose_precision(name, CPU)
    with precision.autocast():
        product = torch.nn.functional.linear(torch.ones(2, 2), torch.ones(2, 2))
    assert product.dtype == dtype
    assert precision.uses_scaler == (name == "fp16")


def test_tf32_on_the_cpu_is_refused():
    with pytest.raises(InputError, match="mode of NVIDIA GPUs"):
        choose_precision("tf32", CPU)


@pytest.mark.parametrize(
    ("capability", "auto"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((6, 1), "fp32")]
)
def test_auto_on_a_gpu_follows_its_compute_capability(monkeypatch, capability, auto):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    assert choose_precision("auto", torch.device("cuda", 0)).name == auto


def test_bf16_on_an_old_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla V100")
    with pytest.raises(InputError, match=r"V100 has compute capability 7\.0"):
        choose_precision("bf16", torch.device("cuda", 0))
