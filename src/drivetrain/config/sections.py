"""The sections of a run file: frozen, closed pydantic models. Every field says what it is for.

Field names are what users write (`optim.lr`), and descriptions are what the documentation prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from drivetrain.config.launch_words import duration_s, split_nodes


@dataclass(frozen=True)
class Expects:
    """What a field takes, in words, where its type does not say it."""

    text: str


class Section(BaseModel):
    """Closed (an unknown key is an error) and strict: text is never taken for a number, nor 1 for true."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


def _list_to_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _int_to_text(value: Any) -> Any:
    # `nnodes: 2` is what people write; bool is an int in Python and stays an error.
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _check_nnodes(value: str) -> str:
    split_nodes(value)
    return value


def _check_duration(value: str) -> str:
    duration_s(value)
    return value


def _check_degree(value: int) -> int:
    if value == 0:
        raise ValueError("1 or more, or -1 wanted")
    return value


# What counts and sizes are bounded by: beyond it something overflows long after the run was accepted.
_MOST = 2**31 - 1

Auto = Literal["auto"]
Count = Annotated[int, Ge(1), Le(_MOST), Expects("a whole number from 1 to 2^31 - 1")]
Whole = Annotated[int, Ge(0), Le(_MOST), Expects("a whole number from 0 to 2^31 - 1")]
Epochs = Annotated[float, Gt(0.0), Le(1e6), Expects("a number greater than 0, at most 1e6")]
Degree = Annotated[
    int,
    Ge(-1),
    Le(_MOST),
    AfterValidator(_check_degree),
    Expects("a whole number from 1, or -1 for the rest"),
]
Positive = Annotated[float, Gt(0.0)]
NonNegative = Annotated[float, Ge(0.0)]
Fraction = Annotated[float, Ge(0.0), Lt(1.0)]
Factor = Annotated[float, Ge(0.0), Le(1.0)]
Text = Annotated[str, Field(min_length=1), Expects("text that is not empty")]
NumNodes = Annotated[
    str,
    BeforeValidator(_int_to_text),
    AfterValidator(_check_nnodes),
    Expects("a number of machines, or MIN:MAX with 1 ≤ MIN ≤ MAX"),
]
Duration = Annotated[
    str,
    BeforeValidator(_int_to_text),
    AfterValidator(_check_duration),
    Expects("a duration: 90s, 45m, 3h55m, 1d or 3:55:00"),
]
Betas = Annotated[
    tuple[Fraction, Fraction], BeforeValidator(_list_to_tuple), Expects("two numbers of at least 0 below 1")
]


class ModelConfig(Section):
    """Which model. Ignored where a task builds its own."""

    name: Text | None = Field(
        None,
        description="A torchvision or timm classification model, digits_cnn, or gpt (for text); "
        "null: the task's own.",
    )
    num_classes: Auto | Count = Field("auto", description="Outputs; auto: as many as the data has classes.")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Further arguments for the model's constructor, by name."
    )


class DataConfig(Section):
    """Where samples come from, and how they reach the device."""

    kind: Literal["digits", "image_folder", "synthetic", "text", "task"] = Field(
        "task",
        description="digits (UCI, 8×8), image_folder (a folder a class), synthetic images, text (tokens), "
        "or the task's own.",
    )
    path: Text | None = Field(
        None,
        description="image_folder: the folder that holds train/ and val/, or the class folders themselves. "
        "text: a token file, or a folder with train.tokens and val.tokens; null: Python's own source.",
    )
    val_fraction: Annotated[float, Gt(0.0), Lt(1.0)] | None = Field(
        None,
        description="Share of the samples (text: documents) held out for evaluation where none are set "
        "apart; null: 0.1, and 0.2 of the digits.",
    )
    image_size: Count = Field(224, description="Height and width, in pixels, that the model is given.")
    sequence_length: Count = Field(1024, description="text: tokens of a sample.")
    max_bytes: Count = Field(
        32_000_000, description="text without a path: how much of Python's source is taken, at most."
    )
    num_samples: Count = Field(10_000, description="synthetic: how many training samples to make.")
    num_classes: Count = Field(1000, description="synthetic: how many classes to make.")
    on_bad_sample: Literal["fail", "skip"] = Field(
        "fail",
        description="An unreadable sample ends the run, or (skip) keeps its slot at weight 0 and is counted.",
    )
    workers: Auto | Whole = Field(
        "auto", description="Loader processes a rank; auto: from the CPUs the container really has."
    )
    prefetch: Auto | Count = Field("auto", description="Micro-batches that each worker prepares ahead.")
    pin_memory: Auto | bool = Field("auto", description="Page-locked host memory; auto: on CUDA.")
    augment: bool = Field(True, description="Random crops and flips (or the task's own) while training.")
    shuffle: bool = Field(True, description="A new order each epoch; false: the data set's own order.")


class OptimConfig(Section):
    """The optimizer."""

    name: Literal["sgd", "adamw"] = Field("adamw", description="Fused where the device has it.")
    lr: Positive = Field(
        1e-3, description="Peak learning rate, for the global batch (never rescaled for you)."
    )
    weight_decay: NonNegative = Field(
        0.01, description="Decay of the weights; adamw decouples it from lr's gradient."
    )
    momentum: Fraction = Field(0.9, description="sgd only.")
    nesterov: bool = Field(False, description="sgd only: look ahead along the momentum.")
    betas: Betas = Field((0.9, 0.999), description="adamw only: decay of the two running averages.")
    eps: Positive = Field(1e-8, description="adamw only: added to the denominator.")
    clip_norm: Positive | None = Field(
        None, description="Largest norm of the whole gradient; null: no clipping."
    )
    decay_norms_and_biases: bool = Field(
        False, description="Whether weight decay also acts on biases and normalisation weights."
    )


