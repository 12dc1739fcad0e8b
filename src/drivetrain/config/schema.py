"""RunConfig: everything a run is told, closed and checked."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from drivetrain.config.checks import cross_check
from drivetrain.config.sections import (
    Auto,
    CheckpointConfig,
    Count,
    DataConfig,
    Epochs,
    EvaluateConfig,
    Expects,
    FsdpConfig,
    LaunchConfig,
    MeshConfig,
    ModelConfig,
    OptimConfig,
    PipelineConfig,
    ScheduleConfig,
    Section,
    TelemetryConfig,
    Text,
    Whole,
)

STRATEGIES: dict[str, str] = {
    "auto": "single at one process, ddp at more",
    "single": "one process, no wrapper",
    "data_parallel": "torch's nn.DataParallel: one process, several GPUs; the baseline that shows why not",
    "ddp": "every rank holds the whole model; gradients are averaged",
    "fsdp": "every rank holds a part of weights, gradients and optimizer state",
    "tensor": "ranks share each layer's matrices",
    "pipeline": "each rank holds some of the layers",
}
"""Names that `strategy` may take, with a line each. Later strategies add their name here."""

CROSS_FIELD = "cross_field"
"""The pydantic error type that carries faults between fields, under `ctx["faults"]`."""


def _check_name(value: str) -> str:
    if re.fullmatch(r"\w[\w.-]*", value) is None:
        raise ValueError("a folder's name wanted")
    return value


def _check_task(value: str) -> str:
    where, _, function = value.rpartition(":")
    if not where or not function.isidentifier():
        raise ValueError("file.py:function wanted")
    return value


def _check_strategy(value: str) -> str:
    if value not in STRATEGIES:
        raise ValueError("unknown strategy")
    return value


Name = Annotated[
    str,
    AfterValidator(_check_name),
    Expects("letters, digits, dots, dashes and underscores (it names a folder)"),
]
TaskName = Annotated[str, AfterValidator(_check_task), Expects("file.py:function or package.module:function")]
StrategyName = Annotated[str, AfterValidator(_check_strategy), Expects(f"one of {', '.join(STRATEGIES)}")]


class RunConfig(Section):
    """A whole run. Sections hold what belongs together; the rest stands here."""

    name: Name = Field("run", description="Names the run's folder; by default the recipe's or task's name.")
    task: TaskName | None = Field(
        None, description="Your own model, data and loss: a function that returns a Task."
    )
    model: ModelConfig = Field(default_factory=ModelConfig, description="Which model.")
    data: DataConfig = Field(default_factory=DataConfig, description="Where samples come from.")
    global_batch: Count = Field(256, description="Samples a step over all ranks, whatever their number.")
    micro_batch: Auto | Count = Field(
        "auto",
        description="The most samples a rank runs at once; smaller ones accumulate. auto: its whole share.",
    )
    epochs: Epochs | None = Field(10.0, description="Passes over the data; null: until max_steps.")
    max_steps: Count | None = Field(None, description="Steps at most; with epochs, whichever ends first.")
    strategy: StrategyName = Field("auto", description="How the ranks share the work.")
    mesh: MeshConfig = Field(default_factory=MeshConfig, description="How the strategy lays out the ranks.")
    fsdp: FsdpConfig = Field(default_factory=FsdpConfig, description="Where weights are sharded.")
    pipeline: PipelineConfig = Field(default_factory=PipelineConfig, description="pipeline only.")
    activation_checkpointing: Whole | Literal["selective"] = Field(
        0,
        description="Every n-th block recomputes its activations in the backward: less memory; 0: none; "
        "selective: every block, but costly results (products, convolutions, attention) are kept.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: CUDA where a GPU is visible.")
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = Field(
        "auto", description="auto: bf16 on GPUs that have it, else fp32."
    )
    compile: Auto | bool = Field(
        False, description="torch.compile; auto: on CUDA where the run is long enough to repay it."
    )
    channels_last: Auto | bool = Field(
        "auto", description="NHWC memory for images; auto: for convolutional nets on GPUs."
    )
    sync_batchnorm: bool = Field(
        False, description="Batch statistics over all ranks instead of each its own."
    )
    deterministic: bool = Field(False, description="Only kernels that repeat bit for bit; slower.")
    seed: Annotated[int, Ge(0), Lt(2**63), Expects("a whole number from 0 to 2^63 - 1")] = Field(
        0, description="Of weights, order and augmentation."
    )
    ema_decay: Annotated[float, Gt(0.0), Lt(1.0)] | None = Field(
        None, description="Also keep a moving average of the weights and evaluate it; null: off."
    )
    optim: OptimConfig = Field(default_factory=OptimConfig, description="The optimizer.")
    schedule: ScheduleConfig = Field(default_factory=ScheduleConfig, description="The learning rate's curve.")
    label_smoothing: Annotated[float, Ge(0.0), Lt(1.0)] = Field(
        0.0, description="Share of the target spread over all classes, in training only."
    )
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="When to evaluate.")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="When to save.")
    on_nan: Literal["stop", "skip"] = Field(
        "stop",
        description="A step whose loss or gradient is not finite: stop ends the run, and the last good "
        "checkpoint stays; skip changes no weight by it, and goes on (ten in a row stop).",
    )
    on_spike: Literal["warn", "stop", "ignore"] = Field(
        "warn", description="A loss that leaps far above the last steps'."
    )
    resume: Text = Field(
        "auto", description="auto (the run folder's last complete checkpoint, if any), none, or a path."
    )
    output: Text | None = Field(None, description="The run's folder; null: runs/<name>-<date>-<time>.")
    log_every_steps: Count = Field(10, description="Steps between two lines of metrics.")
    verify_every_steps: Whole = Field(
        100, description="Steps between two checks that replicas hold the same weights; 0: never."
    )
    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig, description="Where metrics go.")
    launch: LaunchConfig = Field(default_factory=LaunchConfig, description="Which processes run where.")
    timeout_s: Annotated[float, Ge(1.0), Le(86400.0)] = Field(
        600.0, description="Seconds that a collective may wait for the other ranks."
    )

    @model_validator(mode="after")
    def _fields_agree(self) -> Self:
        faults = cross_check(self)
        if faults:
            context: dict[str, Any] = {"faults": faults, "text": "; ".join(str(fault) for fault in faults)}
            raise PydanticCustomError(CROSS_FIELD, "{text}", context)
        return self
