"""Mangled pastes: no exception anywhere, and no fact that is not in the text."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from doctor_captures import ALL, SMI_580, SMI_NARROW, SMI_QUERY, SMI_QUERY_OLD, SMI_WIDE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drivetrain.doctor.checks.table import run_checks
from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.facts_json import facts_to_json
from drivetrain.doctor.finding import Status
from drivetrain.doctor.pasted.assemble import facts_of_texts
from drivetrain.doctor.pasted.clean import clean, decode
from drivetrain.doctor.render import render
from drivetrain.spec.unknown import Unknown

_TEXTS = [text for name, text in ALL.items() if name != "EVERYTHING"]


@st.composite
def mangled(draw) -> bytes:
    """One or two captures with bytes flipped, cut out, and the end cut off."""
    data = bytearray("\n".join(draw(st.lists(st.sampled_from(_TEXTS), min_size=1, max_size=2))).encode())
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] = draw(st.integers(0, 255))
    if draw(st.booleans()):
        at = draw(st.integers(0, len(data) - 1))
        del data[at : at + draw(st.integers(1, 200))]
    return bytes(data[: draw(st.integers(0, len(data)))])


def _told(facts: NodeFacts) -> list[str]:
    """Facts that must stand in the text as they are."""
    gpus = facts.gpus if isinstance(facts.gpus, tuple) else ()
    ports = facts.rdma if isinstance(facts.rdma, tuple) else ()
    values = (
        facts.driver.version,
        facts.driver.kernel_module,
        facts.torch.version,
        facts.torch.cuda,
        facts.libraries.nvcc,
        *(gpu.name for gpu in gpus),
        *(port.device for port in ports),
        *(gpu.memory_used_mib for gpu in gpus),
        *(gpu.utilization_percent for gpu in gpus),
        *(gpu.ecc_uncorrected_volatile for gpu in gpus if "Uncorrectable" not in facts.read),
    )
    return [str(value) for value in values if isinstance(value, str) or type(value) is int]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mangled())
def test_mangled_pastes_raise_nothing_and_invent_nothing(data):
    text = decode(data)
    nodes = facts_of_texts({"paste": text})
    findings = run_checks(nodes)
    render(findings, is_verbose=True)
    facts_to_json(nodes)
    words = "\n".join(clean(text))
    digits = set(re.findall(r"\d+", words))
    for told in chain.from_iterable(_told(facts) for facts in nodes):
        # A sum of ECC counters is the only number that need not stand there by itself.
        assert told == "" or told in words or told in digits or told.isdigit()
    for finding in findings:
        assert finding.status is Status.PASS or finding.found


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_read_without_an_exception(data):
    run_checks(facts_of_texts({"paste": decode(data)}))


@pytest.mark.parametrize("text", [SMI_NARROW, SMI_WIDE, SMI_580, SMI_QUERY, SMI_QUERY_OLD])
def test_a_gpu_of_a_paste_that_was_cut_off_is_less_known_never_otherwise(text):
    (whole,) = facts_of_texts({"paste": text})
    lines = text.splitlines()
    for num_lines in range(1, len(lines)):
        _hold_against(whole, facts_of_texts({"paste": "\n".join(lines[:num_lines])}))


def _hold_against(whole, nodes):
    for cut in nodes:
        for gpu in cut.gpus if isinstance(cut.gpus, tuple) else ():
            same = next(item for item in whole.gpus if item.bus_id == gpu.bus_id)
            for name, value in vars(gpu).items():
                if name.startswith("ecc_uncorrected") and isinstance(value, int) and value:
                    assert value <= getattr(same, name)  # errors that were seen are told, be they not all
                else:
                    assert isinstance(value, Unknown | tuple) or value == getattr(same, name), name
        if isinstance(cut.gpu_processes, tuple):
            assert cut.gpu_processes or not whole.gpu_processes
