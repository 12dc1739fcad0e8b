"""Which blocks belong to which node."""

from __future__ import annotations

import pytest
from doctor_captures import COLLECT_ENV, EVERYTHING, IBSTAT, NCCL_TROUBLE, SMI_580, SMI_NARROW, TOPO

from drivetrain.doctor.pasted.assemble import facts_of_texts, read_pasted
from drivetrain.doctor.pasted.clean import clean, decode, prompt_host
from drivetrain.spec.errors import InputError


def nodes_of(**texts):
    return {
        facts.node: facts
        for facts in facts_of_texts({f"/x/{name}.txt": text for name, text in texts.items()})
    }


def test_files_without_hosts_are_one_machine_where_no_tool_comes_twice():
    (facts,) = nodes_of(smi=SMI_580, ib=IBSTAT, env=COLLECT_ENV).values()
    assert facts.node == "smi.txt"
    assert (len(facts.rdma), facts.torch.version, facts.driver.version) == (2, "2.1.2+cu121", "580.95.05")


def test_the_same_tool_in_two_files_is_two_machines():
    nodes = nodes_of(a=SMI_580, b=SMI_NARROW, c=IBSTAT)
    assert {name: facts.driver.version for name, facts in nodes.items() if facts.read[0] == "nvidia-smi"} == {
        "a.txt": "580.95.05",
        "b.txt": "375.66",
    }
    assert len(nodes) == 3


def test_the_same_tool_twice_in_one_file_keeps_both_states():
    first, second = facts_of_texts({"p": SMI_580 + SMI_NARROW})
    assert (first.driver.version, second.driver.version) == ("580.95.05", "375.66")
    assert second.node == "p (paste 2)"


def test_blocks_go_to_the_only_host_that_the_file_names():
    text = SMI_580 + "\nalpha:1:1 [0] NCCL INFO cudaDriverVersion 13000\n"
    assert [facts.node for facts in facts_of_texts({"p": text})] == ["alpha"]
    assert [facts.node for facts in facts_of_texts({"p": SMI_580 + NCCL_TROUBLE})] == ["p", "beta", "gamma"]


def test_everything_at_once_is_read():
    read = {kind for facts in facts_of_texts({"p": EVERYTHING}) for kind in facts.read}
    assert read >= {
        "nvidia-smi",
        "nvidia-smi -q",
        "collect_env",
        "ibstat",
        "ibv_devinfo",
        "NCCL",
        "kernel log",
    }
    assert "nvidia-smi topo -m" in read


def test_a_topology_alone_is_recognised():
    (facts,) = facts_of_texts({"p": TOPO})
    assert (facts.topology_blocks, facts.read) == (1, ("nvidia-smi topo -m",))


@pytest.mark.parametrize(
    "line, host",
    [
        ("me@node7:~$ nvidia-smi", "node7"),
        ("(base) [me@node8 ~]$ ibstat", "node8"),
        ("(venv) me@node9 work# nvidia-smi", "node9"),
        ("root@0a1b2c3d4e5f:/workspace# x", None),
        ("mail me@example.org: thanks", None),
    ],
)
def test_prompts_name_hosts(line, host):
    assert prompt_host(line) == host


def test_colours_quotes_fences_and_entities_are_taken_off():
    text = "> \x1b[31m| 0\x1b[0m |\r\n```\n0 -&gt;&nbsp;1\u200b\n"
    assert clean(text) == ["| 0 |", "", "0 -> 1", ""]
    assert decode("\ufeffNVIDIA".encode("utf-16")) == "\ufeffNVIDIA"


@pytest.mark.parametrize(
    "stamp",
    [
        "2024-01-02T10:11:12.123Z ",
        "[2024-01-02 10:11:12] ",
        "[1,0]<stdout>:",
        "[rank0]: ",
        "(Worker pid=12) ",
    ],
)
def test_what_launchers_put_before_each_line_is_taken_off(stamp):
    text = "".join(f"{stamp}{line}\n" for line in SMI_580.splitlines())
    assert facts_of_texts({"p": text})[0].gpus == facts_of_texts({"p": SMI_580})[0].gpus


def test_a_file_with_nothing_known_is_said_with_what_to_paste(tmp_path):
    path = tmp_path / "x.txt"
    path.write_text("hello\n")
    with pytest.raises(InputError, match="nothing in it is known"):
        read_pasted([path])
    with pytest.raises(InputError, match="check the path"):
        read_pasted([tmp_path / "absent"])
