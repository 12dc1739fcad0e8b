"""`drivetrain gpus` as processes, on eight GPUs of a compiled NVML stub."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from drivetrain.hardware.leases.look import look
from drivetrain.hardware.processes import process_facts
from nvml_stub import CONFIG_VARIABLE, uuid

SOURCE = Path(__file__).parents[2] / "src"
DRIVETRAIN = (sys.executable, "-m", "drivetrain")
GPUS = (*DRIVETRAIN, "gpus")


class Machine:
    """A machine with stub GPUs and locks of its own."""

    def __init__(self, stub, locks):
        self.stub, self.locks = stub, locks
        self.started = []
        self.environ = {**os.environ, **stub.environment(), "DRIVETRAIN_LEASES": str(locks)}
        self.environ["PYTHONPATH"] = str(SOURCE)
        for name in list(self.environ):
            if name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID") or name.startswith("PET_"):
                del self.environ[name]

    def start(self, *words, verb=("gpus",)):
        process = subprocess.Popen(
            [*DRIVETRAIN, *verb, *words],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *words):
        process = self.start(*words)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def is_held(self, index):
        return look(self.locks, uuid(index)).is_held

    def holders(self, index):
        return look(self.locks, uuid(index)).pids


@pytest.fixture
def machine(nvml_stub, tmp_path):
    locks = tmp_path / "locks"
    locks.mkdir()
    machine = Machine(nvml_stub, locks)
    yield machine
    for process in machine.started:
        process.kill()
        process.wait(timeout=20)
        process.stdout.close()
        process.stderr.close()
    for index in range(8):
        for pid in machine.holders(index):
            os.kill(pid, signal.SIGKILL)


def eventually(condition, what, deadline_s=30.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_the_command_sees_its_gpus_and_its_exit_code_is_passed_on(machine):
    code, out, err = machine.run("lease", "-n", "2", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 7")
    assert (code, out) == (7, f"{uuid(0)},{uuid(1)}\n")
    assert f"leased GPU 0 ({uuid(0)}), GPU 1" in err
    assert machine.run("lease", "--", "sh", "-c", "kill -KILL $$")[0] == 128 + 9
    code, _, err = machine.run("lease", "--", "no-such-program")
    assert (code, "no-such-program" in err) == (2, True)
    assert not machine.is_held(0)


def test_a_killed_wrapper_leaves_the_lease_to_the_command_and_nothing_after_it(machine):
    wrapper = machine.start("lease", "-n", "2", "--for", "4h", "--", "sleep", "60")
    eventually(lambda: len(machine.holders(1)) == 2, "the command has not started")
    wrapper.kill()
    wrapper.wait(timeout=20)
    (command,) = machine.holders(0)
    code, _, err = machine.run("lease", "-n", "7", "--", "true")
    assert (code, "6 of 8 are free" in err, f"(pid {wrapper.pid}): sleep 60" in err) == (1, True, True)
    os.kill(command, signal.SIGKILL)
    eventually(lambda: not machine.is_held(0), "the lease outlived everybody")
    assert machine.run("lease", "-n", "8", "--", "true")[0] == 0


def test_list_shows_leases_processes_and_jobs(machine, tmp_path):
    worker = subprocess.Popen(["sleep", "60"], env={"DRIVETRAIN_RUN_DIR": "/runs/a"})
    try:
        machine.stub.write(
            f"gpu*.temperature = na\ngpu3.process = {worker.pid} compute 1073741824\n"
            "gpu4.error = 15\ngpu5.process = 4194305 compute na\n"
        )
        machine.start("lease", "--for", "2h", "--", "sleep", "60")
        eventually(lambda: len(machine.holders(0)) == 2, "the command has not started")
        code, out, _ = machine.run("list", "--json")
        gpus = json.loads(out)["gpus"]
        _, text, _ = machine.run("list")
    finally:
        worker.kill()
        worker.wait(timeout=20)
    assert (code, len(gpus)) == (0, 8)
    lease = gpus[0]["lease"]
    assert (lease["command"], lease["until_s"] - lease["since_s"]) == ("sleep 60", pytest.approx(7200))
    assert sorted(lease["pids"]) == sorted(machine.holders(0))
    assert gpus[1]["lease"] is None
    (process,) = gpus[3]["processes"]
    assert (process["command"], process["job"]) == ("sleep 60", "run /runs/a")
    assert process["memory_bytes"] == 1 << 30
    assert gpus[4]["uuid"] == {"unknown": "NVML: GPU is lost"}
    assert gpus[0]["temperature_c"] == {"unknown": "N/A on this GPU"}
    rows = text.splitlines()
    assert rows[1].split()[-2:] == ["N/A", "leased"]
    assert "sleep 60, since" in rows[2]
    assert "1 h 59 min left" in rows[2]
    assert any(line.endswith("compute  1.0 GiB  sleep 60 [run /runs/a]") for line in rows)
    assert any(line.split() == ["pid", "4194305", "N/A", "compute", "N/A", "GiB", "N/A"] for line in rows)
    assert [line.split()[-1] for line in rows if line[:1].isdigit()][4] == "unknown"


def test_without_a_driver_there_is_no_gpu_to_list_or_to_lease(machine):
    machine.stub.write("system.init = error 9\n")
    code, out, err = machine.run("list", "--json")
    assert (code, json.loads(out), "not loaded" in err) == (0, {"gpus": []}, True)
    assert machine.run("lease", "--", "true")[0] == 2
    machine.stub.write("system.init = error 18\n")
    assert machine.run("list")[0] == 1


def test_a_time_that_is_over_is_said_and_the_command_goes_on(machine):
    code, out, err = machine.run("lease", "--for", "0.5s", "--", "sh", "-c", "sleep 1; echo done")
    assert (code, out) == (0, "done\n")
    assert "the command will go on" in err
    assert "the lease is over after 0 s; the command goes on, and keeps its GPUs" in err


def test_with_end_the_command_and_what_it_started_are_ended(machine):
    """They ignore SIGTERM; of the children one has closed the lease's files, as Python's subprocess does."""
    idle = "trap '' TERM; while :; do sleep 1; done"
    python = f'{sys.executable} -c \'import subprocess; subprocess.run(["sleep", "61.25"])\''
    script = f"trap '' TERM; {python} & sh -c \"{idle}\" & {idle}"
    code, _, err = machine.run("lease", "--for", "2s", "--end", "--grace", "0.5s", "--", "sh", "-c", script)
    assert code == 128 + 9
    assert "the command gets SIGTERM" in err
    assert "left running" not in err
    assert not machine.is_held(0)
    assert not any(
        process_facts(int(path.name)).command == "sleep 61.25" for path in Path("/proc").glob("[0-9]*")
    )


def test_with_end_a_command_that_ends_in_time_is_not_killed(machine):
    script = "trap 'sleep 0.3; echo saved; exit 75' TERM; while :; do sleep 0.1; done"
    code, out, _ = machine.run("lease", "--for", "2s", "--end", "--", "sh", "-c", script)
    assert (code, out) == (75, "saved\n")


@pytest.mark.parametrize("words", [("--for", "four"), ("--for", "0h"), ("--for", "4h h"), ("--end",)])
def test_a_time_that_is_none_is_refused(machine, words):
    assert machine.run("lease", *words, "--", "true")[0] == 2


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_command(machine, signum):
    name = signum.name.removeprefix("SIG")
    script = f"trap 'exit 9' {name}; echo ready; while :; do sleep 0.05; done"
    process = machine.start("lease", "--", "sh", "-c", script)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    assert process.wait(timeout=30) == 9


def test_what_a_command_leaves_running_keeps_the_lease_and_is_named(machine):
    code, _, err = machine.run("lease", "--", "sh", "-c", "sleep 60 >/dev/null 2>&1 & exit 0")
    (left,) = machine.holders(0)
    assert code == 0
    assert f"left running pid {left} (sleep 60): the GPUs stay leased" in err
    os.kill(left, signal.SIGKILL)
    eventually(lambda: not machine.is_held(0), "the lease outlived everybody")


def test_there_is_no_lease_within_a_lease(machine):
    code, _, err = machine.run("lease", "-n", "2", "--", *GPUS, "lease", "--", "true")
    assert (code, "already runs within a lease" in err) == (2, True)


SHELL = """
for round in $(seq 15); do
    setpriv --reuid {uid} --regid {uid} --clear-groups {gpus} lease -n {num_gpus} --wait -- sh -c '
        for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do mkdir {marks}/$gpu || exit 1; done
        sleep 0.02; echo done >> {marks}/../runs-$(id -u)
        for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , " "); do rmdir {marks}/$gpu; done' || exit 1
