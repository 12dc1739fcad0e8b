"""Findings of a pasted text, or of facts made for a test."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

# pytest's importlib mode puts no test folder on sys.path.
if "doctor_captures" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "doctor_captures", Path(__file__).with_name("doctor_captures.py")
    )
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["doctor_captures"] = _module
    _spec.loader.exec_module(_module)

from drivetrain.doctor.checks.table import CHECKS, run_checks
from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.finding import run_check
from drivetrain.doctor.pasted.assemble import facts_of_texts


@pytest.fixture
def facts_of():
    """`facts_of(text)` → the one node's facts; `facts_of(text, node="alpha")` where there are several."""

    def facts_of(text: str, node: str | None = None) -> NodeFacts:
        nodes = {facts.node: facts for facts in facts_of_texts({"paste.txt": text})}
        return nodes[node] if node is not None else next(iter(nodes.values()))

    return facts_of


@pytest.fixture
def findings_of():
    """`findings_of(text)` → (node, check id) → finding."""

    def findings_of(text: str):
        found = run_checks(facts_of_texts({"paste.txt": text}))
        return {(finding.node, finding.id): finding for finding in found}

    return findings_of


@pytest.fixture
def check():
    """`check("shm", facts)` → that check's finding."""
    by_id = {item.id: item for item in CHECKS}

    def check(name: str, facts: NodeFacts):
        return run_check(by_id[name], facts)

    return check
