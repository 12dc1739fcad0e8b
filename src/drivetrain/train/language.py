"""The task that a run file alone describes: a language model on tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from drivetrain.config.schema import RunConfig
from drivetrain.data.batch import MicroBatch
from drivetrain.data.stdlib_corpus import stdlib_corpus
from drivetrain.data.token_places import token_places
from drivetrain.data.tokens import TokenDataset
from drivetrain.engine.objective import Objective
from drivetrain.spec.errors import InputError
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.models.gpt_config import GptConfig, flops_per_token, num_parameters
from drivetrain.train.models.token_loss import cross_entropy_of_logits
from drivetrain.train.task import Task


def language_task(config: RunConfig) -> Task:
    """A GPT that predicts each next token of the run file's text.

    Raises:
        InputError: the data or the model cannot be had, or do not fit each other.
    """
    if config.model.name not in (None, "gpt"):
        raise InputError(f"model {config.model.name} for text", "only gpt reads tokens", "--model.name gpt")
    train, held_out = _open(config)
    vocab_size = max(data.header.vocab_size for data in (train, held_out))
    length = config.data.sequence_length
    shape = GptConfig.from_kwargs(config.model.kwargs, vocab_size=vocab_size, max_sequence_length=length)
    if shape.vocab_size < vocab_size or shape.max_sequence_length < length:
        raise InputError(
            f"a gpt of {shape.vocab_size} different tokens and sequences of {shape.max_sequence_length}",
            f"the text has {vocab_size} different tokens, in sequences of {length}",
            "leave vocab_size and max_sequence_length out of model.kwargs, or set them large enough",
        )
    return Task(
        build_model=lambda: Gpt(shape),
        train_data=train,
        eval_data=held_out if len(held_out) else None,
        objective=language_objective(length),
        build_metrics=lambda: {"perplexity": _perplexity(length)},
        update_metric=_update,
        loader_cost="memory",
        static_graph=True,
        sample_unit="seq",
        notes=_notes(shape, train, held_out),
    )


def language_objective(sequence_length: int) -> Objective:
    """The sum of all tokens' losses, by the number of tokens: both the same however the batch is shared.

    The model is called as `model(tokens, targets)` and answers with each sequence's sum; a strategy that
    gives the last stage no targets hands its logits (B, length, vocabulary) to the loss instead.
    """
    return Objective(inputs=_inputs, loss=sequence_losses, weight=_NumTargets(sequence_length))


def _inputs(micro: MicroBatch) -> tuple[Tensor, Tensor]:
    return micro.x, micro.y


def sequence_losses(output: Tensor, micro: MicroBatch) -> Tensor:
    """(B,) float32: each sequence's sum of token losses, from these themselves or from logits."""
    return output if output.ndim == 1 else cross_entropy_of_logits(output, micro.y).sum(dim=1)


@dataclass(frozen=True)
class _NumTargets:
    """Documents are packed without gaps: every position of a valid sample has a target."""

    sequence_length: int

    def __call__(self, micro: MicroBatch) -> float:
        return micro.num_valid * self.sequence_length


def _open(config: RunConfig) -> tuple[TokenDataset, TokenDataset]:
    """Training and held-out text; the latter may have length 0."""
    data = config.data
    length = data.sequence_length
    places = token_places(data.path) if data.path else (stdlib_corpus(max_bytes=data.max_bytes),)
    if len(places) == 2:
        train, held_out = (TokenDataset(place, sequence_length=length) for place in places)
        return train, held_out
    fraction = 0.1 if data.val_fraction is None else data.val_fraction
    return (
        TokenDataset(places[0], sequence_length=length, split="train", val_fraction=fraction),
        TokenDataset(places[0], sequence_length=length, split="val", val_fraction=fraction),
    )


def _notes(shape: GptConfig, train: TokenDataset, held_out: TokenDataset) -> tuple[str, ...]:
    flops = flops_per_token(shape, train.sequence_length)
    model = f"gpt: {num_parameters(shape) / 1e6:,.1f} million parameters, {flops / 1e6:,.1f} MFLOP a token"
    text = (
        f"text: {train.num_tokens:,} tokens to train on, {held_out.num_tokens:,} held out,"
        f" of {train.header.num_documents:,} documents ({train.header.tokenizer})"
    )
    notes = (model, text)
    if not len(held_out):
        why = f"it has no sequence of {held_out.sequence_length} tokens"
        return (*notes, f"nothing is evaluated: the held-out text is too short, {why}")
    return notes


def _perplexity(sequence_length: int) -> Any:
    """A torchmetrics metric: e to the mean loss of a token."""
    import torch
    from torchmetrics import Metric

    class Perplexity(Metric):
        loss_sum: Tensor
        num_tokens: Tensor

        def __init__(self) -> None:
            super().__init__()
            for name in ("loss_sum", "num_tokens"):
                self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

        def update(self, losses: Tensor) -> None:
            self.loss_sum += losses.double().sum()
            self.num_tokens += losses.numel() * sequence_length

        def compute(self) -> Tensor:
            return (self.loss_sum / self.num_tokens).exp()

    return Perplexity()


def _update(metric: Any, output: Tensor, micro: MicroBatch) -> None:
    metric.update(sequence_losses(output, micro)[micro.weight > 0])
