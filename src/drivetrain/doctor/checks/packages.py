"""Python: several torches, numpy's ABI, conda and pip mixed, and whether frameworks import and match."""

from __future__ import annotations

from collections.abc import Callable

from drivetrain.doctor.facts import Framework, NodeFacts
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.hardware.cuda_versions import parse_version
from drivetrain.spec.unknown import Unknown

AREA = "Python"
FRAMEWORKS = ("torchvision", "timm", "deepspeed", "horovod", "megatron.core", "wandb")
"""Import names of what is tried, each in a process of its own."""

_PIP_NAMES = {"megatron.core": "megatron-core"}


def one_torch(facts: NodeFacts) -> Verdict:
    places = facts.python.torch_places
    reported = facts.torch.version
    packages = dict(facts.libraries.packages) if isinstance(facts.libraries.packages, tuple) else {}
    by_pip = packages.get("torch")
    fix = (
        "keep one: pip uninstall -y torch (again until it is gone), conda remove pytorch; then"
        " install it once"
    )
    if isinstance(places, tuple) and len(places) > 1:
        return failed(f"torch is installed {len(places)} times: {', '.join(places)}", "one torch", fix)
    if isinstance(reported, str) and by_pip and parse_version(by_pip) != parse_version(reported):
        return failed(f"torch {reported} is imported, pip lists {by_pip}", "one torch", fix)
    if facts.python.torch_by_conda is True and facts.python.torch_by_pip is True:
        return warned(
            "both conda and pip have installed torch: files of two builds are mixed", "one torch", fix
        )
    if isinstance(places, Unknown):
        return not_checked(places.reason)
    return passed("one torch" if places else "no torch is installed", "one torch")


def conda_and_pip(facts: NodeFacts) -> Verdict:
    by_pip, by_conda = facts.libraries.packages, facts.libraries.conda_packages
    if isinstance(by_pip, Unknown) or isinstance(by_conda, Unknown):
        return not_checked("packages of conda and pip are not both told")
    # What both bring in another version: the one whose files were written last is imported.
    conda, pip = dict(by_conda), dict(by_pip)
    conda = {{"pytorch": "torch"}.get(name, name): version for name, version in conda.items()}
    mixed = [
        f"{name} (pip {pip[name]}, conda {conda[name]})"
        for name in sorted(set(pip) & set(conda))
        if parse_version(pip[name]) != parse_version(conda[name])
    ]
    if mixed:
        return warned(
            f"installed by both, in different versions: {', '.join(mixed[:4])}",
            "each package from one of them",
            f"pip uninstall {' '.join(item.split(' ')[0] for item in mixed[:4])}, or conda remove it",
        )
    return passed(
        "no package comes from both" if conda else "no conda packages", "each package from one of them"
    )


def numpy_abi(facts: NodeFacts) -> Verdict:
    numpy = facts.python.numpy
    if isinstance(numpy, Unknown):
        return not_checked(numpy.reason)
    if facts.python.numpy_works is False:
        return failed(
            f"numpy {numpy}: torch cannot make arrays of it",
            "numpy that torch was built for",
            "pip install --force-reinstall numpy torch",
        )
    mine = parse_version(numpy)
    torch = parse_version(facts.torch.version) if isinstance(facts.torch.version, str) else None
    if mine is None or torch is None:
        return not_checked(f"numpy {numpy}; torch's version is not known")
    # torch 2.3 was the first whose wheels were built against numpy 2's ABI.
    if mine >= (2,) and torch < (2, 3):
        return failed(
            f"numpy {numpy} with torch {facts.torch.version}, which is built for numpy 1",
            "numpy < 2",
            "pip install 'numpy<2'",
        )
    return passed(f"numpy {numpy} with torch {facts.torch.version}", "")


def vision_matches(facts: NodeFacts) -> Verdict:
    packages = dict(facts.libraries.packages) if isinstance(facts.libraries.packages, tuple) else {}
    conda = dict(facts.libraries.conda_packages) if isinstance(facts.libraries.conda_packages, tuple) else {}
    vision, torch_text = packages.get("torchvision", conda.get("torchvision")), facts.torch.version
    if vision is None:
        return not_checked("torchvision is not listed")
    if isinstance(torch_text, Unknown):
        return not_checked(torch_text.reason)
    mine, torch = parse_version(vision), parse_version(torch_text)
    if not mine or not torch or len(mine) < 2 or len(torch) < 2 or torch < (1, 8):
        return not_checked(f"torchvision {vision}, torch {torch_text}: not in the rule")
    # torchvision's table of releases: 0.(minor + 15) for torch 2.minor, 0.(minor + 1) for 1.minor since 1.8.
    wanted = (0, torch[1] + 15) if torch[0] == 2 else (0, torch[1] + 1)
    if mine[:2] != wanted:
        return failed(
            f"torchvision {vision} with torch {torch_text}",
            f"torchvision {wanted[0]}.{wanted[1]}",
            f"pip install 'torchvision=={wanted[0]}.{wanted[1]}.*'",
        )
    return passed(f"torchvision {vision} with torch {torch_text}", f"torchvision {wanted[0]}.{wanted[1]}")


def _framework(name: str) -> Callable[[NodeFacts], Verdict]:
    def judge(facts: NodeFacts) -> Verdict:
        if isinstance(facts.frameworks, Unknown):
            return not_checked(facts.frameworks.reason)
        found = next((item for item in facts.frameworks if item.name == name), None)
        return not_checked("not tried") if found is None else _judge_framework(found)

    return judge


def _judge_framework(found: Framework) -> Verdict:
    package = _PIP_NAMES.get(found.name, found.name)
    version = found.version if isinstance(found.version, str) else ""
    told = f"{package} {version}".strip()
    expected = "imports, and finds what it requires"
    if found.outcome == "absent":
        return not_checked(f"{package} is not installed")
    if found.outcome == "not_tried":
        return not_checked(f"{told}: {found.detail}")
    if found.outcome == "crashed":
        return failed(
            f"{told}: the import ended with {found.detail}",
            expected,
            f"python -X faulthandler -c 'import {found.name}' shows where; reinstall it for this"
            " torch: pip install"
            f" --force-reinstall --no-cache-dir {package}",
        )
    if found.outcome == "hung":
        return failed(
            f"{told}: the import was not done after {found.seconds:.0f} s",
            expected,
            "python -X faulthandler -c 'import faulthandler; faulthandler.dump_traceback_later(20);"
            f" import {found.name}'",
        )
    if found.outcome == "error":
        lacks_driver = "libcuda.so" in found.detail
        fix = (
            "install NVIDIA's driver, or start the container with --gpus all"
            if lacks_driver
            else f"pip install --force-reinstall --no-cache-dir {package}"
        )
        return failed(f"{told}: {found.detail}", expected, fix)
    if found.unmet:
        return warned(
            f"{told} imports, but asks for {', '.join(found.unmet[:3])}",
            expected,
            f"pip install -U {package}",
        )
    return passed(f"{told} imports in {found.seconds:.1f} s", expected)


CHECKS = (
    Check(id="one_torch", area=AREA, judge=one_torch),
    Check(id="conda_and_pip", area=AREA, judge=conda_and_pip),
    Check(id="numpy_abi", area=AREA, judge=numpy_abi),
    Check(id="torchvision_matches", area=AREA, judge=vision_matches),
    *(
        Check(id=f"import_{_PIP_NAMES.get(name, name).replace('-', '_')}", area=AREA, judge=_framework(name))
        for name in FRAMEWORKS
    ),
)
