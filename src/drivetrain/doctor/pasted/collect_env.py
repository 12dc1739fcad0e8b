"""`python -m torch.utils.collect_env`, of any torch since 0.4, also where torch could not be imported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from drivetrain.doctor.facts import ABSENT, Driver, Gpu, Libraries, Python, System, Torch
from drivetrain.doctor.pasted.blocks import Block, stretches
from drivetrain.hardware.distribution import distribution_named
from drivetrain.spec.unknown import Unknown

_START = re.compile(r"^\s*(?:\*\s*)?PyTorch version\s*:\s*(?P<version>.*)$", re.IGNORECASE)
_PAIR = re.compile(r"^\s*(?:[-*]\s+)?(?P<key>[A-Za-z][\w .?()/-]{1,60}?)\s*:(?:\s(?P<value>.*))?$")
_GPU = re.compile(r"^\s*GPU (?P<index>\d{1,3}): (?P<name>.+?)\s*$")
_PIP = re.compile(r"^\s*\[pip3?\]\s+(?P<name>[A-Za-z0-9][\w.-]*)(?:==|\s+)(?P<version>[\w.+!-]+)")
_CONDA = re.compile(
    r"^\s*\[conda\]\s+(?P<name>[A-Za-z0-9][\w.-]*)\s+(?P<version>[\w.+!-]+)(?:\s+(?P<rest>.*))?$"
)
_CUDNN = re.compile(r"libcudnn\w*\.so\.(?P<version>[\d.]*\d)|cudnn64_(?P<windows>\d{1,2})\.dll")
_NOTHING = re.compile(r"^(?:N/?A|None|Could not collect|No CUDA.*|Not available)?$", re.IGNORECASE)
_CUDA_WARNING = re.compile(
    r"(?:CUDA initialization: |RuntimeError: |Error: )?(?P<text>(?:The NVIDIA driver on your system is"
    r" too old"
    r"|Found no NVIDIA driver|CUDA unknown error|Unexpected error from cudaGetDeviceCount"
    r"|CUDA driver initialization failed|.{0,80} is not compatible with the current PyTorch installation"
    r"|.{0,80}with CUDA capability sm_\d+ is not).{0,160})"
)


def collect_env_blocks(lines: Sequence[str]) -> list[Block]:
    """A block for each report in the text."""
    starts = [at for at, line in enumerate(lines) if _START.match(line)]
    return [_report(lines, start, end) for start, end in stretches(starts, len(lines))]


def _report(lines: Sequence[str], start: int, end: int) -> Block:
    pairs: dict[str, str] = {}
    gpus: list[Gpu] = []
    cudnn: list[str] = []
    pip: dict[str, str] = {}
    conda: dict[str, str] = {}
    for line in lines[start:end]:
        if (match := _PIP.match(line)) is not None:
            pip.setdefault(match["name"].lower(), match["version"])
        elif (match := _CONDA.match(line)) is not None:
            # "pypi" as the channel: pip installed it into conda's environment, and it is listed twice.
            if "pypi" not in (match["rest"] or ""):
                conda.setdefault(match["name"].lower(), match["version"])
        elif (match := _GPU.match(line)) is not None:
            gpus.append(Gpu(index=int(match["index"]), name=match["name"]))
        elif (match := _PAIR.match(line)) is not None:
            key, value = match["key"].lower(), (match["value"] or "").strip()
            pairs.setdefault(key, value)
            if key.startswith("gpu models") and (listed := _GPU.match(value)) is not None:
                gpus.append(Gpu(index=int(listed["index"]), name=listed["name"]))
        cudnn += [found["version"] or found["windows"] for found in _CUDNN.finditer(line)]
    # Warnings of the import stand above the report.
    above = " ".join(line.strip() for line in lines[max(0, start - 12) : start])
    return Block(
        kind="collect_env",
        line=start,
        system=_system(pairs),
        driver=_driver(pairs),
        gpus=_gpus(gpus, pairs),
        torch=_torch(pairs, above),
        libraries=_libraries(pairs, cudnn, pip, conda),
        python=_python(pairs, pip, conda),
    )


def _value(pairs: Mapping[str, str], key: str) -> str | Unknown:
    if key not in pairs:
        return ABSENT
    value = pairs[key]
    return Unknown(f"collect_env prints {value or 'nothing'}") if _NOTHING.match(value) else value


def _torch(pairs: Mapping[str, str], above: str) -> Torch:
    version = _value(pairs, "pytorch version")
    if isinstance(version, Unknown):
        why = Unknown("torch could not be imported when collect_env ran, so it prints N/A")
        error = (
            "collect_env prints N/A for everything of torch: its import failed (the error is not shown);"
            " that says nothing of GPUs"
        )
        return Torch(version=why, cuda=why, cuda_available=why, import_error=error, archs=why)
    available = pairs.get("is cuda available", "").lower()
    problem = _CUDA_WARNING.search(above)
    cuda = pairs.get("cuda used to build pytorch", "").strip()
    rocm = _value(pairs, "rocm used to build pytorch")
    return Torch(
        version=version,
        import_error="",
        cuda=_cuda(cuda, version),
        rocm=rocm if isinstance(rocm, str) else "",
        cuda_available={"true": True, "yes": True, "false": False, "no": False}.get(available, ABSENT),
        cuda_problem=problem["text"].strip() if problem else ABSENT,
    )


def _cuda(printed: str, version: str) -> str | Unknown:
    if re.fullmatch(r"\d{1,2}\.\d{1,2}(?:\.\d{1,4})?", printed):
        return printed
    if printed.lower() in ("none", "could not collect", "n/a"):
        return ""
    if "+cpu" in version:
        return ""
    return ABSENT


def _driver(pairs: Mapping[str, str]) -> Driver:
    version = _value(pairs, "nvidia driver version")
    if isinstance(version, str):
        # Several GPUs: some versions of the tool print the driver's version once for each.
        first = re.match(r"\d{3}[\d.]*", version)
        version = first.group() if first else Unknown(f"no version: {version[:40]!r}")
    return Driver(version=version)


def _gpus(gpus: Sequence[Gpu], pairs: Mapping[str, str]) -> tuple[Gpu, ...] | Unknown:
    if gpus:
        return tuple({gpu.index: gpu for gpu in gpus}.values())
    printed = _value(pairs, "gpu models and configuration")
    if isinstance(printed, Unknown):
        return Unknown(f"{printed.reason} for GPUs; that does not say that there is none")
    return Unknown(f"no GPU can be read from {printed[:60]!r}")


def _libraries(
    pairs: Mapping[str, str], cudnn: Sequence[str], pip: dict[str, str], conda: dict[str, str]
) -> Libraries:
    nvcc = _value(pairs, "cuda runtime version")
    if isinstance(nvcc, str):
        version = re.match(r"(?:\d{1,2}\.){1,3}\d{1,4}", nvcc)
        nvcc = version.group() if version else Unknown(f"no version: {nvcc[:40]!r}")
    return Libraries(
        nvcc=nvcc,
        system_cudnn=tuple(dict.fromkeys(cudnn)) if cudnn else ABSENT,
        packages=tuple(sorted(pip.items())) if pip else ABSENT,
        conda_packages=tuple(sorted(conda.items())) if pip or conda else ABSENT,
    )


def _python(pairs: Mapping[str, str], pip: dict[str, str], conda: dict[str, str]) -> Python:
    version = _value(pairs, "python version")
    if isinstance(version, str):
        version = version.split()[0]
    has_any = bool(pip or conda)
    return Python(
        version=version,
        numpy=pip.get("numpy", conda.get("numpy", ABSENT)),
        torch_by_pip="torch" in pip if has_any else ABSENT,
        torch_by_conda=bool({"pytorch", "libtorch", "torch"} & set(conda)) if has_any else ABSENT,
    )


def _system(pairs: Mapping[str, str]) -> System:
    name = _value(pairs, "os")
    platform = _value(pairs, "python platform")
    machine = re.search(r"\((x86_64|aarch64|arm64|ppc64le|64-bit)\)", name) if isinstance(name, str) else None
    if machine is None and isinstance(platform, str):
        machine = re.search(r"\b(x86_64|aarch64|ppc64le)\b", platform)
    words = f"{name} {platform}".lower()
    kernel = (
        re.match(r"Linux-(\S+?)-(?:x86_64|aarch64|ppc64le)", platform) if isinstance(platform, str) else None
    )
    distribution = distribution_named(name) if isinstance(name, str) else None
    is_told = isinstance(name, str) or isinstance(platform, str)
    return System(
        name=name,
        distribution=distribution or ABSENT,
        machine=machine.group(1) if machine else ABSENT,
        kernel=kernel.group(1) if kernel else ABSENT,
        is_jetson="tegra" in words if is_told else ABSENT,
        is_wsl="microsoft-standard" in words if is_told else ABSENT,
        is_windows="windows" in words if is_told else ABSENT,
    )
