"""Forked ranks are like started ones: own session, environment, output; and nothing of them stays behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from drivetrain.launch.ranks import RankProcesses, RankStart
from drivetrain.spec.job import Pinning

RANK = """
import os, signal, sys, json
facts = {
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "args": sys.argv[1:],
    "only": sorted(name for name in os.environ if name.startswith("RANK_")), "name": __name__,
    "stdin": sys.stdin.read(), "term": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    "int": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "had": "decimal" in sys.modules,
    "cpus": sorted(os.sched_getaffinity(0)),
    "server": "drivetrain.launch.forkserver" in open("/proc/self/cmdline").read(),
}
print(json.dumps(facts))
if sys.argv[1] == "raise":
    raise ValueError("as any program would")
if sys.argv[1] == "wait":
    import time
    time.sleep(100)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[RankProcesses]:
    (tmp_path / "my_rank.py").write_text(RANK)
    (tmp_path / "my_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()"
    )
    # A stand-in for torch, which tells a forked process that CUDA was in use before.
    (tmp_path / "torch.py").write_text(
        "import os\nparent = os.getpid()\nclass cuda:\n    _is_in_bad_fork = lambda: os.getpid() != parent"
    )
    processes = RankProcesses(grace_s=0.5)
    yield processes
    processes.close()


def environment(folder: Path) -> dict[str, str]:
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def start(ranks: RankProcesses, folder: Path, *words: str, **variables: str) -> list[dict[str, object]]:
    for rank in range(len(words)):
        (folder / f"{rank}.log").unlink(missing_ok=True)
    starts = [
        RankStart(
            rank=rank,
            local_rank=rank,
            command=(sys.executable, "-u", "-m", "my_rank", word),
            environment={**environment(folder), "RANK_ID": str(rank), **variables},
            log=folder / f"{rank}.log",
            pinning=Pinning(cpus=(min(os.sched_getaffinity(0)),)),
            error_file=folder / f"{rank}.json",
        )
        for rank, word in enumerate(words)
    ]
    ranks.start(starts, attempt=0, attempts=1)
    return [facts(folder / f"{rank}.log") for rank in range(len(words))]


def facts(log: Path) -> dict[str, object]:
    deadline = time.monotonic() + 20.0
    while True:
        lines = [line for line in log.read_text().splitlines() if line.startswith("{")]
        if lines:
            found: dict[str, object] = json.loads(lines[-1])
            return found
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


def fork_from(ranks: RankProcesses, folder: Path, imports: str) -> None:
    common = environment(folder) | {"RANK_OF_SERVER": "must not be seen"}
    ranks.fork_from(folder / "imports.txt", (sys.executable, "-u", "-m", "my_rank"), common)
    (folder / "imports.txt").write_text(imports)
    deadline = time.monotonic() + 10.0
    while not servers():
        assert time.monotonic() < deadline, "no forkserver was started"
        time.sleep(0.01)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def servers() -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = parent_of(int(folder.name))
        except OSError:
            continue
        if b"drivetrain.launch.forkserver" in words and parent == os.getpid():
            found.append(int(folder.name))
    return found


def test_forked_ranks_are_as_if_they_had_been_started(ranks: RankProcesses, tmp_path: Path) -> None:
    fork_from(ranks, tmp_path, "decimal no_such_module")
    for words, codes in ((("0", "wait"), [0, -signal.SIGKILL]), (("3",), [3]), (("raise",), [1])):
        for rank, told in enumerate(start(ranks, tmp_path, *words)):
            assert told["session"] == told["pid"]
            assert (told["only"], told["stdin"], told["name"]) == (["RANK_ID"], "", "__main__")
            assert (told["args"], told["term"], told["int"]) == ([words[rank]], True, True)
            assert (told["had"], told["server"]) == (True, True)
            assert told["cpus"] == [min(os.sched_getaffinity(0))]
        assert ranks.are_forked
        if words[-1] == "wait":
            # The one between has ended by now: the rank is a child of this process.
            until(lambda: parent_of(ranks.pids()[1]) == os.getpid())
            until(lambda: ranks.ends()[0].returncode is not None)
            os.kill(ranks.pids()[1], signal.SIGKILL)
        assert ranks.wait(10.0)
        assert [end.returncode for end in ranks.ends()] == codes
    assert "ValueError: as any program would" in (tmp_path / "0.log").read_text()
    assert len(servers()) == 1
    ranks.close()
    assert servers() == []


def kill_server(_folder: Path) -> None:
    os.kill(servers()[0], signal.SIGKILL)


@pytest.mark.parametrize(
    ("imports", "hurt", "variables"),
    [
        ("decimal", kill_server, {}),
        ("my_thread", None, {}),  # a fork would not copy it, and might copy locks that it holds
        ("torch", None, {}),  # as it is when CUDA has been touched: see the fixture
        ("decimal", None, {"OMP_NUM_THREADS": "7"}),  # read when a library is loaded
    ],
)
def test_where_they_cannot_be_forked_ranks_are_started(
    ranks: RankProcesses,
    tmp_path: Path,
    imports: str,
    hurt: Callable[[Path], None] | None,
    variables: dict[str, str],
) -> None:
    fork_from(ranks, tmp_path, imports)
    if hurt is not None:
        hurt(tmp_path)
    told = start(ranks, tmp_path, "0", **variables)
    assert told[0]["server"] is False
    assert not ranks.are_forked
    assert ranks.wait(10.0)
    assert ranks.ends()[0].returncode == 0


LAUNCHER = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_forked import fork_from, servers, start
from drivetrain.launch.ranks import RankProcesses
folder = Path(sys.argv[1])
ranks = RankProcesses(grace_s=0.5)
fork_from(ranks, folder, "decimal")
told = start(ranks, folder, "wait")
assert ranks.are_forked
print(told[0]["pid"], servers()[0], flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("ranks")
def test_a_killed_launcher_leaves_neither_ranks_nor_forkserver(tmp_path: Path) -> None:
    code = [sys.executable, "-c", LAUNCHER, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60, check=False)
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 10.0
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"still there: {pids}"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
