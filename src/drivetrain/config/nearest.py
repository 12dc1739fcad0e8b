"""The nearest right name for a wrong one, also where it lives in another section."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from drivetrain.config.fields import field_docs, section_keys

# What other trainers call these things. Only names that no key of ours comes near by spelling.
_OTHER_NAMES = {
    "accumulate_grad_batches": "micro_batch",
    "amp": "precision",
    "arch": "model.name",
    "backend": "strategy",
    "batch": "global_batch",
    "batch_size": "global_batch",
    "beta1": "optim.betas",
    "clip_grad": "optim.clip_norm",
    "dataset": "data.kind",
    "devices": "launch.nproc_per_node",
    "dtype": "precision",
    "gpus": "launch.nproc_per_node",
    "grad_clip": "optim.clip_norm",
    "gradient_accumulation_steps": "micro_batch",
    "img_size": "data.image_size",
    "learning_rate": "optim.lr",
    "lr_scheduler": "schedule.name",
    "max_epochs": "epochs",
    "max_grad_norm": "optim.clip_norm",
    "mixed_precision": "precision",
    "model_ema": "ema_decay",
    "num_nodes": "launch.nnodes",
    "num_workers": "data.workers",
    "opt": "optim.name",
    "optimizer": "optim.name",
    "random_seed": "seed",
    "save_every": "checkpoint.every_steps",
    "smoothing": "label_smoothing",
    "wd": "optim.weight_decay",
}


def nearest_key(wrong: str, *, also: Iterable[str] = ()) -> str | None:
    """The key that `wrong` (dotted) most likely means, or None.

    First the same section's keys, then the same last part in another section, then other trainers' names,
    then any key by spelling. `also` are further right names (flags) to compare with by spelling.
    """
    keys = [*field_docs(), *(name for name in section_keys() if name)]
    section, _, last = wrong.rpartition(".")
    siblings = [f"{section}.{name}" if section else name for name in section_keys().get(section, ())]
    if match := _closest(wrong, siblings, 0.75):
        return match
    same_last = [key for key in keys if key.rpartition(".")[2] == last]
    if same_last:
        return _closest(wrong, same_last, 0.0)
    if last in _OTHER_NAMES:
        return _OTHER_NAMES[last]
    by_last = {key.rpartition(".")[2]: key for key in reversed(keys)}
    if match := _closest(last, by_last, 0.75):
        return by_last[match]
    return _closest(wrong, [*keys, *also], 0.6)


def nearest_choice(value: object, choices: Iterable[str]) -> str | None:
    """The choice that `value` most likely means, or None."""
    return _closest(str(value).lower(), list(choices), 0.6)


def _closest(word: str, candidates: Iterable[str], cutoff: float) -> str | None:
    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=cutoff)
    return found[0] if found else None
