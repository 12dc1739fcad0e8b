"""`nvidia-smi -q` of old and new drivers."""

from __future__ import annotations

import textwrap

import pytest
from doctor_captures import SMI_QUERY, SMI_QUERY_OLD

from drivetrain.spec.unknown import Unknown


@pytest.mark.parametrize(
    "text", [SMI_QUERY, textwrap.indent(SMI_QUERY, "    "), SMI_QUERY.replace("    ", "\t")]
)
def test_values_are_read_by_their_headings(facts_of, text):
    facts = facts_of(text)
    (gpu,) = facts.gpus
    assert (facts.driver.version, facts.driver.max_cuda_shown) == ("535.129.03", "12.2")
    assert (gpu.name, gpu.bus_id) == ("NVIDIA A100-PCIE-40GB", "00000000:3B:00.0")
    assert (gpu.mig, gpu.persistence, gpu.compute_mode) == (False, False, "prohibited")
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max) == (1, 4, 8, 16)
    assert (gpu.ecc, gpu.ecc_uncorrected_volatile, gpu.ecc_uncorrected_aggregate) == (True, 3, 5)
    assert (gpu.remapped_uncorrectable, gpu.remap_pending, gpu.remap_failed) == (1, True, False)
    assert gpu.throttle_reasons == ("hardware slowdown", "hardware thermal slowdown")
    assert (gpu.power_w, gpu.power_limit_w, gpu.power_limit_default_w) == (40.12, 150, 250)
    assert (gpu.sm_clock_mhz, gpu.sm_clock_max_mhz, gpu.memory_used_mib) == (210, 1410, 4)
    assert gpu.reset_required is True
    assert isinstance(gpu.retired_pages_pending, Unknown)


def test_the_old_spelling_means_the_same(facts_of):
    (gpu,) = facts_of(SMI_QUERY_OLD).gpus
    assert (gpu.ecc, gpu.ecc_uncorrected_volatile) == (True, 2)
    assert (gpu.retired_pages_pending, gpu.throttle_reasons) == (False, ())
    assert (gpu.power_limit_w, gpu.power_limit_default_w) == (149, 149)
    assert isinstance(gpu.mig, Unknown)


def test_a_paste_without_indentation_keeps_what_is_unambiguous(facts_of):
    (gpu,) = facts_of("\n".join(line.strip() for line in SMI_QUERY.splitlines())).gpus
    assert (gpu.persistence, gpu.compute_mode, gpu.reset_required) == (False, "prohibited", True)
    assert (gpu.pcie_gen, gpu.pcie_width, gpu.mig) == (1, 8, False)
    assert (gpu.ecc_uncorrected_volatile, gpu.remap_pending) == (3, True)
    assert gpu.throttle_reasons == ("hardware slowdown", "hardware thermal slowdown")


def test_errors_in_fields_are_kept_as_errors(facts_of):
    text = SMI_QUERY.replace(": 31 C", ": Unknown Error").replace(": 40.12 W", ": GPU is lost")
    (gpu,) = facts_of(text).gpus
    assert "gpu current temp: Unknown Error" in gpu.errors
    assert isinstance(gpu.temperature_c, Unknown)
    assert isinstance(gpu.power_w, Unknown)
