"""Leases of GPUs: real locks, real processes, and an NVML of the test's own."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from drivetrain.hardware.leases import take as take_module
from drivetrain.hardware.leases.error import LeaseError
from drivetrain.hardware.leases.folder import QUEUE, gpu_file, lease_folder, open_shared
from drivetrain.hardware.leases.holder import Holder, read_holder, span, write_holder
from drivetrain.hardware.leases.look import look
from drivetrain.hardware.leases.request import lease_gpus
from drivetrain.spec.errors import InputError
from drivetrain.spec.unknown import Unknown
from nvml_stub import uuid

RACE = Path(__file__).parents[2] / "lease_race.py"


@pytest.fixture
def locks(tmp_path):
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


class Ask:
    """`ask(2, "0,1")` leases from this process, `ask.close(lease)` gives it back."""

    def __init__(self, stub, locks):
        self.stub, self.locks = stub, locks
        self.held = []

    def __call__(self, num_gpus, visible=None, **how):
        environ = {"DRIVETRAIN_LEASES": str(self.locks)}
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        module = self.stub.module()
        self.held.append(
            lease_gpus(num_gpus, environ=environ, command=("python", "a b"), module=module, **how)
        )
        return self.held[-1]

    def close(self, lease):
        self.held.remove(lease)
        lease.close()


@pytest.fixture
def ask(nvml_stub, locks):
    ask = Ask(nvml_stub, locks)
    yield ask
    for lease in ask.held:
        lease.close()


def indices(lease):
    return [gpu.index for gpu in lease.gpus]


def refusal(ask, *arguments, kind=LeaseError, **how):
    with pytest.raises(kind) as caught:
        ask(*arguments, **how)
    return str(caught.value)


def eventually(condition, what, deadline_s=20.0):
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_a_lease_takes_whole_gpus_and_the_next_gets_others(ask):
    first = ask(2)
    assert first.environment()["CUDA_VISIBLE_DEVICES"] == f"{uuid(0)},{uuid(1)}"
    second = ask(6)
    assert indices(second) == [2, 3, 4, 5, 6, 7]
    assert "GPU 0: leased by" in refusal(ask, 1)
    ask.close(first)
    assert indices(ask(1)) == [0]


def test_the_users_own_list_is_the_pool(ask):
    assert indices(ask(1, "5,3")) == [3]
    assert indices(ask(1, f"{uuid(3)},{uuid(5)}")) == [5]
    message = refusal(ask, 1, "3,5")
    assert "0 of 2 are free (CUDA_VISIBLE_DEVICES=3,5)" in message
    assert "at most 2" in refusal(ask, 3, "3,5", kind=InputError, is_waiting=True)
    assert "at least 1" in refusal(ask, 0, kind=InputError)


def test_placement_chooses_among_the_free_and_its_order_is_the_ranks(ask):
    ask(1, "7")
    seen = []

    def choose(free, n):
        seen.append([gpu.index for gpu in free])
        return list(reversed(free))[:n]

    assert indices(ask(2, choose=choose)) == [6, 5]
    assert seen == [[0, 1, 2, 3, 4, 5, 6]]


def test_who_uses_a_gpu_without_a_lease_is_avoided_and_named(ask, nvml_stub):
    nvml_stub.write(
        f"system.count = 5\ngpu0.process = {os.getpid()} compute na\ngpu1.process = 4194305 mps 5\n"
        "gpu2.memory_used = 0x40000000\ngpu3.process = 7 graphics 5\ngpu3.memory_used = 0x40000000\n"
        "gpu4.process = error 999\n"
    )
    message = refusal(ask, 5)
    assert f"GPU 0: used outside any lease by pid {os.getpid()} (yours: " in message
    assert "GPU 1: used outside any lease by pid 4194305\n" in message
    assert "GPU 2: 1024 MiB are used by processes that cannot be seen here" in message
    assert "GPU 4: its processes are unknown" in message
    assert indices(ask(1)) == [3]  # what a desktop draws does not count


def test_a_gpu_that_fails_is_left_out_and_the_others_are_leased(ask, nvml_stub):
    nvml_stub.write("system.count = 3\ngpu1.error = 15\n")
    assert "GPU 1: its UUID is unknown (NVML: GPU is lost)" in refusal(ask, 3)
    assert indices(ask(2)) == [0, 2]


def test_of_gpus_split_by_mig_none_is_leased(ask, nvml_stub):
    nvml_stub.write("system.count = 2\ngpu0.mig = 1\ngpu0.mig_device = MIG-1\n")
    assert indices(ask(1)) == [1]
    assert "leases are of whole GPUs" in refusal(ask, 2)
    assert "MIG-1 is a MIG instance" in refusal(ask, 1, "MIG-1", kind=InputError)


def test_nvml_that_fails_is_told_from_no_driver(ask, nvml_stub):
    nvml_stub.write("system.init = error 9\n")
    assert "driver is not loaded" in refusal(ask, 1, kind=InputError)
    nvml_stub.write("system.init = error 18\n")
    assert "mismatch" in refusal(ask, 1)


def test_a_lease_outlives_a_killed_parent_while_a_child_lives(ask, locks, tmp_path):
    """The child inherits the file; killed as well, it leaves nothing behind."""
    lease = ask(1, "4")
    program = (
        "import subprocess, sys, time; subprocess.Popen(['sleep', '60'], close_fds=False); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], pass_fds=lease.files)
    ask.close(lease)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    eventually(lambda: len(look(locks, uuid(4)).pids) == 2, "the grandchild has not started")
    child = int(children.read_text())
    parent.kill()
    parent.wait(timeout=20)
    try:
        assert look(locks, uuid(4)).is_held
        assert look(locks, uuid(4)).pids == (child,)
        assert "leased by" in refusal(ask, 1, "4")
    finally:
        os.kill(child, signal.SIGKILL)
    eventually(lambda: not look(locks, uuid(4)).is_held, "the lease outlived everybody")
    assert indices(ask(1, "4")) == [4]


class Waiter:
    """A lease in a process of its own, `python -c`; prints its GPUs when it has them, and keeps them."""

    PROGRAM = (
        "import os, sys, time\n"
        "from drivetrain.hardware.leases.request import lease_gpus\n"
        "held = lease_gpus(int(sys.argv[1]), environ=os.environ, command=('x',), is_waiting=True,\n"
        "                  note=lambda text: print('waits', text, flush=True))\n"
        "print('has', *(gpu.index for gpu in held.gpus), flush=True)\n"
        "time.sleep(60)\n"
    )

    def __init__(self, stub, locks, num_gpus, visible=None):
        environ = {**os.environ, **stub.environment(), "DRIVETRAIN_LEASES": str(locks)}
        environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            environ["CUDA_VISIBLE_DEVICES"] = visible
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, str(num_gpus)],
            env=environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def has(self):
        return next((line.split()[1:] for line in self.lines if line.startswith("has")), None)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=20)
        self._reader.join(timeout=20)
        self.process.stdout.close()


@pytest.fixture
def waiter(nvml_stub, locks):
    started = []

    def waiter(num_gpus, visible=None):
        num_before = sum(look(locks, uuid(index)).num_waiting for index in range(8))
        started.append(Waiter(nvml_stub, locks, num_gpus, visible))
        eventually(
            lambda: (
                started[-1].has
                or sum(look(locks, uuid(index)).num_waiting for index in range(8)) > num_before
            ),
            "the waiter has not started",
        )
        return started[-1]

    yield waiter
    for item in started:
        item.kill()


def test_waiters_get_their_turn_in_order_and_a_dead_one_blocks_nobody(ask, waiter, nvml_stub, locks):
    nvml_stub.write("system.count = 2\n")
    held = ask(1, "0"), ask(1, "1")
    large, dead, small = waiter(2), waiter(1), waiter(1)
    ask.close(held[0])
    time.sleep(1.0)
    # One GPU is free, which the last would take; the first in line waits for two.
    assert (large.has, dead.has, small.has) == (None, None, None)
    assert "3 waiting for it" in refusal(ask, 1)
    dead.kill()
    ask.close(held[1])
    eventually(lambda: large.has == ["0", "1"], "the first in line")
    assert small.has is None
    large.kill()
    eventually(lambda: small.has == ["0"], "the last in line")
    assert any("GPU 0 leased by" in line for line in small.lines)
    assert look(locks, uuid(1)).num_waiting == 0


def test_who_may_use_other_gpus_does_not_wait_for_those_in_line(ask, waiter, nvml_stub):
    nvml_stub.write("system.count = 3\n")
    ask(1, "0")
    waiter(1, "0")
    assert indices(ask(1)) == [1]
    assert waiter(1, "0,2").has == ["2"]


def test_who_waits_goes_on_when_a_process_outside_any_lease_has_ended(waiter, nvml_stub):
    nvml_stub.write("system.count = 1\ngpu0.process = 4194305 compute 5\n")
    waiting = waiter(1)
    eventually(lambda: waiting.lines, "why it waits")
    assert "used outside any lease" in waiting.lines[0]
    nvml_stub.write("system.count = 1\n")
    eventually(lambda: waiting.has == ["0"], "the GPU that became free")


def test_a_thousand_leases_by_racing_processes_never_share_a_gpu():
    """Under two users where this runs as root. Whoever finds another's mark on his GPU fails."""
    # Not pytest's folder, which other users cannot enter.
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        locks, marks = Path(place, "locks"), Path(place, "marks")
        for folder in (locks, marks):
            folder.mkdir()
            folder.chmod(0o1777)
        done = subprocess.run(
            [sys.executable, str(RACE), str(locks), str(marks), "4", "250"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, "1000\n"), done.stderr
        assert not list(marks.iterdir())
        assert not any(look(locks, f"GPU-{index}").is_held for index in range(3))


@pytest.mark.parametrize("trap", ["symlink", "hard link", "fifo", "folder"])
def test_what_somebody_put_in_a_locks_place_is_refused_and_not_written_to(ask, locks, tmp_path, trap):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = gpu_file(locks, uuid(0))
    {
        "symlink": lambda: path.symlink_to(victim),
        "hard link": lambda: path.hardlink_to(victim),
        "fifo": lambda: os.mkfifo(path),
        "folder": path.mkdir,
    }[trap]()
    assert str(path) in refusal(ask, 1)
    assert victim.read_text() == "precious"
    assert isinstance(look(locks, uuid(0)).is_held, Unknown)


def test_a_locks_file_is_everybodys_whatever_the_umask(ask, locks):
    earlier = os.umask(0o077)
    try:
        ask(1)
    finally:
        os.umask(earlier)
    assert gpu_file(locks, uuid(0)).stat().st_mode & 0o777 == 0o666
    assert (locks / QUEUE).stat().st_mode & 0o777 == 0o666


def test_a_removed_file_is_made_anew_while_one_waits(ask, waiter, nvml_stub, locks):
    nvml_stub.write("system.count = 1\n")
    ask(1)
    waiting = waiter(1)
    gpu_file(locks, uuid(0)).unlink()
    eventually(lambda: waiting.has == ["0"], "a lock on the new file")
    assert look(locks, uuid(0)).is_held


def test_one_who_was_stopped_while_choosing_is_not_waited_for_without_end(ask, locks, monkeypatch):
    monkeypatch.setattr(take_module, "_CHOOSING_WAIT_S", 0.2)
    file = open_shared(locks / QUEUE)
    try:
        assert take_module.try_lock(file, take_module.LEASE_BYTE)
        assert "somebody has been choosing" in refusal(ask, 1)
    finally:
        os.close(file)
    ask(1)


def test_without_such_locks_there_is_no_lease_and_none_is_guessed(ask, locks, monkeypatch):
    ask(1)

    def refuse(file, command, lock):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("drivetrain.hardware.leases.byte_locks.fcntl.fcntl", refuse)
    assert "has no locks of open files" in refusal(ask, 1)
    assert isinstance(look(locks, uuid(0)).is_held, Unknown)


def test_the_holder_is_read_back_and_nonsense_is_unknown(ask, locks, tmp_path):
    ask(1, for_s=7200.0, job="run a")
    holder = look(locks, uuid(0)).holder
    assert (holder.pid, holder.command, holder.job) == (os.getpid(), "python 'a b'", "run a")
    assert holder.until_s - holder.since_s == pytest.approx(7200)
    assert "1 h 59 min left" in holder.describe(holder.since_s + 1)
    assert "over for 10 min" in holder.describe(holder.until_s + 600)
    with gpu_file(locks, uuid(0)).open("w") as file:
        file.write("[" * 5000)
    assert isinstance(look(locks, uuid(0)).holder, Unknown)
    with (tmp_path / "record").open("w+b", buffering=0) as file:
        nasty = Holder(user="\x1b[2J", pid=1, command="a\nb\r" + "x" * 9000, since_s=2.0)
        write_holder(file.fileno(), nasty)
        read = read_holder(file.fileno())
        assert (read.user, read.command[:4], len(read.command)) == ("?[2J", "a b ", 500)
        for wrong in ({"since_s": float("nan")}, {"until_s": 1e300}, {"pid": -1}):
            write_holder(file.fileno(), dataclasses.replace(nasty, **wrong))
            assert isinstance(read_holder(file.fileno()), Unknown)


@pytest.mark.parametrize(
    "seconds, text",
    [(5, "5 s"), (90, "1 min"), (7200, "2 h"), (11400, "3 h 10 min"), (172800, "2 d"), (180000, "2 d 2 h")],
)
def test_spans_are_said_in_their_largest_units(seconds, text):
    assert span(seconds) == text


def test_the_folder_does_not_depend_on_who_asks(tmp_path):
    assert lease_folder({}) in (Path("/run/lock"), Path("/tmp"))
    assert lease_folder({"DRIVETRAIN_LEASES": str(tmp_path)}) == tmp_path
    with pytest.raises(InputError, match="no such folder"):
        lease_folder({"DRIVETRAIN_LEASES": str(tmp_path / "none")})