class ScheduleConfig(Section):
    """How the learning rate moves from its peak."""

    name: Literal["cosine", "step", "linear", "constant"] = Field(
        "cosine", description="The curve after warm-up."
    )
    warmup_epochs: Annotated[float, Ge(0.0), Le(1e6)] = Field(
        0.0, description="Linear rise from near 0 to the peak, in epochs."
    )
    warmup_steps: Whole | None = Field(
        None, description="The same in steps; takes the place of warmup_epochs."
    )
    min_factor: Factor = Field(0.0, description="cosine, linear: the last rate as a share of the peak.")
    step_epochs: Epochs = Field(30.0, description="step: epochs between two drops.")
    gamma: Annotated[float, Gt(0.0), Le(1.0)] = Field(
        0.1, description="step: each drop multiplies the rate by this."
    )


class MeshConfig(Section):
    """Degrees of the mesh's axes; null leaves an axis to the strategy, -1 gives it the rest of the ranks."""

    dp_replicate: Degree | None = Field(None, description="How many times the weights, or shards, are held.")
    dp_shard: Degree | None = Field(None, description="Ranks that share one copy of the weights, in shards.")
    tp: Degree | None = Field(None, description="Ranks that share each layer's matrices.")
    pp: Degree | None = Field(None, description="Ranks that have some of the layers each.")

    def degrees(self) -> dict[str, int]:
        """The axes that were set."""
        return {axis: degree for axis, degree in self.model_dump().items() if degree is not None}


class FsdpConfig(Section):
    """How weights are sharded."""

    reshard_after_forward: Auto | bool = Field(
        "auto", description="Drop gathered weights after the forward; auto: all but the outermost module's."
    )
    cpu_offload: bool = Field(False, description="Keep shards and optimizer state in host memory.")


class PipelineConfig(Section):
    """In which order stages work on micro-batches."""

    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = Field(
        "1f1b",
        description="gpipe: all forwards, then all backwards; 1f1b: in turn, with fewer activations kept; "
        "interleaved: several stages a rank, idle for less; zero_bubble: weight gradients fill the gaps.",
    )
    stages_per_rank: Auto | Count = Field(
        "auto", description="auto: 1, and 2 where the schedule is interleaved or zero_bubble."
    )


class EvaluateConfig(Section):
    """Evaluation on the held-out samples, spread over the ranks. It also runs at the end."""

    every_epochs: Count | None = Field(1, description="null: not by epochs.")
    every_steps: Count | None = Field(None, description="null: not by steps.")
    batch: Auto | Count = Field(
        "auto", description="Samples a rank evaluates at once; auto: the micro-batch."
    )


class CheckpointConfig(Section):
    """When state is saved. A complete checkpoint is also written at the end."""

    every_epochs: Count | None = Field(1, description="null: not by epochs.")
    every_steps: Count | None = Field(None, description="null: not by steps.")
    every_minutes: Positive | None = Field(None, description="null: not by time.")
    keep: Count = Field(3, description="How many complete checkpoints stay; older ones are removed.")


class TelemetryConfig(Section):
    """Where metrics go, besides the run directory's own events."""

    tensorboard: bool = Field(True, description="Write tb/ for TensorBoard.")
    csv: bool = Field(True, description="Write metrics.csv.")
    wandb: Literal["off", "offline", "online"] = Field(
        "off", description="Weights & Biases: off, offline (files to sync later), or online."
    )
    wandb_project: Text = Field("drivetrain", description="The project that wandb files the run under.")


class LaunchConfig(Section):
    """Which processes run where; the flags' names are torchrun's."""

    nproc_per_node: Literal["auto", "gpu", "cpu"] | Count = Field(
        "auto", description="Processes on this machine; auto: one a visible GPU, or up to 2 on the CPU."
    )
    nnodes: NumNodes = Field("1", description="Machines, or MIN:MAX for an elastic job.")
    node_rank: Whole | None = Field(None, description="This machine's number; null: the rendezvous decides.")
    master_addr: Text | None = Field(None, description="Where machine 0 listens.")
    master_port: Annotated[int, Ge(1), Le(65535)] | None = Field(
        None, description="The port there; null on one machine: a free one."
    )
    rdzv_endpoint: Text | None = Field(None, description="HOST:PORT of the rendezvous between machines.")
    rdzv_id: Text | None = Field(
        None, description="The job's name at the rendezvous, the same on every machine."
    )
    local_addr: Text | None = Field(None, description="The address that others reach this machine by.")
    max_restarts: Whole = Field(0, description="How often all ranks start anew after one failed.")
    time_left: Duration | None = Field(
        None,
        description="How long the job may take: before that it saves and exits with 75. Slurm's own limit is "
        "honoured without it.",
    )
    stop_grace_s: Annotated[float, Ge(0.0), Le(86400.0)] = Field(
        120.0, description="Seconds that ranks have to save and leave when they are asked to stop."
    )
    standalone: bool = Field(
        False, description="One machine, by itself: the default, said aloud as in torchrun."
    )

    @property
    def time_left_s(self) -> float | None:
        return None if self.time_left is None else duration_s(self.time_left)

    @property
    def min_nodes(self) -> int:
        return split_nodes(self.nnodes)[0]

    @property
    def max_nodes(self) -> int:
        return split_nodes(self.nnodes)[1]
