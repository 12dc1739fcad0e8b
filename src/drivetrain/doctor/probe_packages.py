"""What Python has installed, by its metadata; nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import site
import sys
from collections.abc import Mapping
from pathlib import Path

from drivetrain.doctor.facts import ABSENT, Libraries, Python
from drivetrain.spec.unknown import Unknown

_LISTED = re.compile(
    r"^(?:torch\w*|numpy|triton|nvidia-.*|deepspeed|horovod|megatron-core|timm|wandb|apex|flash-attn|transformer-engine"
    r"|lightning|pytorch-lightning|accelerate|transformers|nccl.*|mpi4py|pillow|safetensors|tensorboard|torchmetrics)$",
    re.IGNORECASE,
)
_PIP_NAMES = {"megatron.core": "megatron-core"}
_SHADOWING = re.compile(r"^lib(?:cudnn|cublas|cublasLt|nccl|cudart|cusparse|cusolver|cufft|nvrtc)\w*\.so")


def version_of(name: str) -> str | Unknown:
    """The installed version of an import name or a package, by metadata."""
    package = _PIP_NAMES.get(name, name)
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Unknown(f"{package} is not installed")


def unmet_requirements(name: str) -> tuple[str, ...]:
    """What the package asks for and this environment does not have, extras left out.

    `packaging` comes with torchmetrics; without it nothing is said.
    """
    try:
        from packaging.requirements import InvalidRequirement, Requirement
    except ImportError:
        return ()
    unmet = []
    try:
        listed = importlib.metadata.requires(_PIP_NAMES.get(name, name)) or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    for text in listed:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            continue
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        found = version_of(wanted.name)
        if isinstance(found, Unknown):
            unmet.append(f"{wanted.name}{wanted.specifier} (not installed)")
        elif not wanted.specifier.contains(found, prereleases=True):
            unmet.append(f"{wanted.name}{wanted.specifier} (found {found})")
    return tuple(unmet)


def read_libraries(environ: Mapping[str, str]) -> Libraries:
    packages = {
        name.lower(): item.version
        for item in importlib.metadata.distributions()
        if (name := item.metadata["Name"] or "") and _LISTED.match(name)
    }
    path = environ.get("LD_LIBRARY_PATH", "")
    return Libraries(
        packages=tuple(sorted(packages.items())),
        conda_packages=_conda_packages(),
        pinned=_pinned(),
        library_path=path,
        shadowing=_shadowing(path),
    )


def _conda_packages() -> tuple[tuple[str, str], ...]:
    """From conda-meta's file names (`numpy-1.26.4-py311h….json`): conda itself need not be run."""
    found = []
    for path in sorted((Path(sys.prefix) / "conda-meta").glob("*.json")):
        name, version, *_ = [*path.stem.rsplit("-", 2), ""]
        if version and _LISTED.match(name):
            found.append((name.lower(), version))
    return tuple(found)


def _pinned() -> tuple[tuple[str, str], ...]:
    try:
        listed = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        return ()
    pairs = (re.match(r"([A-Za-z0-9_.-]+)\s*==\s*([\w.+]+)", text) for text in listed)
    return tuple((pair.group(1).lower(), pair.group(2)) for pair in pairs if pair)


def _shadowing(path: str) -> tuple[str, ...]:
    found = []
    for folder in filter(None, path.split(":")):
        try:
            names = sorted(item.name for item in Path(folder).iterdir())
        except OSError:  # a folder of another machine in the variable
            continue
        match = next((name for name in names if _SHADOWING.match(name)), None)
        # The environment's own folders are what should be found.
        if match is not None and not Path(folder).resolve().is_relative_to(Path(sys.prefix).resolve()):
            found.append(f"{folder}/{match}")
    return tuple(found)


def read_python() -> Python:
    places = _places_of_torch()
    is_conda = (Path(sys.prefix) / "conda-meta").is_dir()
    environment = "conda" if is_conda else ("venv" if sys.prefix != sys.base_prefix else "system")
    numpy = version_of("numpy")
    installers = _installers_of_torch()
    return Python(
        version=platform.python_version(),
        environment=environment,
        torch_places=places,
        torch_by_conda="conda" in installers if installers else ABSENT,
        torch_by_pip=bool(installers - {"conda"}) if installers else ABSENT,
        numpy=numpy,
        user_site_in_use=bool(site.ENABLE_USER_SITE),
    )


def _places_of_torch() -> tuple[str, ...]:
    folders = (Path(entry) / "torch" for entry in sys.path if entry)
    found = {str(folder.resolve()) for folder in folders if (folder / "__init__.py").is_file()}
    return tuple(sorted(found))


def _installers_of_torch() -> set[str]:
    found = set()
    for item in importlib.metadata.distributions(name="torch"):
        found.add((item.read_text("INSTALLER") or "pip").strip())
    if any(name in ("pytorch", "libtorch") for name, _ in _conda_packages()):
        found.add("conda")
    return found
