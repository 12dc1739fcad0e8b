"""The task that a run file alone describes: image classification."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from drivetrain.config.schema import RunConfig
from drivetrain.data.batch import MicroBatch
from drivetrain.data.num_classes import settle_num_classes
from drivetrain.engine.objective import Objective, cross_entropy
from drivetrain.spec.errors import InputError
from drivetrain.train.models.by_name import model_builder
from drivetrain.train.task import Task

# Mean and standard deviation of ImageNet's training images, in 0..1, RGB: the field's usual normalisation.
_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A data set, opened: what the run file's `data` section stands for."""

    train: Any
    evaluation: Any
    num_classes: int
    draw: Callable[..., Any] | None
    render: Callable[..., Any] | None
    eval_render: Callable[..., Any] | None
    loader_cost: Literal["memory", "decode"]
    default_model: str
    notes: tuple[str, ...] = ()


def classification_task(config: RunConfig) -> Task:
    """Image classification on the run file's data with a model by name.

    Raises:
        InputError: the data or the model cannot be had.
    """
    source = _open(config)
    num_classes = settle_num_classes(config.model.num_classes, in_data=source.num_classes)
    name = config.model.name or source.default_model
    return Task(
        build_model=model_builder(name, num_classes=num_classes, kwargs=dict(config.model.kwargs)),
        train_data=source.train,
        eval_data=source.evaluation,
        num_classes=num_classes,
        objective=Objective(inputs=normalised, loss=_CrossEntropy(config.label_smoothing)),
        eval_objective=Objective(inputs=normalised, loss=_CrossEntropy(0.0)),
        draw=source.draw,
        render=source.render,
        eval_render=source.eval_render,
        build_metrics=lambda: accuracies(num_classes),
        loader_cost=source.loader_cost,
        static_graph=True,
        sample_unit="img",
        notes=source.notes,
    )


def normalised(micro: MicroBatch) -> Tensor:
    """The images as the model takes them: bytes become normalised floats on the device; floats pass."""
    images: Tensor = micro.x
    if images.dtype != torch.uint8:
        return images
    mean = torch.tensor(_MEAN, device=images.device).mul_(255).view(1, 3, 1, 1)
    scale = torch.tensor(_STD, device=images.device).mul_(255).reciprocal_().view(1, 3, 1, 1)
    return (images.float() - mean) * scale


@dataclass(frozen=True)
class _CrossEntropy:
    label_smoothing: float

    def __call__(self, output: Any, micro: MicroBatch) -> Tensor:
        if not isinstance(output, Tensor):
            raise InputError(
                "the model's output",
                f"it is a {type(output).__name__}, not a tensor of logits (B, classes)",
                "choose a plain classifier, or write a task for this model: --task my_task.py:build",
            )
        return cross_entropy(output, micro.y, label_smoothing=self.label_smoothing)


def accuracies(num_classes: int) -> Mapping[str, Any]:
    from torchmetrics.classification import MulticlassAccuracy

    metrics = {"accuracy": MulticlassAccuracy(num_classes=num_classes, average="micro")}
    if num_classes > 10:
        metrics["accuracy_top5"] = MulticlassAccuracy(num_classes=num_classes, average="micro", top_k=5)
    return metrics


def _open(config: RunConfig) -> _Source:
    opener = {"digits": _digits, "image_folder": _image_folder, "synthetic": _synthetic}.get(config.data.kind)
    if opener is None:
        raise InputError(
            f"data.kind {config.data.kind}",
            "only a task of your own brings its data",
            "--task my_task.py:build",
        )
    return opener(config)


def _digits(config: RunConfig) -> _Source:
    from drivetrain.data.digits import Digits, DigitsAugment

    fraction = config.data.val_fraction or 0.2
    augment = DigitsAugment() if config.data.augment else None
    return _Source(
        train=Digits("train", seed=config.seed, val_fraction=fraction),
        evaluation=Digits("val", seed=config.seed, val_fraction=fraction),
        num_classes=Digits.num_classes,
        draw=augment.draw if augment else None,
        render=augment.render if augment else None,
        eval_render=None,
        loader_cost="memory",
        default_model="digits_cnn",
    )


def _image_folder(config: RunConfig) -> _Source:
    from drivetrain.data.image_draw import ImageAugment, ImageEval
    from drivetrain.data.image_folder import ImageFolderDataset, scan_both

    if config.data.path is None:
        raise InputError("data.kind image_folder", "data.path is not set", "--data.path /path/to/images")
    train, held_out = scan_both(config.data.path, val_fraction=config.data.val_fraction)
    size = config.data.image_size
    augment = ImageAugment(size) if config.data.augment else None
    eval_render = ImageEval(size)
    return _Source(
        train=ImageFolderDataset(train),
        evaluation=ImageFolderDataset(held_out) if len(held_out) else None,
        num_classes=len(train.classes),
        notes=(train.describe(), held_out.describe(), *dict.fromkeys((*train.notes, *held_out.notes))),
        draw=augment.draw if augment else None,
        render=augment.render if augment else eval_render.render,
        eval_render=eval_render.render,
        loader_cost="decode",
        default_model="resnet50",
    )


def _synthetic(config: RunConfig) -> _Source:
    from drivetrain.data.synthetic import SyntheticImages

    data = config.data
    train = SyntheticImages(
        size=data.image_size,
        num_classes=data.num_classes,
        num_samples=data.num_samples,
        seed=config.seed,
        prepared=True,
    )
    return _Source(
        train=train,
        evaluation=None,
        num_classes=data.num_classes,
        draw=None,
        render=None,
        eval_render=None,
        loader_cost="memory",
        default_model="resnet50",
    )
