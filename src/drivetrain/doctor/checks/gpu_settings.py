"""How the GPUs are set and wired: MIG, modes, clocks, power, PCIe, NVLink, Fabric Manager, peer access."""

from __future__ import annotations

from drivetrain.doctor.checks.by_gpu import Trouble, gpus_or_verdict, indices, judge_gpus
from drivetrain.doctor.facts import ABSENT, Gpu, NodeFacts
from drivetrain.doctor.finding import Check, Status, Verdict, failed, not_checked, passed, warned
from drivetrain.doctor.fixes import install
from drivetrain.hardware.gpu_models import GpuModel, find_gpu_model
from drivetrain.spec.unknown import Unknown

AREA = "GPUs: settings and links"
_SLOW_REASONS = ("hardware slowdown", "hardware thermal slowdown", "thermal slowdown", "power brake")
_HOT_C = 88
_BUSY = '"all CUDA-capable devices are busy or unavailable"'


def _model(gpu: Gpu) -> GpuModel | None:
    return find_gpu_model(gpu.name) if isinstance(gpu.name, str) else None


def mig(facts: NodeFacts) -> Verdict:
    def judge(gpu: Gpu, value: bool) -> Trouble | None:
        if not value:
            return None
        if gpu.num_mig_instances == 0:
            return Status.FAIL, "MIG is on, without any instance: CUDA sees no device"
        return Status.WARN, "MIG is on: a process sees one instance, and NCCL does not work between instances"

    return judge_gpus(
        facts,
        lambda gpu: gpu.mig,
        judge,
        good=lambda seen: f"off on {len(seen)} GPUs",
        expected="MIG off for training on several GPUs",
        fix=lambda gpus: f"sudo nvidia-smi -mig 0 -i {indices(gpus)}",
    )


def persistence(facts: NodeFacts) -> Verdict:
    return judge_gpus(
        facts,
        lambda gpu: gpu.persistence,
        lambda _, value: None if value else (Status.WARN, "persistence mode off"),
        good=lambda seen: f"on, {len(seen)} GPUs",
        expected="persistence mode on: else the driver is unloaded between jobs, and each start waits for it",
        fix="sudo systemctl enable --now nvidia-persistenced (or, until the next boot: sudo nvidia-smi"
        " -pm 1)",
    )


def compute_mode(facts: NodeFacts) -> Verdict:
    texts = {
        "exclusive_thread": (
            Status.FAIL,
            f"compute mode exclusive, one thread (E. Thread): a second process, and backward, get {_BUSY}",
        ),
        "exclusive_process": (
            Status.WARN,
            f"compute mode exclusive, one process (E. Process): a second process gets {_BUSY}",
        ),
        "prohibited": (Status.FAIL, "compute mode prohibited: no process gets the GPU"),
    }
    return judge_gpus(
        facts,
        lambda gpu: gpu.compute_mode,
        lambda _, value: texts.get(value),
        good=lambda seen: f"default on {len(seen)} GPUs",
        expected="compute mode default",
        fix=lambda gpus: f"sudo nvidia-smi -c 0 -i {indices(gpus)}",
    )


def throttle(facts: NodeFacts) -> Verdict:
    def judge(_: Gpu, reasons: tuple[str, ...]) -> Trouble | None:
        slow = [reason for reason in reasons if reason in _SLOW_REASONS]
        if slow:
            return Status.FAIL, f"slowed down now: {', '.join(slow)}"
        if "power cap" in reasons:
            return Status.WARN, "held back by the power cap"
        return None

    return judge_gpus(
        facts,
        lambda gpu: gpu.throttle_reasons,
        judge,
        good=lambda seen: f"none of {len(seen)} GPUs is slowed down",
        expected="no thermal or power slowdown",
        fix="look at cooling, power supply and cables; nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER"
        " shows more",
    )


def temperature(facts: NodeFacts) -> Verdict:
    return judge_gpus(
        facts,
        lambda gpu: gpu.temperature_c,
        lambda _, value: (Status.WARN, f"{value:g} °C") if value >= _HOT_C else None,
        good=lambda seen: f"at most {max(seen):g} °C",
        expected=f"below {_HOT_C} °C, where slowdown is near",
        fix="look at fans, air flow and dust",
    )


