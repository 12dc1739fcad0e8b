"""What a user sets on a run, as one frozen object."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from drivetrain.spec.errors import InputError

ActivationCheckpointing = int | Literal["selective"]
PipelineSchedule = Literal["gpipe", "1f1b", "interleaved", "zero_bubble"]
PrecisionName = Literal["auto", "fp32", "tf32", "bf16", "fp16"]


@dataclass(frozen=True, kw_only=True)
class CheckpointPolicy:
    """When to save (None: not by that measure) and how many complete checkpoints to keep."""

    every_steps: int | None = None
    every_minutes: float | None = None
    keep: int = 3

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_minutes", "keep"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise InputError(f"CheckpointPolicy({name}={value})", "it must be more than 0", f"set {name}")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Settings of one training run. What is "auto" or None is chosen by what is found, and the choice said.

    Attributes:
        name: what the run is called where it is shown.
        strategy: "auto" is `single` on one rank and `ddp` on several.
        global_batch: samples an optimizer step sees, over all ranks; fixed by the user, never by the ranks.
        micro_batch: the most samples a rank runs at once; None runs its whole share.
        clip_norm: global gradient norm to clip to.
        ema_decay: decay of an exponential moving average of the weights, used for evaluation.
        mesh: degrees of the mesh's axes, see `spec.layout`; -1 is the rest.
        fsdp_reshard_after_forward: whether gathered weights are dropped after the forward and gathered again
            for the backward; None: for all but the outermost.
        fsdp_cpu_offload: keeps shards and optimizer in host memory.
        pipeline_schedule, pipeline_stages_per_rank: see `config.sections.PipelineConfig`; None: auto.
        activation_checkpointing: every n-th block recomputes its activations in the backward; 0: none;
            "selective": every block, all but products, convolutions and attention.
        channels_last: None uses it for convolutional networks on GPUs.
        static_graph: whether every step uses the same parameters in the same order (DDP's promise).
        find_unused_parameters: for loops with `Run.step`, whose model leaves parameters without a gradient in
            some steps; `Run.train_step` finds out by itself.
        verify_every_steps: steps between two checks that ranks which must hold the same weights do; 0: never.
        on_nan: what a step whose gradient is not finite does: "stop" ends the run, "skip" changes nothing.
        on_spike: what a leap of the loss does: "warn", "stop", or "ignore".
        output: the run directory; None writes nothing (under `drivetrain launch`: the launch's folder).
        resume: "auto" (the run directory's last complete checkpoint, if any), "none", or a path.
        log_every_steps: steps between two rows of metrics.
        timeout_s: how long a collective may take.
    """

    name: str = "run"
    strategy: str = "auto"
    global_batch: int = 256
    micro_batch: int | None = None
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: PrecisionName = "auto"
    mesh: Mapping[str, int] = dataclasses.field(default_factory=dict)
    fsdp_reshard_after_forward: bool | None = None
    fsdp_cpu_offload: bool = False
    pipeline_schedule: PipelineSchedule = "1f1b"
    pipeline_stages_per_rank: int | None = None
    activation_checkpointing: ActivationCheckpointing = 0
    compile: bool = False
    channels_last: bool | None = None
    sync_batchnorm: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False
    deterministic: bool = False
    clip_norm: float | None = None
    ema_decay: float | None = None
    output: Path | None = None
    resume: str = "auto"
    checkpoint: CheckpointPolicy = CheckpointPolicy(every_minutes=10.0)
    workers: int | Literal["auto"] = "auto"
    prefetch: int | Literal["auto"] = "auto"
    pin_memory: bool | Literal["auto"] = "auto"
    on_bad_sample: Literal["fail", "skip"] = "fail"
    log_every_steps: int = 10
    verify_every_steps: int = 100
    on_nan: Literal["stop", "skip"] = "stop"
    on_spike: Literal["warn", "stop", "ignore"] = "warn"
    timeout_s: float = 600.0

    def changed(self, **options: Any) -> RunSettings:
        """A copy with `options` set.

        Raises:
            InputError: an option that does not exist; names the nearest that does.
        """
        known = {item.name for item in dataclasses.fields(self)}
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise InputError(
                    f"Run({name}=…)",
                    "there is no such setting",
                    f"did you mean {near[0]!r}?" if near else f"the settings are {', '.join(sorted(known))}",
                )
        if not isinstance(options.get("checkpoint", self.checkpoint), CheckpointPolicy):
            raise InputError(
                f"Run(checkpoint={options['checkpoint']!r})",
                f"it is a {type(options['checkpoint']).__name__}",
                "write checkpoint=drivetrain.CheckpointPolicy(every_steps=100, keep=3)",
            )
        if isinstance(options.get("output"), str):
            options["output"] = Path(options["output"])
        return dataclasses.replace(self, **options)