done
"""


def test_thirty_runs_of_two_racing_users_never_share_a_gpu(machine):
    """One wants a GPU at a time, the other both; whoever finds another's mark on his GPU fails."""
    if os.getuid() != 0:
        pytest.skip("needs root, to run as two other users")
    uids = (65533, 65534)
    # Not pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        folders = [Path(place, name) for name in ("locks", "marks")]
        for folder in folders:
            folder.mkdir()
            folder.chmod(0o1777)
        library = Path(place, "libnvidia-ml.so.1")
        library.write_bytes(machine.stub.library.read_bytes())
        config = Path(place, "nvml.txt")
        config.write_text("system.count = 2\n")
        environ = {
            **machine.environ,
            "LD_LIBRARY_PATH": place,
            CONFIG_VARIABLE: str(config),
            "DRIVETRAIN_LEASES": str(folders[0]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        for item in (library, config):
            item.chmod(0o755)
        probe = ["setpriv", "--reuid", str(uids[0]), "--regid", str(uids[0]), "--clear-groups", *GPUS, "list"]
        tried = subprocess.run(probe, env=environ, capture_output=True, text=True, timeout=60, check=False)
        if tried.returncode != 0:
            pytest.skip(f"another user cannot run drivetrain from here: {tried.stderr.strip()[-200:]}")
        shells = [
            subprocess.Popen(
                ["sh", "-c", SHELL.format(uid=uid, gpus=" ".join(GPUS), num_gpus=num, marks=folders[1])],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for num, uid in enumerate(uids, start=1)
        ]
        ends = [(shell.communicate(timeout=240)[0], shell.returncode) for shell in shells]
        assert [code for _, code in ends] == [0, 0], ends
        assert [Path(place, f"runs-{uid}").read_text().split() for uid in uids] == [["done"] * 15] * 2
        assert not list(folders[1].iterdir())


RANK = """
import os, sys, time
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    return path


def launcher(machine, script, *flags, seconds="0"):
    words = ("launch", *flags, "--output", str(script.parent / "run"), "--", str(script), seconds)
    return machine.start(*words, verb=())


def test_launch_leases_for_its_ranks_and_starts_one_on_each(machine, script):
    _, err = launcher(machine, script, "--gpus", "2").communicate(timeout=90)
    assert f"leased GPU 0 ({uuid(0)}), GPU 1" in err
    for rank in range(2):
        log = (script.parent / "run" / "logs" / f"rank-{rank:05d}.log").read_text()
        assert log == f"sees {uuid(0)},{uuid(1)}\n"
    assert not (script.parent / "run" / "logs" / "rank-00002.log").exists()
    assert not machine.is_held(0)


def test_ranks_hold_the_lease_that_a_launcher_took_or_runs_in(machine, script):
    """Each in its turn; a launcher that is killed has its ranks ended, and nothing is left."""
    alone = launcher(machine, script, "--gpus", "2", seconds="60")
    eventually(lambda: len(machine.holders(1)) == 3, "the launcher and two ranks")
    assert machine.run("lease", "-n", "7", "--", "true")[0] == 1
    alone.kill()
    eventually(lambda: not machine.is_held(1), "the lease outlived the ranks")
    words = ("launch", "--output", str(script.parent / "within"), "--", str(script), "60")
    machine.start("lease", "-n", "2", "--", *DRIVETRAIN, *words)
    eventually(lambda: len(machine.holders(1)) == 4, "wrapper, launcher and two ranks")


@pytest.mark.parametrize("verb", ["launch", "train"])
def test_a_dry_run_names_the_gpus_and_keeps_none(machine, script, verb):
    what = (str(script), "0") if verb == "launch" else ("digits",)
    process = machine.start(verb, "--gpus", "3", "--dry-run", *what, verb=())
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert out.count(f"CUDA_VISIBLE_DEVICES={uuid(0)},{uuid(1)},{uuid(2)}") == 3
    assert "DRIVETRAIN_GPU_LEASE" not in out
    assert not machine.is_held(0)


def test_with_too_few_gpus_it_says_how_to_wait(machine, script):
    machine.stub.write("system.count = 1\n")
    machine.start("lease", "--", "sleep", "60")
    eventually(lambda: len(machine.holders(0)) == 2, "the command has not started")
    process = launcher(machine, script, "--gpus", "1", "-j", "1x1")
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1
    assert f"drivetrain gpus lease -n 1 --wait -- drivetrain launch -j 1x1 --output {script.parent}" in err
    assert not (script.parent / "run").exists()


def test_a_rank_of_another_launcher_takes_no_lease(machine):
    machine.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    process = machine.start("train", "digits", "--gpus", "1", verb=())
    assert "this is already a rank" in process.communicate(timeout=90)[1]
    assert process.returncode == 2
