"""`nvidia-smi`'s table, of any driver from 319 to today: cells are found by what they hold, not by column.

Also the one-line errors that nvidia-smi prints instead, and `nvidia-smi -L`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from drivetrain.doctor.facts import ABSENT, Driver, Gpu, GpuProcess
from drivetrain.doctor.pasted.blocks import Block, stretches
from drivetrain.doctor.pasted.fields import compute_mode, count, flag, is_error, number
from drivetrain.spec.unknown import Unknown

_HEAD = re.compile(
    r"\bNVIDIA-SMI\s+(?P<tool>\d{3}[\d.]*).*?(?:Driver|KMD) Version:\s*(?P<driver>\d{3}[\d.]*)"
    r"(?:.*?CUDA (?:UMD )?Version:\s*(?P<cuda>\S+))?"
)
_BUS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_FIRST = re.compile(
    rf"^[\s|]*(?P<index>\d{{1,3}})\s+(?P<name>\S.*?)\s+(?P<persistence>On|Off|N/A|ERR!)\s*\|\s*"
    rf"(?P<bus>{_BUS})\s*(?P<display>On|Off|N/A|ERR!)?\s*\|\s*(?P<ecc>[^|]*?)\s*(?:\||$)"
)
_SECOND = re.compile(
    r"^[\s|]*(?P<fan>\d{1,3}\s?%|N/A|ERR!)\s+(?P<temp>\d{1,3}\s?C|N/A|ERR!)\s+(?P<perf>P\d{1,2}|N/A|ERR!)\s+"
    r"(?P<power>[^|/]*?|N/A)\s*/\s*(?P<cap>[^|]*?)\s*\|\s*(?P<used>\S+?)\s*/\s*(?P<total>[^|]*?)\s*\|\s*"
    r"(?P<util>\d{1,3}\s?%|N/A|ERR!)\s+(?P<mode>[^|]*?)\s*(?:\||$)"
)
_MIG = re.compile(r"^\s*\|[\s|]*\|\s*(?P<mig>Enabled\*?|Disabled\*?|N/A|ERR!)\s*\|?\s*$")
_MIG_DEVICE = re.compile(
    r"^[\s|]*(?P<gpu>\d{1,3})\s+(?:\d{1,3}|N/A)\s+(?:\d{1,3}|N/A)\s+\d{1,3}\s*\|\s*\d+\s?MiB"
)
_PROCESS = re.compile(
    r"^[\s|]*(?P<gpu>\d{1,3})\s+(?:(?:N/A|\d{1,3})\s+(?:N/A|\d{1,3})\s+)?(?P<pid>\d{2,9})\s+"
    r"(?P<type>C\+G|C|G|M\+C|M)\s+(?P<name>.*?)\s*(?P<memory>\d+\s?MiB|N/A)?\s*\|?\s*$"
)
_LISTED = re.compile(
    r"^\s*GPU (?P<index>\d{1,3}): (?P<name>[^()]+?)\s*\(UUID: (?P<uuid>GPU-[0-9a-fA-F-]{8,60})"
)
_LISTED_MIG = re.compile(r"^\s*MIG .*?Device\s+\d+:\s*\(UUID: MIG-")
_LOST = re.compile(
    r"Unable to determine the device handle for"
    r" (?:GPU\d*:?\s*)?(?P<bus>[0-9A-Fa-f:.]{7,20})[:,]?\s*(?P<why>.*)"
)
_TROUBLES = (
    re.compile(r"Failed to initialize NVML: (?P<why>.+)"),
    re.compile(r"(?P<why>NVIDIA-SMI has failed because .+)"),
    re.compile(r"(?P<why>NVIDIA-SMI couldn't find libnvidia-ml\.so.+)"),
    re.compile(r"^\s*(?P<why>No devices were found)\s*$"),
    re.compile(r"(?P<why>nvidia-smi: (?:command )?not found)"),
    re.compile(r"[Cc]ommand '?(?P<why>nvidia-smi'? not found)"),
)
_LIBRARY_VERSION = re.compile(r"NVML library version: (?P<version>\d{3}[\d.]*)")


def smi_tables(lines: Sequence[str]) -> list[Block]:
    """A block for each table in the text."""
    heads = [at for at, line in enumerate(lines) if _HEAD.search(line)]
    # A table whose head was cut off is still told by its rows.
    first_row = next((at for at, line in enumerate(lines) if _FIRST.match(line)), None)
    if first_row is not None and (not heads or first_row < heads[0]):
        heads.insert(0, first_row)
    return [_table(lines, start, end) for start, end in stretches(heads, len(lines))]


def _table(lines: Sequence[str], start: int, end: int) -> Block:
    head = _HEAD.search(lines[start])
    gpus: list[Gpu] = []
    processes: list[GpuProcess] = []
    has_processes = is_told_that_none = False
    mig_devices: dict[int, int] = {}
    for line in lines[start:end]:
        if "Processes:" in line or "Process name" in line:
            has_processes = True
        elif has_processes:
            is_told_that_none = is_told_that_none or "No running processes found" in line
            processes += [process] if (process := _process(line)) is not None else []
        elif (match := _FIRST.match(line)) is not None:
            gpus.append(_first(match))
        elif (match := _MIG_DEVICE.match(line)) is not None:
            mig_devices[int(match["gpu"])] = mig_devices.get(int(match["gpu"]), 0) + 1
        elif gpus:
            gpus[-1] = _more(gpus[-1], line)
    if has_processes:  # what comes before was not cut off
        gpus = [_with_instances(gpu, mig_devices) for gpu in gpus]
    return Block(
        kind="nvidia-smi",
        line=start,
        driver=_driver(head) if head else Driver(),
        gpus=tuple(gpus) or Unknown("the nvidia-smi table shows no row of a GPU"),
        gpu_processes=tuple(processes)
        if processes or is_told_that_none
        else Unknown("the nvidia-smi table's list of processes is not there, or was cut off"),
    )


def _more(gpu: Gpu, line: str) -> Gpu:
    """A GPU's second line, or the third with its MIG mode."""
    if (match := _SECOND.match(line)) is not None:
        return _second(gpu, match)
    match = _MIG.match(line)
    return gpu if match is None else replace(gpu, mig=flag(match["mig"], "MIG mode"))


