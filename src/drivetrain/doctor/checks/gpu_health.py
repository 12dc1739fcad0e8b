"""Is each GPU sound: does it answer, ECC, row remapping, Xid errors, a program that spins."""

from __future__ import annotations

from collections.abc import Sequence

from drivetrain.doctor.checks.by_gpu import Trouble, gpus_or_verdict, indices, judge_gpus
from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts
from drivetrain.doctor.finding import Check, Status, Verdict, failed, not_checked, passed, warned
from drivetrain.hardware.xids import explain_xid
from drivetrain.spec.unknown import Unknown

AREA = "GPUs: health"
_RESET = "drain the node, then sudo nvidia-smi --gpu-reset -i {}; if it comes back, have the card replaced"

# A GPU that waits in a collective spins: all of its time "used", little power, little memory traffic. Seen:
# 44 W of 250 (V100), 118 W of 400 (H20). Training draws well above half of the limit.
_SPIN_UTILISATION_PERCENT = 90
_SPIN_POWER_SHARE = 0.35
_HELD_MEMORY_MIB = 600


def gpu_answers(facts: NodeFacts) -> Verdict:
    def judge(_: Gpu, errors: tuple[str, ...]) -> Trouble | None:
        return (Status.FAIL, ", ".join(errors[:6])) if errors else None

    return judge_gpus(
        facts,
        lambda gpu: gpu.errors if gpu.errors or _was_read(gpu) else ABSENT,
        judge,
        good=lambda seen: f"all fields of {len(seen)} GPUs were read",
        expected='a value in every field; ERR!, Unknown Error and "lost" mean that the GPU does not answer',
        fix="look in sudo dmesg | grep -i -e NVRM -e Xid; drain the node, reset or power-cycle it,"
        " reseat or replace the card if it comes back",
    )


def _was_read(gpu: Gpu) -> bool:
    return isinstance(gpu.memory_total_mib, int) or gpu.temperature_c != ABSENT


def ecc(facts: NodeFacts) -> Verdict:
    def errors(gpu: Gpu) -> tuple[int, str] | Unknown:
        volatile, aggregate = gpu.ecc_uncorrected_volatile, gpu.ecc_uncorrected_aggregate
        if isinstance(volatile, int):
            return volatile, "since the driver was loaded"
        return (aggregate, "in its life") if isinstance(aggregate, int) else volatile

    def judge(_: Gpu, value: tuple[int, str]) -> Trouble | None:
        return (Status.FAIL, f"{value[0]} uncorrected ECC errors {value[1]}") if value[0] else None

    off = _ecc_off(facts)
    if off is not None:
        return off
    return judge_gpus(
        facts,
        errors,
        judge,
        good=lambda seen: f"no uncorrected error on {len(seen)} GPUs",
        expected="0 uncorrected ECC errors",
        fix=lambda gpus: _RESET.format(indices(gpus)),
    )


def _ecc_off(facts: NodeFacts) -> Verdict | None:
    if not isinstance(facts.gpus, tuple):
        return None
    off = [gpu for gpu in facts.gpus if gpu.ecc is False]
    if not off or any(gpu.ecc is True for gpu in facts.gpus if gpu not in off):
        return None
    return warned(
        f"ECC is switched off on GPU {indices(off)}: memory errors go unseen",
        "ECC on where the card has it",
        f"sudo nvidia-smi -e 1 -i {indices(off)}, then reset the GPUs or reboot",
    )


def row_remap(facts: NodeFacts) -> Verdict:
    def state(gpu: Gpu) -> str | Unknown:
        if gpu.remap_failed is True:
            return "failed"
        if gpu.remap_pending is True or gpu.retired_pages_pending is True:
            return "pending"
        if isinstance(gpu.remapped_uncorrectable, int) and gpu.remapped_uncorrectable > 0:
            return "some"
        if gpu.remap_failed is False or gpu.retired_pages_pending is False:
            return "none"
        return gpu.remap_failed if isinstance(gpu.remap_failed, Unknown) else ABSENT

    texts = {
        "failed": (Status.FAIL, "a memory row could not be remapped: replace the card"),
        "pending": (Status.FAIL, "a remap or page retirement waits for a reset"),
        "some": (Status.WARN, "rows were remapped after uncorrectable errors"),
    }
    return judge_gpus(
        facts,
        state,
        lambda _, value: texts.get(value),
        good=lambda seen: f"no row remapped after an uncorrectable error on {len(seen)} GPUs",
        expected="no failed and no pending remap",
        fix=lambda gpus: _RESET.format(indices(gpus)),
    )


def reset_required(facts: NodeFacts) -> Verdict:
    return judge_gpus(
        facts,
        lambda gpu: gpu.reset_required,
        lambda _, value: (Status.FAIL, "the driver asks for a reset") if value else None,
        good=lambda seen: f"none of {len(seen)} GPUs asks for one",
        expected="no reset asked for",
        fix=lambda gpus: _RESET.format(indices(gpus)),
    )


