"""What the children of this room report, as facts: NVML, torch, frameworks, names, storage, trials."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from drivetrain.doctor.child import Ended, run_child
from drivetrain.doctor.facts import (
    ABSENT,
    Driver,
    Framework,
    Gpu,
    GpuProcess,
    LoadedLibrary,
    Storage,
    Torch,
    Trial,
)
from drivetrain.doctor.probe_packages import unmet_requirements, version_of
from drivetrain.spec.unknown import Unknown

T = TypeVar("T")
_WORKERS = "drivetrain.doctor"
_NVML_S = 20.0
_NAME_S = 8.0
_STORAGE_S = 15.0
_TORCH_S = 60.0
_FRAMEWORK_S = 60.0
_TRIAL_S = 60.0


def decode(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass of `facts.py` from a child's JSON: lists are tuples, `{"unknown": reason}` is Unknown."""
    known = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _value(value) for name, value in values.items() if name in known})


def _value(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"unknown"}:
        reason = str(value["unknown"])
        return ABSENT if reason == ABSENT.reason else Unknown(reason)
    return tuple(_value(item) for item in value) if isinstance(value, list) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class NvmlReading:
    """What the NVML child handed back."""

    driver: Driver
    gpus: tuple[Gpu, ...] | Unknown
    processes: tuple[GpuProcess, ...] | Unknown