def _with_instances(gpu: Gpu, mig_devices: Mapping[int, int]) -> Gpu:
    if gpu.mig is not True or not isinstance(gpu.index, int):
        return gpu
    return replace(gpu, num_mig_instances=mig_devices.get(gpu.index, 0))


def _driver(head: re.Match[str]) -> Driver:
    cuda = head["cuda"]
    if cuda is None:
        shown: str | Unknown = Unknown("this nvidia-smi prints no CUDA version")
    else:
        shown = cuda if re.fullmatch(r"\d{1,2}\.\d", cuda) else Unknown(f"nvidia-smi prints {cuda[:20]}")
    return Driver(version=head["driver"].rstrip("."), max_cuda_shown=shown, trouble="")


def _first(match: re.Match[str]) -> Gpu:
    ecc_text = match["ecc"]
    errors = [f"{name}: {match[name]}" for name in ("name", "persistence", "ecc") if is_error(match[name])]
    uncorrected = count(ecc_text, "uncorrected ECC errors") if ecc_text else ABSENT
    if ecc_text.lower() == "off":
        uncorrected = Unknown("ECC is off")
    ecc: bool | Unknown = True if isinstance(uncorrected, int) else ABSENT
    if ecc_text.lower() == "off":
        ecc = False
    elif isinstance(uncorrected, Unknown):
        ecc = uncorrected
    return Gpu(
        index=int(match["index"]),
        name=match["name"],
        bus_id=match["bus"].upper(),
        persistence=flag(match["persistence"], "persistence mode"),
        ecc=ecc,
        ecc_uncorrected_volatile=uncorrected,
        errors=tuple(errors),
    )


def _second(gpu: Gpu, match: re.Match[str]) -> Gpu:
    named = ("fan", "temp", "perf", "power", "cap", "used", "total", "util", "mode")
    return replace(
        gpu,
        temperature_c=number(match["temp"], "temperature"),
        power_w=number(match["power"], "power"),
        power_limit_w=number(match["cap"], "power limit"),
        memory_used_mib=count(match["used"], "memory in use"),
        memory_total_mib=count(match["total"], "memory"),
        utilization_percent=count(match["util"], "utilisation"),
        compute_mode=compute_mode(match["mode"]),
        errors=(*gpu.errors, *(f"{name}: {match[name].strip()}" for name in named if is_error(match[name]))),
    )


def _process(line: str) -> GpuProcess | None:
    match = _PROCESS.match(line)
    if match is None:
        return None
    memory = count(match["memory"], "the process's memory") if match["memory"] else ABSENT
    return GpuProcess(gpu=int(match["gpu"]), pid=int(match["pid"]), name=match["name"], memory_mib=memory)


def smi_lists(lines: Sequence[str]) -> list[Block]:
    """`nvidia-smi -L`: names and UUIDs, with the MIG instances below each GPU."""
    gpus: list[Gpu] = []
    start = 0
    for at, line in enumerate(lines):
        if (match := _LISTED.match(line)) is not None:
            start = start if gpus else at
            gpus.append(Gpu(index=int(match["index"]), name=match["name"], uuid=match["uuid"]))
        elif gpus and _LISTED_MIG.match(line):
            before = gpus[-1].num_mig_instances
            have = before if isinstance(before, int) else 0
            gpus[-1] = replace(gpus[-1], mig=True, num_mig_instances=have + 1)
    return [Block(kind="nvidia-smi -L", line=start, gpus=tuple(gpus))] if gpus else []


def smi_errors(lines: Sequence[str]) -> list[Block]:
    """What nvidia-smi or the kernel says where the driver does not answer, with the versions it tells."""
    blocks = []
    for at, line in enumerate(lines):
        why = next((match["why"] for pattern in _TROUBLES if (match := pattern.search(line))), None)
        if why is not None:
            near = " ".join(lines[at : at + 3])
            version = _LIBRARY_VERSION.search(near)
            library = version["version"].rstrip(".") if version else ABSENT
            driver = Driver(version=library, trouble=why.strip()[:300])
            blocks.append(Block(kind="nvidia-smi error", line=at, driver=driver))
        elif (match := _LOST.search(line)) is not None:
            why = (match["why"] + " " + (lines[at + 1] if at + 1 < len(lines) else "")).strip()
            gpu = Gpu(bus_id=match["bus"].rstrip(":.").upper(), errors=(f"no handle: {why[:200]}",))
            blocks.append(Block(kind="nvidia-smi error", line=at, gpus=(gpu,), driver=Driver(trouble="")))
        elif "API mismatch" in line and "NVRM" in line:
            joined = re.sub(r"\s*NVRM:\s*", " ", " ".join(lines[at : at + 4]))
            client = re.search(r"version (\d{3}[\d.]*\d)", joined)
            module = re.search(r"kernel module has the version (\d{3}[\d.]*\d)", joined)
            driver = Driver(
                version=client.group(1) if client else ABSENT,
                kernel_module=module.group(1) if module else ABSENT,
                trouble="API mismatch between library and kernel module",
            )
            blocks.append(Block(kind="kernel log", line=at, driver=driver))
    return blocks
