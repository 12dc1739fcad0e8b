"""torch's collect_env, also of old versions and where torch could not be imported."""

from __future__ import annotations

from doctor_captures import COLLECT_ENV, COLLECT_ENV_NO_TORCH, COLLECT_ENV_OLD

from drivetrain.spec.unknown import Unknown


def test_versions_devices_and_packages(facts_of):
    facts = facts_of(COLLECT_ENV)
    assert (facts.torch.version, facts.torch.cuda, facts.torch.cuda_available) == (
        "2.1.2+cu121",
        "12.1",
        True,
    )
    assert (facts.libraries.nvcc, facts.driver.version) == ("11.8.89", "535.86.10")
    assert [gpu.name for gpu in facts.gpus] == ["NVIDIA L40S"] * 2
    assert facts.libraries.system_cudnn == ("8.9.7",)
    assert dict(facts.libraries.packages)["nvidia-nccl-cu12"] == "2.18.1"
    assert facts.libraries.conda_packages == ()  # "pypi" in conda's list is pip's package, listed twice
    assert (facts.system.distribution.id, facts.system.machine) == ("rocky", "x86_64")
    assert facts.python.version == "3.10.13"


def test_not_available_is_neither_no_torch_nor_no_gpu(facts_of):
    facts = facts_of(COLLECT_ENV_NO_TORCH)
    assert isinstance(facts.torch.version, Unknown)
    assert "import failed" in facts.torch.import_error
    assert isinstance(facts.gpus, Unknown)
    assert isinstance(facts.torch.cuda_available, Unknown)
    assert facts.system.is_jetson is True
    assert facts.libraries.nvcc == "12.2.140"


def test_an_old_report_with_a_warning_above_it(facts_of):
    facts = facts_of(COLLECT_ENV_OLD)
    assert (facts.torch.cuda_available, facts.gpus[0].name) == (False, "Tesla P100-PCIE-16GB")
    assert "too old (found version 9010)" in facts.torch.cuda_problem
    assert (facts.python.torch_by_conda, facts.python.torch_by_pip) == (True, True)
