"""Checks between fields: each fault is collected, none hides another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from drivetrain.config.faults import Disagreement

if TYPE_CHECKING:
    from drivetrain.config.schema import RunConfig

ONE_PROCESS = frozenset({"single", "data_parallel"})
"""Strategies of one process; data_parallel drives all GPUs from it."""


def cross_check(config: RunConfig) -> tuple[Disagreement, ...]:
    """All disagreements between fields that are each valid alone."""
    return (
        *_length(config),
        *_work(config),
        *_text(config),
        *_optimizer(config),
        *_device(config),
        *_machines(config),
    )


def _length(config: RunConfig) -> Iterator[Disagreement]:
    if config.epochs is None and config.max_steps is None:
        yield Disagreement(
            keys=("epochs", "max_steps"),
            found="epochs and max_steps are both null, so the run would never end",
            do="set one of them",
        )


def _work(config: RunConfig) -> Iterator[Disagreement]:
    if config.data.kind == "task" and config.task is None:
        yield Disagreement(
            keys=("data.kind", "task"),
            found="data.kind is task, but there is no task",
            do="set data.kind to digits, image_folder, synthetic or text, or task to file.py:function",
        )
    if config.model.name is None and config.task is None:
        yield Disagreement(
            keys=("model.name", "task"),
            found="there is neither a model nor a task that builds one",
            do="set model.name (resnet50, digits_cnn, gpt, …) or task",
        )
    if config.data.kind == "image_folder" and config.data.path is None:
        yield Disagreement(
            keys=("data.path", "data.kind"),
            found="data.kind is image_folder, but data.path is not set",
            do="add --data.path FOLDER (it holds train/ and val/, or a folder for each class)",
        )


def _text(config: RunConfig) -> Iterator[Disagreement]:
    if config.task is not None:
        return
    is_text, is_gpt = config.data.kind == "text", config.model.name == "gpt"
    if config.model.name is not None and config.data.kind != "task" and is_text != is_gpt:
        yield Disagreement(
            keys=("model.name", "data.kind"),
            found=f"model.name is {config.model.name}, but data.kind is {config.data.kind}",
            do="text needs model.name gpt, and images another model",
        )
    if is_text and config.label_smoothing > 0:
        yield Disagreement(
            keys=("label_smoothing", "data.kind"),
            found=f"label_smoothing is {config.label_smoothing}, but data.kind is text, whose loss has none",
            do="set label_smoothing to 0",
        )
    if is_text and config.model.num_classes != "auto":
        yield Disagreement(
            keys=("model.num_classes", "data.kind"),
            found=f"model.num_classes is {config.model.num_classes}, but data.kind is text",
            do="leave it at auto, and set model.kwargs.vocab_size where the data's is too small",
        )


def _optimizer(config: RunConfig) -> Iterator[Disagreement]:
    if config.optim.nesterov and config.optim.name != "sgd":
        yield Disagreement(
            keys=("optim.nesterov", "optim.name"),
            found=f"optim.nesterov is true, but {config.optim.name} has no such momentum",
            do="set optim.nesterov to false, or optim.name to sgd",
        )
    elif config.optim.nesterov and config.optim.momentum == 0.0:
        yield Disagreement(
            keys=("optim.nesterov", "optim.momentum"),
            found="optim.nesterov is true, but optim.momentum is 0",
            do="set optim.momentum above 0 (0.9 is usual), or optim.nesterov to false",
        )
    if config.schedule.warmup_epochs > 0 and config.schedule.warmup_steps is not None:
        yield Disagreement(
            keys=("schedule.warmup_steps", "schedule.warmup_epochs"),
            found="schedule.warmup_epochs and schedule.warmup_steps are both set",
            do="keep one of them",
        )


def _device(config: RunConfig) -> Iterator[Disagreement]:
    if config.device == "cpu" and config.precision == "tf32":
        yield Disagreement(
            keys=("precision", "device"),
            found="precision is tf32, which only CUDA has, but device is cpu",
            do="set precision to fp32 or bf16",
        )
    if config.device == "cpu" and config.launch.nproc_per_node == "gpu":
        yield Disagreement(
            keys=("launch.nproc_per_node", "device"),
            found="launch.nproc_per_node is gpu (one process a GPU), but device is cpu",
            do="set launch.nproc_per_node to a number or cpu",
        )


def _machines(config: RunConfig) -> Iterator[Disagreement]:
    launch = config.launch
    is_alone = config.strategy in ONE_PROCESS
    if is_alone and (launch.max_nodes > 1 or launch.nproc_per_node not in ("auto", 1)):
        yield Disagreement(
            keys=("strategy", "launch.nproc_per_node", "launch.nnodes"),
            found=f"strategy is {config.strategy}; nproc_per_node is {launch.nproc_per_node},"
            f" nnodes {launch.nnodes}",
            do="set strategy to auto or ddp, or launch.nproc_per_node and launch.nnodes to 1",
        )
    if launch.standalone and (launch.max_nodes > 1 or launch.rdzv_endpoint or launch.master_addr):
        yield Disagreement(
            keys=("launch.standalone", "launch.nnodes", "launch.rdzv_endpoint", "launch.master_addr"),
            found="launch.standalone is one machine by itself, but other machines or their address are given",
            do="drop --standalone, or the rest",
        )
    elif launch.max_nodes > 1 and not (launch.rdzv_endpoint or launch.master_addr):
        yield Disagreement(
            keys=("launch.nnodes", "launch.rdzv_endpoint", "launch.master_addr"),
            found=f"{launch.nnodes} machines cannot find each other without an address",
            do="add --rdzv-endpoint HOST:PORT, or --master-addr HOST and --node-rank N",
        )
    if launch.node_rank is not None and launch.node_rank >= launch.max_nodes:
        yield Disagreement(
            keys=("launch.node_rank", "launch.nnodes"),
            found=f"launch.node_rank is {launch.node_rank}, but {launch.max_nodes} machines count from 0",
            do=f"use 0 to {launch.max_nodes - 1}, or raise --nnodes",
        )
