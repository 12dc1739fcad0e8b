"""The text, the block for a bug report, the JSON."""

from __future__ import annotations

import json

from doctor_captures import EVERYTHING, NCCL_TROUBLE, SMI_NARROW

from drivetrain.doctor.bug_report import bug_report
from drivetrain.doctor.checks.table import run_checks
from drivetrain.doctor.facts import Host, Libraries, NodeFacts, Torch
from drivetrain.doctor.facts_json import facts_to_json
from drivetrain.doctor.finding import Finding, Status
from drivetrain.doctor.pasted.assemble import facts_of_texts
from drivetrain.doctor.render import render


def finding(area, status, name, node="n"):
    return Finding(
        id=name, area=area, status=Status(status), found=f"{name}!", expected="e", fix="f", node=node
    )


def test_the_worst_stands_first():
    text = render(
        [
            finding("A", "pass", "a1"),
            finding("B", "warn", "b1"),
            finding("B", "fail", "b2"),
            finding("C", "not_checked", "c1"),
            finding("C", "warn", "c2"),
        ]
    )
    at = [text.index(word) for word in ("b2!", "b1!", "c2!", "pass: a1")]
    assert at == sorted(at)
    assert text.endswith("1 fail, 2 warn, 1 pass, 1 not checked")
    assert "c1!" not in text
    assert "not checked: c1" in text


def test_verbose_gives_every_reason():
    assert "c1!" in render([finding("C", "not_checked", "c1")], is_verbose=True)


def test_json_has_the_keys_that_are_promised():
    nodes = facts_of_texts({"x": EVERYTHING})
    value = json.loads(
        json.dumps({"facts": facts_to_json(nodes), "checks": [f.to_json() for f in run_checks(nodes)]})
    )
    assert set(value["checks"][0]) == {"id", "status", "found", "expected", "fix", "node"}
    assert {item["node"] for item in value["checks"]} == set(value["facts"])


def test_facts_tell_unknown_with_its_reason_and_derive_the_newest_cuda():
    facts = facts_to_json(facts_of_texts({"x": SMI_NARROW}))["x"]
    assert facts["driver"]["max_cuda_shown"] == {"unknown": "this nvidia-smi prints no CUDA version"}
    assert (facts["summary"]["driver"], facts["summary"]["max_cuda"], facts["summary"]["num_gpus"]) == (
        "375.66",
        "8.0",
        2,
    )
    assert facts["summary"]["utilization_percent"] == [0, 100]


def test_a_bug_report_names_nobody():
    facts = NodeFacts(
        node="blue7.example.org",
        torch=Torch(
            version="2.9.1", import_error="/home/maria/env: no HF_TOKEN=hf_abcdefghijk at 10.1.2.3, fe80::1"
        ),
        libraries=Libraries(packages=(("nvidia-cublas", "13.1.1.3"),)),
        host=Host(nccl_variables=(("NCCL_SOCKET_IFNAME", "eth0"),), addresses_of_own_name=("10.1.2.3",)),
    )
    environ = {"USER": "maria"}
    text = bug_report([facts], run_checks([facts]), environ, with_names=False)
    for word in ("maria", "blue7", "10.1.2.3", "fe80", "hf_abc", "/home"):
        assert word not in text
    assert "torch: 2.9.1" in text
    assert "nvidia-cublas==13.1.1.3" in text
    assert "NCCL_SOCKET_IFNAME=eth0" in text
    assert "blue7.example.org" in bug_report([facts], [], environ, with_names=True)


def test_nodes_of_a_paste_are_numbered_in_a_bug_report():
    nodes = facts_of_texts({"x": NCCL_TROUBLE})
    text = bug_report(nodes, run_checks(nodes), {}, with_names=False)
    assert "[node 2]" in text
    assert "beta" not in text
    assert "172.17.0.2" not in text
