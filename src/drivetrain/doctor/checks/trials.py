"""The functional test: matmul, copy, a two-process all-reduce, the loader's start."""

from __future__ import annotations

from collections.abc import Callable

from drivetrain.doctor.facts import NodeFacts, Trial
from drivetrain.doctor.finding import Check, Verdict, failed, not_checked, passed, warned
from drivetrain.hardware.gpu_models import find_gpu_model
from drivetrain.spec.unknown import Unknown

AREA = "Functional test"
# cuBLAS reaches 65 to 85 % of the dense rate at these sizes on a sound card with clocks up; below this share
# something holds the card back.
_MATMUL_WARN_SHARE = 0.5
_MATMUL_FAIL_SHARE = 0.25
_COPY_WARN_BYTES_PER_S = 5e9
_LOADER_WARN_S = 20.0


def _trial(facts: NodeFacts, name: str) -> Trial | Verdict:
    if isinstance(facts.trials, Unknown):
        return not_checked(facts.trials.reason)
    found = next((item for item in facts.trials if item.name == name), None)
    if found is None:
        return not_checked("not tried")
    if found.outcome == "not_tried":
        return not_checked(found.detail)
    if found.outcome == "ok":
        return found
    what = {
        "wrong": "gave a wrong result",
        "error": "failed",
        "crashed": "crashed",
        "hung": "was not done in its time",
    }[found.outcome]
    return failed(f"{name} {what}: {found.detail}", "right, and done in its time", _FIXES[name])


_FIXES = {
    "matmul": "dmesg for Xid; the same on another GPU (CUDA_VISIBLE_DEVICES=1) tells card from installation",
    "copy": "dmesg for Xid and PCIe errors; nvidia-smi -q -d PERFORMANCE",
    "all_reduce": "NCCL_DEBUG=INFO (GLOO: check that this node's own name resolves; export"
    " GLOO_SOCKET_IFNAME=lo)",
    "loader": "enlarge /dev/shm; ulimit -n; python -X faulthandler",
}


def matmul(facts: NodeFacts) -> Verdict:
    trial = _trial(facts, "matmul")
    if isinstance(trial, Verdict):
        return trial
    if isinstance(trial.rate, Unknown):
        return not_checked(trial.rate.reason)
    told = f"{trial.device}: {trial.rate:.2f} TFLOP/s, {trial.detail}"
    model = find_gpu_model(trial.device)
    if model is None or model.tflops is None:
        if "cpu" in trial.device.lower():
            return passed(f"{told}; the result is right (no known rate for processors)", "the right result")
        return not_checked(f"{told}; the result is right, and this card's rate is not in the table")
    share = trial.rate / model.tflops
    told += f", {share:.0%} of the card's {model.tflops:g}"
    expected = f"at least {_MATMUL_WARN_SHARE:.0%} of {model.tflops:g} TFLOP/s (dense, bfloat16 or float16)"
    fix = (
        "nvidia-smi -q -d CLOCK,PERFORMANCE,POWER while it runs: throttling, a power cap, another"
        " job on the card"
    )
    if share < _MATMUL_FAIL_SHARE:
        return failed(told, expected, fix)
    return warned(told, expected, fix) if share < _MATMUL_WARN_SHARE else passed(told, expected)


def copy(facts: NodeFacts) -> Verdict:
    trial = _trial(facts, "copy")
    if isinstance(trial, Verdict):
        return trial
    if isinstance(trial.rate, Unknown):
        return not_checked(trial.rate.reason)
    told = f"{trial.device}: {trial.rate / 1e9:.1f} GB/s, {trial.detail}"
    if "cpu" not in trial.device.lower() and trial.rate < _COPY_WARN_BYTES_PER_S:
        return warned(
            told, "above 5 GB/s from pinned memory", "see pcie: lanes and generation; another job's copies"
        )
    return passed(told, "the copy equals the original")


def _simple(name: str, limit_s: float | None = None) -> Callable[[NodeFacts], Verdict]:
    def judge(facts: NodeFacts) -> Verdict:
        trial = _trial(facts, name)
        if isinstance(trial, Verdict):
            return trial
        if limit_s is not None and isinstance(trial.rate, float) and trial.rate > limit_s:
            return warned(
                f"{trial.detail}", f"within {limit_s:g} s", "see storage and import times of packages"
            )
        return passed(trial.detail, "right, and done in its time")

    return judge


CHECKS = (
    Check(id="matmul", area=AREA, judge=matmul),
    Check(id="copy", area=AREA, judge=copy),
    Check(id="all_reduce", area=AREA, judge=_simple("all_reduce")),
    Check(id="loader_start", area=AREA, judge=_simple("loader", _LOADER_WARN_S)),
)
