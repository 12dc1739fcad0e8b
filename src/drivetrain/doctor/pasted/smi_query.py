"""`nvidia-smi -q`, whole or by section (`-d ECC,PERFORMANCE`), of any driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from drivetrain.doctor.facts import ABSENT, Driver, Gpu
from drivetrain.doctor.pasted.blocks import Block, stretches
from drivetrain.doctor.pasted.fields import compute_mode, count, flag, is_error, number, plain
from drivetrain.spec.unknown import Unknown

_GPU = re.compile(r"^\s*GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_PAIR = re.compile(r"^(?P<indent>\s*)(?P<key>[A-Za-z][^:]*?)\s*:\s+(?P<value>\S.*)$")
_HEADING = re.compile(r"^(?P<indent>\s*)(?P<key>[A-Za-z][\w ./()-]*?)\s*:?\s*$")
_ATTACHED = re.compile(r"^\s*Attached GPUs\s*:\s*(\d{1,3})\s*$")
_NVSMI_LOG = re.compile(r"=+\s*NVSMI LOG\s*=+")

# Reasons that slow a GPU down, as printed → our word. Idle and application clocks are not trouble.
_THROTTLE = {
    "sw power cap": "power cap",
    "hw slowdown": "hardware slowdown",
    "hw thermal slowdown": "hardware thermal slowdown",
    "hw power brake slowdown": "power brake",
    "sw thermal slowdown": "thermal slowdown",
    "sync boost": "sync boost",
    "unknown": "unknown reason",
}


def smi_queries(lines: Sequence[str]) -> list[Block]:
    """A block for each `nvidia-smi -q` log in the text."""
    starts = [at for at, line in enumerate(lines) if _NVSMI_LOG.search(line) or _ATTACHED.match(line)]
    # "Attached GPUs" stands a few lines under the title of the same log.
    starts = [at for at, before in zip(starts, [-99, *starts], strict=False) if at - before > 12]
    if not starts:
        first = next((at for at, line in enumerate(lines) if _GPU.match(line)), None)
        starts = [] if first is None else [first]
    return [_log(lines, start, end) for start, end in stretches(starts, len(lines))]


def _log(lines: Sequence[str], start: int, end: int) -> Block:
    gpu_lines = [at for at in range(start, end) if _GPU.match(lines[at])]
    stop = gpu_lines[0] if gpu_lines else end
    head = _tree(lines[start:stop])
    gpus = []
    for index, (at, until) in enumerate(stretches(gpu_lines, end)):
        match = _GPU.match(lines[at])
        assert match is not None
        gpus.append(_gpu(index, match["bus"].upper(), _tree(lines[at + 1 : until])))
    version = head.get("driver version", "")
    return Block(
        kind="nvidia-smi -q",
        line=start,
        driver=Driver(
            version=plain(version, "the driver's version") if version else ABSENT,
            max_cuda_shown=plain(head["cuda version"], "CUDA") if head.get("cuda version") else ABSENT,
            trouble="" if version else ABSENT,
        ),
        gpus=tuple(gpus) or Unknown("the nvidia-smi -q log shows no GPU"),
    )


def _tree(lines: Iterable[str]) -> dict[str, str]:
    """`"pcie generation/max"` → `"4"`: keys with the headings above them, in lower case.

    Indentation tells what belongs under which heading. Where a paste lost it, a key belongs to the last
    heading, and headings that follow each other are nested. A key that comes again (one process after the
    other) keeps its first value.
    """
    parsed = [item for line in lines if (item := _line(line)) is not None]
    is_flat = len({indent for indent, _, _ in parsed}) == 1
    tree: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    was_heading = False
    for indent, key, value in parsed:
        if is_flat:
            above = above if value is not None or was_heading else []
        else:
            while above and above[-1][0] >= indent:
                above.pop()
        was_heading = value is None
        if value is None:
            above.append((indent, key))
        else:
            tree.setdefault("/".join([*(name for _, name in above), key]), value)
    return tree


def _line(line: str) -> tuple[int, str, str | None] | None:
    """Indentation, key, value; no value for a heading. None for what is neither."""
    pair = _PAIR.match(line)
    match = pair or _HEADING.match(line)
    if match is None:
        return None
    value = (pair["value"] or "") if pair is not None else None
    return len(match["indent"].expandtabs(8)), " ".join(match["key"].lower().split()), value


class _Reader:
    """Looks values up by the end of their path, since headings moved over the years."""

    def __init__(self, tree: Mapping[str, str]) -> None:
        self._tree = tree

    def text(self, *ends: str) -> str | None:
        for end in ends:
            if end in self._tree:
                return self._tree[end]
            found = next((value for path, value in self._tree.items() if path.endswith("/" + end)), None)
            if found is not None:
                return found
        return None

    def below(self, part: str) -> dict[str, str]:
        """Keys under the first heading that ends with `part`."""
        marker = f"/{part}/"
        return {
            path.split(marker, 1)[1]: value
            for path, value in ((f"/{path}", value) for path, value in self._tree.items())
            if marker in path
        }

    def count(self, what: str, *ends: str) -> int | Unknown:
        text = self.text(*ends)
        return ABSENT if text is None else count(text, what)

    def number(self, what: str, *ends: str) -> float | Unknown:
        text = self.text(*ends)
        return ABSENT if text is None else number(text, what)

    def flag(self, what: str, *ends: str) -> bool | Unknown:
        text = self.text(*ends)
        return ABSENT if text is None else flag(text, what)

    def plain(self, what: str, *ends: str) -> str | Unknown:
        text = self.text(*ends)
        return ABSENT if text is None else plain(text, what)


def _gpu(index: int, bus_id: str, tree: dict[str, str]) -> Gpu:
    read = _Reader(tree)
    mode = read.text("compute mode")
    errors = [f"{path.rsplit('/', 1)[-1]}: {value}" for path, value in tree.items() if is_error(value)]
    generation = "pcie generation"
    return Gpu(
        index=index,
        name=read.plain("the name", "product name"),
        bus_id=bus_id,
        uuid=read.plain("the UUID", "gpu uuid"),
        persistence=read.flag("persistence mode", "persistence mode"),
        compute_mode=ABSENT if mode is None else compute_mode(mode),
        mig=read.flag("MIG mode", "mig mode/current"),
        ecc=read.flag("ECC mode", "ecc mode/current"),
        ecc_uncorrected_volatile=_uncorrected(read.below("ecc errors/volatile")),
        ecc_uncorrected_aggregate=_uncorrected(read.below("ecc errors/aggregate")),
        remapped_correctable=read.count("remapped rows", "remapped rows/correctable error"),
        remapped_uncorrectable=read.count("remapped rows", "remapped rows/uncorrectable error"),
        remap_pending=read.flag("a pending remap", "remapped rows/pending"),
        remap_failed=read.flag("a failed remap", "remapped rows/remapping failure occurred"),
        retired_pages_pending=read.flag(
            "pending pages",
            "retired pages/pending page blacklist",
            "retired pages/pending",
            "pending page blacklist",
        ),
        reset_required=_reset_required(read),
        temperature_c=read.number("temperature", "temperature/gpu current temp", "gpu current temp"),
        power_w=read.number(
            "power", "gpu power readings/instantaneous power draw", "power draw", "average power draw"
        ),
        power_limit_w=read.number(
            "power limit",
            "gpu power readings/current power limit",
            "power readings/power limit",
            "current power limit",
            "power limit",
        ),
        power_limit_default_w=read.number("power limit", "default power limit"),
        memory_used_mib=read.count("memory", "fb memory usage/used"),
        memory_total_mib=read.count("memory", "fb memory usage/total"),
        utilization_percent=read.count("utilisation", "utilization/gpu"),
        sm_clock_mhz=read.count("clock", "clocks/sm"),
        sm_clock_max_mhz=read.count("clock", "max clocks/sm"),
        throttle_reasons=_throttle(read),
        pcie_gen=read.count("PCIe generation", f"{generation}/current", f"{generation}/device current"),
        pcie_gen_max=read.count("PCIe generation", f"{generation}/max"),
        pcie_width=read.count("PCIe width", "link width/current"),
        pcie_width_max=read.count("PCIe width", "link width/max"),
        fabric=_fabric(read),
        errors=tuple(dict.fromkeys(errors)),
    )


def _uncorrected(part: Mapping[str, str]) -> int | Unknown:
    """Uncorrectable errors of a volatile or aggregate part: names changed with every architecture.

    Before Ampere: `Double Bit/Total` (also `Device Memory`); since then `SRAM Uncorrectable`,
    `DRAM Uncorrectable`; with Blackwell the SRAM's are split by `Parity` and `SEC-DED`.
    """
    if not part:
        return ABSENT
    totals = [value for path, value in part.items() if path.endswith("double bit/total")]
    names = totals or [
        value
        for path, value in part.items()
        if "uncorrectable" in path.split("/")[-1] and "threshold" not in path and "source" not in path
    ]
    values = [count(value, "uncorrected ECC errors") for value in names]
    known = [value for value in values if isinstance(value, int)]
    # Where the paste ends after the SRAM's lines, no error so far is not "none".
    is_whole = bool(totals) or any("dram" in path for path in part) or "sram uncorrectable" not in part
    if known and (is_whole or sum(known) > 0):
        return sum(known)
    if known:
        return Unknown("the ECC counters were cut off")
    first = next((value for value in values if isinstance(value, Unknown)), None)
    return first or Unknown("no line of uncorrected ECC errors")


def _reset_required(read: _Reader) -> bool | Unknown:
    action = read.text("gpu recovery action")
    if action is not None and action.strip().lower() not in ("none", "n/a", ""):
        return True
    required = read.flag("a reset", "gpu reset status/reset required", "reset required")
    drain = read.flag("a drain", "drain and reset recommended")
    if required is True or drain is True:
        return True
    if action is not None and action.strip().lower() == "none":
        return False
    # The two lines came together: one of them alone is a paste that was cut off.
    return required if required == ABSENT or drain is False else Unknown("the reset status was cut off")


def _throttle(read: _Reader) -> tuple[str, ...] | Unknown:
    reasons = read.below("clocks event reasons") or read.below("clocks throttle reasons")
    if not reasons:
        return ABSENT
    named = {path.rsplit("/", 1)[-1]: flag(value, path) for path, value in reasons.items()}
    if isinstance(named.get("hw slowdown", ABSENT), Unknown):
        return Unknown("the tool prints no state for the throttle reasons")
    return tuple(word for name, word in _THROTTLE.items() if named.get(name) is True)


def _fabric(read: _Reader) -> str | Unknown:
    state, status = read.text("fabric/state"), read.text("fabric/status")
    if state is None:
        return ABSENT
    if plain(state, "the fabric's state") != state.strip():
        return Unknown(f"the tool prints {state.strip()[:40]} for the fabric's state")
    return f"{state.strip()} / {status.strip()}" if status else state.strip()