def power_cap(facts: NodeFacts) -> Verdict:
    def values(gpu: Gpu) -> tuple[float, float] | Unknown:
        limit, default = gpu.power_limit_w, gpu.power_limit_default_w
        if isinstance(limit, Unknown):
            return limit
        return default if isinstance(default, Unknown) else (limit, default)

    def judge(_: Gpu, value: tuple[float, float]) -> Trouble | None:
        limit, default = value
        return (Status.WARN, f"power limit {limit:g} W of {default:g} W") if limit < default * 0.98 else None

    return judge_gpus(
        facts,
        values,
        judge,
        good=lambda seen: f"the default limit on {len(seen)} GPUs",
        expected="the card's default power limit",
        fix=lambda gpus: (
            f"sudo nvidia-smi -i {indices(gpus)} -pl WATTS (the default is in nvidia-smi -q -d POWER)"
        ),
    )


def pcie(facts: NodeFacts) -> Verdict:
    def judge(gpu: Gpu, value: tuple[int, int, int, int]) -> Trouble | None:
        generation, best_generation, width, best_width = value
        if width < best_width:
            return Status.FAIL, f"PCIe width x{width} of x{best_width}"
        # An idle GPU lowers the generation to save power; only a busy one tells.
        busy = isinstance(gpu.utilization_percent, int) and gpu.utilization_percent >= 50
        if generation < best_generation and busy:
            return Status.WARN, f"PCIe generation {generation} of {best_generation} under load"
        return None

    return judge_gpus(
        facts,
        _pcie_values,
        judge,
        good=lambda seen: f"all lanes of {len(seen)} GPUs",
        expected="all lanes that the card has; the full generation under load",
        fix="reseat the card and its riser, look at the slot's lanes and the firmware's bifurcation setting",
    )


def _pcie_values(gpu: Gpu) -> tuple[int, int, int, int] | Unknown:
    model = _model(gpu)
    card = model.pcie if model is not None else None
    generation, width = gpu.pcie_gen, gpu.pcie_width
    if isinstance(generation, Unknown):
        return generation
    if isinstance(width, Unknown):
        return width
    # NVML's maximum is what card and slot can together; the table says what the card alone can.
    best_width = card[1] if card is not None else gpu.pcie_width_max
    best_generation = gpu.pcie_gen_max
    if isinstance(best_width, Unknown):
        return best_width
    if isinstance(best_generation, Unknown):
        best_generation = generation
    return generation, best_generation, width, best_width


def nvlink(facts: NodeFacts) -> Verdict:
    def links(gpu: Gpu) -> tuple[int, int] | Unknown:
        up, down = gpu.nvlinks_up, gpu.nvlinks_down
        model = _model(gpu)
        if isinstance(up, Unknown):
            is_without = model is not None and model.nvlinks == 0
            return (0, 0) if is_without else up
        wired = model.nvlinks if model is not None and model.nvlinks is not None else None
        missing = (wired - up) if wired is not None else (down if isinstance(down, int) else 0)
        return up, max(missing, 0)

    def judge(_: Gpu, value: tuple[int, int]) -> Trouble | None:
        up, missing = value
        if missing == 0:
            return None
        return Status.FAIL, f"{up} NVLinks up, {missing} not"

    return judge_gpus(
        facts,
        links,
        judge,
        good=lambda seen: (
            f"{', '.join(map(str, sorted({up for up, _ in seen})))} links a GPU, all up"
            if any(up for up, _ in seen)
            else "these cards have no NVLink"
        ),
        expected="every NVLink of the card up",
        fix="nvidia-smi nvlink -s; look for Xid 74 in dmesg, at bridges and at Fabric Manager; reset"
        " all GPUs",
    )


def fabric_manager(facts: NodeFacts) -> Verdict:
    states = _fabric_states(facts)
    if states:
        bad = [text for text in states if not text.lower().startswith("completed") or "fail" in text.lower()]
        if bad:
            return failed(f"NVSwitch fabric: {bad[0]}", "Completed / Success", _fabric_fix(facts))
        return passed(f"NVSwitch fabric: {states[0]}", "Completed / Success")
    gpus = facts.gpus if isinstance(facts.gpus, tuple) else ()
    needs = [gpu for gpu in gpus if (model := _model(gpu)) is not None and model.has_fabric]
    if facts.host.has_nvswitch is False or (gpus and not needs):
        return passed("no NVSwitch here, so none is needed", "Fabric Manager where there are NVSwitches")
    state = facts.host.fabric_manager
    if isinstance(state, Unknown):
        return not_checked(state.reason if gpus or state != ABSENT else "no GPU is known here")
    if facts.host.has_nvswitch is True and state != "active":
        return failed(f"NVSwitches are there, Fabric Manager is {state}", "active", _fabric_fix(facts))
    return passed(f"Fabric Manager is {state}", "active where there are NVSwitches")


