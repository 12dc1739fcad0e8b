"""A block to paste into a bug report: versions, what is wrong, and no user, host, address or home folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from drivetrain._version import __version__
from drivetrain.doctor.facts import NodeFacts
from drivetrain.doctor.finding import Finding, Status
from drivetrain.doctor.render import summary
from drivetrain.hardware.torch_wheels import PINNED_VERSIONS
from drivetrain.spec.unknown import Unknown

_ADDRESS = re.compile(r"\b(?!127\.|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}\b(?!\.\d)")
_ADDRESS6 = re.compile(
    r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}|(?<![\w:])fe80::[0-9a-fA-F:%\w]+"
)
_HOME = re.compile(r"/(?:home|Users)/[^/\s:,;'\"]+|/root(?=/|\b)")
_SECRET = re.compile(r"(?i)\b([\w-]*(?:token|api[_-]?key|secret|password|passwd)[\w-]*)(\s*[=:]\s*)\S+")
_LONG_KEY = re.compile(r"\b(?:hf_|ghp_|gho_|sk-|xox[bp]-|AKIA)[A-Za-z0-9_-]{8,}")


def bug_report(
    nodes: Sequence[NodeFacts], findings: Sequence[Finding], environ: Mapping[str, str], *, with_names: bool
) -> str:
    """Markdown. Without `with_names`, hosts are "node 1", … and what names a person or place is left out."""
    lines = ["```text", f"drivetrain {__version__}"]
    for number, facts in enumerate(nodes, 1):
        lines += [f"[{facts.node if with_names else f'node {number}'}]", *_versions(facts)]
        mine = [finding for finding in findings if finding.node == facts.node]
        lines.append(summary(mine))
        for status in (Status.FAIL, Status.WARN, Status.NOT_CHECKED):
            lines += [
                f"{status}: {item.id}: {item.found}" for item in mine if item.status is status and _says(item)
            ]
    lines.append("```")
    text = "\n".join(lines)
    return text if with_names else _without_names(text, nodes, environ)


def _says(finding: Finding) -> bool:
    """Of what was not checked, only where a probe failed is worth a line."""
    return finding.status is not Status.NOT_CHECKED or "failed" in finding.found or "crashed" in finding.found


def _versions(facts: NodeFacts) -> list[str]:
    gpus: Sequence[object] = facts.gpus if isinstance(facts.gpus, tuple) else ()
    names = sorted({str(gpu.name) for gpu in facts.gpus}) if isinstance(facts.gpus, tuple) else []
    pairs = (
        ("system", facts.system.name),
        ("kernel", facts.system.kernel),
        ("machine", facts.system.machine),
        ("container", facts.system.container),
        ("driver", facts.driver.version),
        ("GPUs", f"{len(gpus)} {', '.join(names)}".strip() if isinstance(facts.gpus, tuple) else facts.gpus),
        ("python", facts.python.version),
        ("torch", facts.torch.version),
        ("CUDA of torch", facts.torch.cuda),
        ("NCCL", facts.torch.nccl),
        ("cuDNN", facts.torch.cudnn),
        ("numpy", facts.python.numpy),
    )
    lines = [f"{name}: {value}" for name, value in pairs if not isinstance(value, Unknown) and value != ""]
    packages = facts.libraries.packages if isinstance(facts.libraries.packages, tuple) else ()
    if packages:
        lines.append("packages: " + " ".join(f"{name}=={version}" for name, version in packages))
    variables = facts.host.nccl_variables if isinstance(facts.host.nccl_variables, tuple) else ()
    return lines + [f"{name}={value}" for name, value in variables]


def _package_versions(facts: NodeFacts) -> list[str]:
    listed = (facts.libraries.packages, facts.libraries.pinned, facts.libraries.conda_packages)
    return [version for pairs in listed if isinstance(pairs, tuple) for _, version in pairs]


def _without_names(text: str, nodes: Sequence[NodeFacts], environ: Mapping[str, str]) -> str:
    text = _SECRET.sub(r"\1\2(left out)", text)
    text = _LONG_KEY.sub("(left out)", text)
    text = _HOME.sub("~", text)
    text = _ADDRESS6.sub("(address)", text)
    # Versions of NVIDIA's packages have four numbers, too.
    versions = {version for facts in nodes for version in _package_versions(facts)} | set(PINNED_VERSIONS)
    text = _ADDRESS.sub(lambda found: found[0] if found[0] in versions else "(address)", text)
    for number, facts in enumerate(nodes, 1):
        for name in {facts.node, facts.node.split(".")[0]}:
            if len(name) >= 3:
                text = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", f"node {number}", text)
    user = environ.get("USER") or environ.get("LOGNAME") or ""
    if len(user) >= 3 and user != "root":
        text = re.sub(rf"(?<![\w-]){re.escape(user)}(?![\w-])", "(user)", text)
    return text