def xid(facts: NodeFacts) -> Verdict:
    if isinstance(facts.xids, Unknown):
        return not_checked(facts.xids.reason)
    if not facts.xids:
        return passed("no Xid in the kernel log", "no Xid")
    told = [(event, explain_xid(event.number)) for event in facts.xids]
    told.sort(key=lambda pair: not pair[1].is_hardware)
    found = "; ".join(
        f"Xid {event.number} on {event.bus_id}"
        f" ({what.meaning}){f', {event.count} times' if event.count > 1 else ''}"
        for event, what in told[:6]
    )
    fix = told[0][1].do.format(gpu=told[0][0].bus_id)
    if told[0][1].is_hardware:
        return failed(found, "no Xid of a hardware kind", fix)
    return warned(found, "no Xid", fix)


def gpu_hung(facts: NodeFacts) -> Verdict:
    gpus = gpus_or_verdict(facts)
    if isinstance(gpus, Verdict):
        return gpus
    spinning = [gpu for gpu in gpus if _spins(gpu)]
    orphans = _busy_without_process(facts, gpus)
    if orphans:
        return failed(
            "; ".join(
                f"{gpu.label}: {gpu.utilization_percent} % although no process is on it" for gpu in orphans
            ),
            "work only where there is a process",
            "sudo fuser -v /dev/nvidia*; if nothing holds it, sudo nvidia-smi --gpu-reset -i"
            f" {indices(orphans)}",
        )
    if spinning:
        status = failed if len(spinning) > 1 else warned
        found = "; ".join(
            f"{gpu.label}: {gpu.utilization_percent} % at {gpu.power_w:g} W of {gpu.power_limit_w:g} W"
            f"{f' with {gpu.memory_used_mib} MiB in use' if isinstance(gpu.memory_used_mib, int) else ''}"
            for gpu in spinning
        )
        return status(
            f"{found}: it spins, as in a collective that hangs; that is no work",
            "a GPU at full use draws more than half of its power limit",
            "look where the ranks stand: py-spy dump --pid PID (or drivetrain diagnose RUN); end the stale"
            " processes by their ids",
        )
    if not all(isinstance(gpu.utilization_percent, int) and isinstance(gpu.power_w, float) for gpu in gpus):
        return not_checked("utilisation or power of some GPU is not known")
    return passed("no GPU is at full use with little power", "use and power go together")


def _spins(gpu: Gpu) -> bool:
    if isinstance(gpu.utilization_percent, Unknown) or gpu.utilization_percent < _SPIN_UTILISATION_PERCENT:
        return False
    if isinstance(gpu.power_w, Unknown) or isinstance(gpu.power_limit_w, Unknown) or gpu.power_limit_w <= 0:
        return False
    return gpu.power_w / gpu.power_limit_w < _SPIN_POWER_SHARE


def _busy_without_process(facts: NodeFacts, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Only where processes of others would be seen: a list that is there but names none at all."""
    if isinstance(facts.gpu_processes, Unknown) or facts.gpu_processes:
        return []
    return [gpu for gpu in gpus if isinstance(gpu.utilization_percent, int) and gpu.utilization_percent >= 95]


def gpu_in_use(facts: NodeFacts) -> Verdict:
    gpus = gpus_or_verdict(facts)
    if isinstance(gpus, Verdict):
        return gpus
    if not any(isinstance(gpu.memory_used_mib, int) for gpu in gpus):
        return not_checked("memory in use is not known")
    full = [
        gpu
        for gpu in gpus
        if isinstance(gpu.memory_used_mib, int)
        and isinstance(gpu.memory_total_mib, int)
        and gpu.memory_used_mib > max(_HELD_MEMORY_MIB, gpu.memory_total_mib // 50)
    ]
    if not full:
        return passed("all memory is free", "free GPUs")
    found = "; ".join(
        f"{gpu.label}: {gpu.memory_used_mib} of {gpu.memory_total_mib} MiB in use" for gpu in full
    )
    if isinstance(facts.gpu_processes, tuple):
        busy = {process.gpu for process in facts.gpu_processes}
        hidden = [gpu for gpu in full if gpu.index not in busy]
        if hidden:
            return warned(
                f"{found}; no process is shown on GPU {indices(hidden)}",
                "free GPUs, or a process that holds the memory",
                "it may run in another container or be a remnant: sudo fuser -v /dev/nvidia*",
            )
        names = sorted({f"{process.name} (pid {process.pid})" for process in facts.gpu_processes})
        found += f", by {', '.join(names[:4])}"
    return warned(
        found, "free GPUs", "wait, choose others (CUDA_VISIBLE_DEVICES), or end the process by its id"
    )


CHECKS = (
    Check(id="gpu_answers", area=AREA, judge=gpu_answers),
    Check(id="ecc", area=AREA, judge=ecc),
    Check(id="row_remap", area=AREA, judge=row_remap),
    Check(id="gpu_reset_required", area=AREA, judge=reset_required),
    Check(id="xid", area=AREA, judge=xid),
    Check(id="gpu_hung", area=AREA, judge=gpu_hung),
    Check(id="gpu_in_use", area=AREA, judge=gpu_in_use),
)