def _fabric_states(facts: NodeFacts) -> list[str]:
    gpus = facts.gpus if isinstance(facts.gpus, tuple) else ()
    return [gpu.fabric for gpu in gpus if isinstance(gpu.fabric, str)]


def _fabric_fix(facts: NodeFacts) -> str:
    version = facts.driver.version
    branch = version.split(".")[0] if isinstance(version, str) else "BRANCH"
    return (
        f"{install(facts.system, 'fabric manager', branch=branch)} (of exactly the driver's version),"
        " sudo systemctl enable --now nvidia-fabricmanager"
    )


def peer_access(facts: NodeFacts) -> Verdict:
    pairs = facts.torch.peer_access
    if isinstance(pairs, Unknown):
        gpus = gpus_or_verdict(facts)
        if isinstance(gpus, tuple) and len(gpus) == 1:
            return passed("one GPU: nothing to reach", "each GPU reaches each other")
        return not_checked(pairs.reason)
    missing = [f"{a}–{b}" for a, b, works in pairs if not works]
    if not pairs:
        return passed("fewer than two GPUs: nothing to reach", "each GPU reaches each other")
    if missing:
        return warned(
            f"no direct access between GPUs {', '.join(missing[:12])}: data goes through host memory",
            "each GPU reaches each other (GeForce cards since the 40 series do not)",
            "look at drivetrain topo, at ACS and IOMMU (below), and at virtual machines without"
            " pass-through of"
            " the PCIe switch",
        )
    return passed(f"all {len(pairs)} pairs", "each GPU reaches each other")


def acs(facts: NodeFacts) -> Verdict:
    bridges, iommu = facts.host.acs_enabled_bridges, facts.host.iommu
    num_gpus = len(facts.gpus) if isinstance(facts.gpus, tuple) else None
    if num_gpus is not None and num_gpus < 2:
        return not_checked("fewer than two GPUs: ACS and IOMMU do not matter to them")
    if iommu == "translating":
        return warned(
            "the IOMMU translates: copies between GPUs over PCIe can hang or go through the processor",
            "IOMMU off, or pass-through",
            "add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, then sudo update-grub (Fedora,"
            " RHEL, SUSE:"
            " sudo grub2-mkconfig -o /boot/grub2/grub.cfg) and reboot",
        )
    if isinstance(bridges, Unknown):
        return not_checked(bridges.reason)
    if bridges > 0:
        return warned(
            f"ACS redirects traffic on {bridges} PCIe bridges: GPUs reach each other through the processor",
            "ACS off on bare metal",
            "for each bridge with ACSCtl: SrcValid+ in sudo lspci -vvv: sudo setpci -s BRIDGE"
            " ECAP_ACS+0x6.w=0000",
        )
    if isinstance(iommu, Unknown):
        return not_checked(f"ACS is off; IOMMU: {iommu.reason}")
    return passed(f"ACS off, IOMMU {iommu}", "ACS off, IOMMU off or pass-through")


CHECKS = (
    Check(id="mig", area=AREA, judge=mig),
    Check(id="persistence", area=AREA, judge=persistence),
    Check(id="compute_mode", area=AREA, judge=compute_mode),
    Check(id="throttle", area=AREA, judge=throttle),
    Check(id="temperature", area=AREA, judge=temperature),
    Check(id="power_cap", area=AREA, judge=power_cap),
    Check(id="pcie", area=AREA, judge=pcie),
    Check(id="nvlink", area=AREA, judge=nvlink),
    Check(id="fabric_manager", area=AREA, judge=fabric_manager),
    Check(id="peer_access", area=AREA, judge=peer_access),
    Check(id="acs_iommu", area=AREA, judge=acs),
)
