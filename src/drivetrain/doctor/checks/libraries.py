"""cuDNN, cuBLAS and NCCL as loaded against what the wheel wants; what shadows them; nvcc; two of a kind."""

from __future__ import annotations

from collections.abc import Mapping

from drivetrain.doctor.facts import LoadedLibrary, NodeFacts
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.hardware.cuda_versions import parse_version
from drivetrain.hardware.torch_wheels import wheel_libraries
from drivetrain.spec.unknown import Unknown

AREA = "CUDA libraries"
_UNSET = "unset LD_LIBRARY_PATH (and take the line that sets it out of ~/.bashrc or the image)"


def nvcc(facts: NodeFacts) -> Verdict:
    found, cuda = facts.libraries.nvcc, facts.torch.cuda
    if isinstance(found, Unknown):
        return not_checked(f"nvcc: {found.reason}")
    if isinstance(cuda, Unknown):
        return not_checked(f"nvcc {found}; torch's CUDA: {cuda.reason}")
    mine, theirs = parse_version(found), parse_version(cuda)
    if not mine or not theirs:
        return not_checked(f"nvcc {found}, and torch is built without CUDA")
    expected = f"nvcc {cuda}, only if extensions are compiled (DeepSpeed, Apex, flash-attn)"
    major_minor = f"{theirs[0]}-{theirs[1]}" if len(theirs) > 1 else str(theirs[0])
    fix = (
        f"install cuda-toolkit-{major_minor} beside it and point to it: export CUDA_HOME=/usr/local/cuda-"
        f"{major_minor.replace('-', '.')}; or take a wheel built with CUDA"
        f" {mine[0]}.{mine[1] if len(mine) > 1 else 0}"
    )
    if mine[0] != theirs[0]:
        return failed(
            f"nvcc {found} differs from torch's CUDA {cuda} in its major version: extensions do not compile",
            expected,
            fix,
        )
    if mine[:2] != theirs[:2]:
        return warned(
            f"nvcc {found} differs from torch's CUDA {cuda}: extensions (DeepSpeed) may complain",
            expected,
            fix,
        )
    return passed(f"nvcc {found}, torch's CUDA {cuda}", expected)


def cudnn(facts: NodeFacts) -> Verdict:
    wanted = _pinned(facts, "cudnn")
    loaded = facts.torch.cudnn
    if isinstance(loaded, str) and loaded:
        if wanted is not None and not _same(loaded, wanted):
            return failed(f"cuDNN {loaded} is loaded", f"{wanted}, which the wheel asks for", _UNSET)
        told = f", which the wheel asks for: {wanted}" if wanted else ""
        return passed(f"cuDNN {loaded} is loaded{told}", "the wheel's own cuDNN")
    beside = facts.libraries.system_cudnn
    if isinstance(beside, Unknown):
        return not_checked(beside.reason)
    if not beside:
        return not_checked("no cuDNN is loaded: torch is built without CUDA")
    versions = ", ".join(beside[:4])
    majors = {version.split(".")[0] for version in beside}
    text = (
        f"cuDNN {versions} is installed in the system, beside the wheel's"
        f" own{f' ({wanted})' if wanted else ''}"
    )
    if isinstance(facts.torch.version, Unknown):
        return not_checked(f"cuDNN {versions} is installed in the system; which one torch loads is not known")
    if len(majors) > 1:
        text = f"several cuDNN ({versions}) are installed in the system, beside the wheel's own"
    return warned(
        f"{text}: harmful only where LD_LIBRARY_PATH leads to it",
        "only the wheel's cuDNN is found",
        _UNSET,
    )


def _pinned(facts: NodeFacts, what: str) -> str | None:
    """The version of cuDNN or NCCL that the wheel wants: its own metadata, else the table."""
    if isinstance(facts.libraries.pinned, tuple):
        found = next((v for name, v in facts.libraries.pinned if name.startswith(f"nvidia-{what}-cu")), None)
        if found:
            return found
    if isinstance(facts.torch.version, Unknown) or isinstance(facts.torch.cuda, Unknown):
        return None
    torch, cuda = parse_version(facts.torch.version), parse_version(facts.torch.cuda)
    pair = wheel_libraries(torch, cuda) if torch and cuda else None
    return None if pair is None else pair[0 if what == "nccl" else 1]


def _same(loaded: str, wanted: str) -> bool:
    """Whether they agree as far as both tell (`9.24.0` and `9.24.0.43`)."""
    a, b = parse_version(loaded), parse_version(wanted)
    return a is None or b is None or a[: min(len(a), len(b), 3)] == b[: min(len(a), len(b), 3)]


