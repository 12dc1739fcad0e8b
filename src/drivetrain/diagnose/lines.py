"""One line of a log: its text, and who wrote it where and when, as far as its prefixes say."""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass

MAX_LINE_CHARS = 6000
"""A longer line is cut around what was found in it."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_DATE = r"\[?(?P<date>(?:\d\d)?\d\d[-/]\d\d[-/]\d\d)[T ]"
_CLOCK = r"(?P<clock>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?:Z|\s?[+-]\d\d:?\d\d)?\]?(?:\s-\s|:\s|\s|$)"
_C_TIME = r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})"
# Each may stand at the start of a line, several behind each other: srun -l around torchrun around NCCL.
_PREFIXES = tuple(
    re.compile(pattern)
    for pattern in (
        # 2024-05-01T10:00:00.123Z, [2024-05-01 10:00:00,123], 24-05-01 10:00:00.1 -
        _DATE + _CLOCK,
        r"\[rank(?P<rank>\d{1,6})\]:\s?",  # torch's own excepthook and glog lines
        r"\[(?!rank)[a-z_]+(?P<local_rank>\d{1,4})\]:\s?",  # torchrun --tee: [default3]:
        r"\[(?:prterun-[^\]@]*@)?\d+,(?P<mpi_rank>\d+)\](?:\[[^\]]*\])?<std(?:err|out|diag)>:\s?",  # mpirun
        # horovodrun, with or without its time
        _C_TIME + r"?\[(?P<hvd_rank>\d{1,6})\]<std(?:err|out)>:\s?",
        r"\s{0,3}(?P<srun_rank>\d{1,5}): (?=\S)",  # srun -l
        r"\[pod/(?P<pod>[^/\]\s]+)/[^\]\s]+\]\s?",  # kubectl logs --prefix
        r"(?P<pdsh>[a-z][a-z0-9.-]*\d[a-z0-9-]*): (?=\S)",  # pdsh (deepspeed), mpirun with host tags
        r"\[\s*\d{1,9}\.\d{6}\]\s",  # dmesg
        r"\[" + _C_TIME + r"\]\s",  # dmesg -T
        # syslog
        r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.-]+) (?=kernel:|[\w./-]+(?:\[\d+\])?:)",
        r"(?:kernel|slurmstepd|slurmd|kubelet)(?:\[\d+\])?:\s(?=\[\s*\d+\.\d+\])",
        r"\[?[EWIF](?P<month>\d{1,2}?)(?P<day>\d\d) (?P<glog>\d\d:\d\d:\d\d\.\d+) ",  # glog: torch's
        # NCCL: host:pid:tid [device]
        r"(?P<nccl_host>[\w.-]+):(?P<pid>\d{1,8}):\d{1,8} \[-?\d+\]\s",
    )
)
_NAMED_RANK = re.compile(r"\[(?:PG[^\]]{0,80}? )?[Rr]ank[ :]?(?P<rank>\d{1,6})\]")
_MAX_PREFIXES = 8


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a line stands. `number` counts from 1; `file` is as the user named it, or "-"."""

    file: str
    number: int
    file_order: int = 0

    @property
    def order(self) -> tuple[int, int]:
        return self.file_order, self.number


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """A time read from a line. Only stamps of the same `kind` can be compared: a glog stamp has no year."""

    kind: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line without escape codes. `text` lacks the prefixes, `shown` has them.

    Attributes:
        is_first_failure: torch's elastic agent gives it as the root cause: the failure that it saw first.
        rank: global rank of the writer, as far as a prefix says; `pid` is the writer's, where NCCL wrote it.
    """

    place: Place
    text: str
    shown: str
    rank: int | None = None
    node: str | None = None
    pid: int | None = None
    stamp: Stamp | None = None
    is_first_failure: bool = False

    @property
    def order(self) -> tuple[bool, tuple[int, int]]:
        """What came first, as far as the log tells."""
        return not self.is_first_failure, self.place.order


def read_line(raw: str, place: Place, *, rank: int | None = None) -> Line:
    """Takes a line apart. `rank` is what is known of the writer from elsewhere; a prefix overrides it."""
    shown = clean(raw)
    text, found = _strip_prefixes(shown)
    prefix_rank = _first(found, "rank", "mpi_rank", "hvd_rank", "local_rank", "srun_rank")
    if named := _NAMED_RANK.search(text):
        prefix_rank = named["rank"]
    pid = found.get("pid")
    return Line(
        place=place,
        text=text,
        shown=shown.strip(),
        rank=int(prefix_rank) if prefix_rank is not None else rank,
        node=_first(found, "nccl_host", "host", "pod", "pdsh"),
        pid=int(pid) if pid is not None else None,
        stamp=_stamp(found),
    )


def clean(raw: str) -> str:
    """Without ANSI codes and control characters, at most `MAX_LINE_CHARS` long."""
    return _CONTROL.sub("", _ANSI.sub("", raw[: MAX_LINE_CHARS * 2]))[:MAX_LINE_CHARS].rstrip()


def has_rank_prefix(line: Line) -> bool:
    """Whether the line begins with the name of its rank."""
    return line.shown.startswith(("[rank", "[default"))


def _strip_prefixes(shown: str) -> tuple[str, dict[str, str]]:
    found: dict[str, str] = {}
    start = 0
    for _ in range(_MAX_PREFIXES):
        match = next((match for prefix in _PREFIXES if (match := prefix.match(shown, start))), None)
        if match is None or match.end() == start:
            break
        for name, value in match.groupdict().items():
            if value is not None:
                found.setdefault(name, value)
        start = match.end()
    return shown[start:], found


def _first(found: dict[str, str], *names: str) -> str | None:
    return next((found[name] for name in names if name in found), None)


def _stamp(found: dict[str, str]) -> Stamp | None:
    try:
        if "date" in found:
            year, month, day = (int(part) for part in re.split("[-/]", found["date"]))
            year += 2000 if year < 100 else 0
            return Stamp(kind="wall", seconds=_seconds(year, month, day, found["clock"]))
        if "glog" in found:
            return Stamp(
                kind="glog", seconds=_seconds(2000, int(found["month"]), int(found["day"]), found["glog"])
            )
    except (ValueError, IndexError, OverflowError):
        return None  # month 13, or other digits that only look like a date
    return None


def _seconds(year: int, month: int, day: int, clock: str) -> float:
    hours, minutes, seconds = clock.replace(",", ".").split(":")
    if not (1 <= month <= 12 and 1 <= day <= 31 and 1970 <= year <= 9999):
        raise ValueError(clock)
    midnight = calendar.timegm((year, month, day, 0, 0, 0))
    return midnight + int(hours) * 3600 + int(minutes) * 60 + float(seconds)