def read_nvml(environ: Mapping[str, str], *, timeout_s: float = _NVML_S) -> NvmlReading:
    ended = run_child(["-m", f"{_WORKERS}.nvml_worker"], timeout_s=timeout_s, environ=environ)
    if ended.answer is None:
        why = f"reading the GPUs by NVML {_how(ended)}"
        return NvmlReading(driver=Driver(trouble=why), gpus=Unknown(why), processes=Unknown(why))
    gpus, processes = ended.answer["gpus"], ended.answer["processes"]
    driver = decode(Driver, ended.answer["driver"])
    if isinstance(driver.version, Unknown) and driver.trouble in (ABSENT, "") and isinstance(gpus, dict):
        return NvmlReading(driver=driver, gpus=_value(gpus), processes=ABSENT)
    return NvmlReading(
        driver=driver,
        gpus=_value(gpus) if isinstance(gpus, dict) else tuple(decode(Gpu, item) for item in gpus),
        processes=_value(processes)
        if isinstance(processes, dict)
        else tuple(decode(GpuProcess, item) for item in processes),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TorchReading:
    """What the torch child handed back."""

    torch: Torch
    libcuda: str | Unknown
    loaded: tuple[LoadedLibrary, ...] | Unknown
    numpy_works: bool | Unknown


def read_torch(environ: Mapping[str, str], *, timeout_s: float = _TORCH_S) -> TorchReading:
    version = version_of("torch")
    ended = run_child(["-m", f"{_WORKERS}.torch_worker"], timeout_s=timeout_s, environ=environ)
    if ended.answer is None:
        why = Unknown(f"the import of torch {_how(ended)}")
        torch = Torch(version=version, import_error=_how(ended), cuda=why, cuda_available=why, archs=why)
        return TorchReading(torch=torch, libcuda=why, loaded=why, numpy_works=why)
    values = ended.answer
    loaded = tuple(LoadedLibrary(**item) for item in values["loaded"] if item["name"] != "libcuda")
    works = values["numpy_works"]
    libcuda = next((item["path"] for item in values["loaded"] if item["name"] == "libcuda"), None)
    return TorchReading(
        torch=dataclasses.replace(decode(Torch, values), import_error=""),
        libcuda=libcuda or Unknown("torch loads no libcuda: there is no driver, or no GPU"),
        loaded=loaded,
        numpy_works=ABSENT if works is None else bool(works),
    )


def _how(ended: Ended) -> str:
    return {
        "hung": f"was not done after {ended.seconds:.0f} s",
        "crashed": f"crashed with {ended.detail}",
        "error": f"failed: {ended.detail}",
        "ok": "gave no answer",
    }[ended.outcome]


def try_frameworks(
    names: Sequence[str], environ: Mapping[str, str], *, timeout_s: float = _FRAMEWORK_S, jobs: int = 2
) -> tuple[Framework, ...]:
    """Imports each in a process of its own, two at a time; those that are not installed are not tried."""
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        return tuple(pool.map(lambda name: _try_framework(name, environ, timeout_s), names))


def left_out_frameworks(names: Sequence[str], why: str) -> tuple[Framework, ...]:
    return tuple(
        Framework(
            name=name,
            outcome="not_tried" if _is_installed(name) else "absent",
            version=version_of(name),
            detail=why,
        )
        for name in names
    )


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


def _try_framework(name: str, environ: Mapping[str, str], timeout_s: float) -> Framework:
    if not _is_installed(name):
        return Framework(name=name, outcome="absent")
    # Horovod without torch's binding still imports; what counts is the binding.
    code = f"import {name}" + (".torch" if name == "horovod" else "")
    ended = run_child(["-c", code], timeout_s=timeout_s, environ=environ)
    return Framework(
        name=name,
        outcome=ended.outcome,
        version=version_of(name),
        detail=ended.detail,
        seconds=ended.seconds,
        unmet=unmet_requirements(name) if ended.outcome == "ok" else (),
    )


def read_own_addresses(environ: Mapping[str, str]) -> tuple[str, ...] | Unknown:
    ended = run_child(["-m", f"{_WORKERS}.host_worker", "name"], timeout_s=_NAME_S, environ=environ)
    if ended.answer is None:
        return Unknown(f"looking up this node's own name {_how(ended)}")
    return tuple(ended.answer["addresses"])


def measure_storage(folder: Path, environ: Mapping[str, str]) -> Storage:
    command = ["-m", f"{_WORKERS}.host_worker", "storage", str(folder)]
    ended = run_child(command, timeout_s=_STORAGE_S, environ=environ)
    if ended.answer is None:
        why = Unknown(f"reading and writing {folder} {_how(ended)}")
        return Storage(folder=str(folder), write_bytes_per_s=why, read_bytes_per_s=why)
    values = dict(ended.answer)
    problem = values.pop("problem", None)
    if problem is not None:
        values.setdefault("write_bytes_per_s", {"unknown": problem})
        values.setdefault("read_bytes_per_s", {"unknown": problem})
    return decode(Storage, values)


def run_trials(
    environ: Mapping[str, str], *, num_gpus: int, timeout_s: float = _TRIAL_S
) -> tuple[Trial, ...]:
    """The functional test, part by part, so that times are not disturbed by another part."""
    return (
        *_rate_trials(environ, timeout_s),
        all_reduce_trial(environ, kind="cuda" if num_gpus >= 2 else "cpu", timeout_s=timeout_s),
        _loader_trial(environ, timeout_s),
    )


def _rate_trials(environ: Mapping[str, str], timeout_s: float) -> tuple[Trial, ...]:
    """Matmul and copy, in one process: starting CUDA takes longer than either."""
    ended = run_child(["-m", f"{_WORKERS}.functional_worker", "rates"], timeout_s=timeout_s, environ=environ)
    done = ended.answer or {}
    return tuple(
        _rate_trial(name, done[name])
        if name in done
        else Trial(name=name, outcome=ended.outcome, detail=_how(ended))
        for name in ("matmul", "copy")
    )


def _rate_trial(name: str, results: Sequence[Sequence[Any]]) -> Trial:
    """`results`: (device's name, rate, whether the result was right) of each device."""
    wrong = [str(device) for device, _, is_right in results if not is_right]
    device, rate, _ = min(results, key=lambda result: float(result[1]))
    return Trial(
        name=name,
        outcome="wrong" if wrong else "ok",
        detail=f"wrong on {', '.join(wrong)}"
        if wrong
        else f"{len(results)} device{'s' * (len(results) > 1)}",
        rate=float(rate),
        device=str(device),
    )


def all_reduce_trial(environ: Mapping[str, str], *, kind: str, timeout_s: float = _TRIAL_S) -> Trial:
    """Two ranks in two processes; both must end well, each with the right sum."""
    with (
        tempfile.TemporaryDirectory(prefix="drivetrain-doctor-") as folder,
        ThreadPoolExecutor(max_workers=2) as pool,
    ):
        commands = [
            ["-m", f"{_WORKERS}.functional_worker", "all_reduce", str(rank), "2", f"{folder}/store", kind]
            for rank in range(2)
        ]
        ends = list(
            pool.map(lambda command: run_child(command, timeout_s=timeout_s, environ=environ), commands)
        )
    bad = next((ended for ended in ends if ended.answer is None), None)
    if bad is not None:
        return Trial(name="all_reduce", outcome=bad.outcome, detail=_how(bad))
    answers = [ended.answer for ended in ends if ended.answer is not None]
    if not all(given["is_right"] for given in answers):
        return Trial(name="all_reduce", outcome="wrong", detail="the sum over two processes is not 3")
    seconds = max(float(given["seconds"]) for given in answers)
    backend = answers[0]["backend"]
    return Trial(
        name="all_reduce",
        outcome="ok",
        detail=f"two processes, {backend}: the sum is right, {seconds * 1e3:.2f} ms for 1 MiB",
        rate=seconds,
        device=kind,
    )


def _loader_trial(environ: Mapping[str, str], timeout_s: float) -> Trial:
    ended = run_child(["-m", f"{_WORKERS}.functional_worker", "loader"], timeout_s=timeout_s, environ=environ)
    if ended.answer is None:
        return Trial(name="loader", outcome=ended.outcome, detail=_how(ended))
    seconds = float(ended.answer["seconds"])
    outcome = "ok" if ended.answer["is_right"] else "wrong"
    return Trial(
        name="loader",
        outcome=outcome,
        detail=f"first batch of two workers after {seconds:.1f} s",
        rate=seconds,
    )