def nccl(facts: NodeFacts) -> Verdict:
    versions = _nccl_versions(facts)
    wanted = _pinned(facts, "nccl")
    twice = _two_packages(facts, "nccl")
    if twice:
        return failed(
            f"two NCCL packages: {twice}: which one is loaded depends on the order of import",
            "one NCCL",
            f"pip uninstall -y {' '.join(part.split('==')[0] for part in twice.split(', '))}"
            " && pip install --force-reinstall torch",
        )
    printed = () if isinstance(facts.nccl, Unknown) else facts.nccl.all_versions
    if len(printed) > 1:
        return failed(
            f"ranks load different NCCL versions: {', '.join(printed)}",
            "one NCCL on every rank",
            "one image or wheel everywhere",
        )
    loaded = _paths(facts, "libnccl")
    if len(loaded) > 1:
        return failed(f"two NCCL libraries are loaded: {', '.join(loaded)}", "one NCCL", _UNSET)
    if not versions:
        reason = (
            facts.torch.nccl.reason
            if isinstance(facts.torch.nccl, Unknown)
            else "no NCCL: torch without CUDA"
        )
        return not_checked(reason)
    if wanted is not None and (other := next((v for v in versions.values() if not _same(v, wanted)), None)):
        where = next(name for name, v in versions.items() if v == other)
        return failed(f"NCCL {other} ({where})", f"NCCL {wanted}, which the wheel asks for", _UNSET)
    distinct = set(versions.values())
    if any(not _same(a, b) for a in distinct for b in distinct):
        text = ", ".join(f"{version} ({name})" for name, version in versions.items())
        return warned(f"different NCCL versions: {text}", "one NCCL", _UNSET)
    name, version = next(iter(versions.items()))
    return passed(
        f"NCCL {version} ({name}){f', which the wheel asks for: {wanted}' if wanted else ''}", "one NCCL"
    )


def _nccl_versions(facts: NodeFacts) -> Mapping[str, str]:
    versions: dict[str, str] = {}
    if isinstance(facts.torch.nccl, str) and facts.torch.nccl:
        versions["loaded by torch"] = facts.torch.nccl
    if not isinstance(facts.nccl, Unknown) and isinstance(facts.nccl.version, str):
        versions["NCCL's own line"] = facts.nccl.version
    if isinstance(facts.libraries.packages, tuple):
        versions |= {name: v for name, v in facts.libraries.packages if name.startswith("nvidia-nccl-cu")}
    return versions


def _two_packages(facts: NodeFacts, what: str) -> str:
    packages = facts.libraries.packages if isinstance(facts.libraries.packages, tuple) else ()
    found = [f"{name}=={version}" for name, version in packages if name.startswith(f"nvidia-{what}-cu")]
    return ", ".join(found) if len(found) > 1 else ""


def _paths(facts: NodeFacts, name: str) -> list[str]:
    loaded = facts.libraries.loaded if isinstance(facts.libraries.loaded, tuple) else ()
    return sorted({library.path for library in loaded if library.name == name})


def loaded_from_wheel(facts: NodeFacts) -> Verdict:
    """cuBLAS and the others: mapped from the wheel's folders, not from a system-wide toolkit."""
    loaded = facts.libraries.loaded
    if isinstance(loaded, Unknown):
        return not_checked(loaded.reason)
    if not loaded:
        return not_checked("torch loads no CUDA library: it is built without CUDA, or there is no GPU")
    strange: list[LoadedLibrary] = [library for library in loaded if not library.is_from_wheel]
    if strange:
        told = ", ".join(f"{library.name} from {library.path}" for library in strange[:4])
        return failed(
            f"loaded from outside the environment: {told}", "the libraries that torch was built with", _UNSET
        )
    names = ", ".join(sorted({library.name for library in loaded})[:6])
    return passed(f"{len(loaded)} CUDA libraries ({names}), all of this environment", "the wheel's libraries")


def library_path(facts: NodeFacts) -> Verdict:
    path, shadowing = facts.libraries.library_path, facts.libraries.shadowing
    if isinstance(path, Unknown):
        return not_checked(path.reason)
    if isinstance(shadowing, Unknown):
        return not_checked(shadowing.reason)
    if shadowing:
        return warned(
            f"LD_LIBRARY_PATH leads to {', '.join(shadowing[:4])}, which the loader takes before the wheel's",
            "no CUDA library in LD_LIBRARY_PATH",
            _UNSET,
        )
    return passed(
        "LD_LIBRARY_PATH is not set" if not path else "LD_LIBRARY_PATH leads to no CUDA library", ""
    )


CHECKS = (
    Check(id="nvcc", area=AREA, judge=nvcc),
    Check(id="cudnn", area=AREA, judge=cudnn),
    Check(id="nccl", area=AREA, judge=nccl),
    Check(id="loaded_libraries", area=AREA, judge=loaded_from_wheel),
    Check(id="library_path", area=AREA, judge=library_path),
)
