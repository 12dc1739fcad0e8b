"""What ranks run in the tests of text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from drivetrain.config.schema import RunConfig
from drivetrain.data.token_file import TokenWriter
from drivetrain.train.models.gpt import Gpt
from drivetrain.train.models.gpt_config import GptConfig
from drivetrain.train.trainer import Trainer

TINY = {"num_layers": 2, "width": 32, "num_heads": 4, "num_kv_heads": 2, "ffn_width": 64}
SHAPE = GptConfig(vocab_size=61, max_sequence_length=16, **TINY)


def write_corpus(path: Path) -> None:
    """60 documents that count up from a random place, modulo 60: easy to learn."""
    generator = np.random.default_rng(0)
    with TokenWriter(path, vocab_size=61, separator=60, tokenizer="count") as writer:
        for _ in range(60):
            writer.append((generator.integers(60) + np.arange(generator.integers(10, 90))) % 60)
            writer.end_document()


def train(*, folder: str, steps: int = 12, micro_batch: int | str = "auto", **options: Any) -> dict[str, Any]:
    """Trains a tiny GPT by a run file's settings; ids and loss of each step, last metrics and weights."""
    config = RunConfig.model_validate(
        {
            "model": {"name": "gpt", "kwargs": {**TINY, "loss_chunk_tokens": 50}},
            "data": {"kind": "text", "path": f"{folder}/corpus.tokens", "sequence_length": 16},
            "global_batch": 7,
            "micro_batch": micro_batch,
            "epochs": None,
            "max_steps": steps,
            "device": "cpu",
            "resume": "none",
            "optim": {"lr": 0.01, "clip_norm": 1.0},
            **options,
        }
    )
    trainer = Trainer(config)
    ids: list[list[int]] = []
    losses: list[float] = []
    step_of = trainer.run.train_step

    def watched(state: Any, step: Any, objective: Any) -> Any:
        ids.append([i for micro in step.micro_batches for i in micro.ids.tolist() if i >= 0])
        out = step_of(state, step, objective)
        losses.append(out.loss)
        trained.append(state.module)
        return out

    trained: list[torch.nn.Module] = []
    trainer.run.train_step = watched  # type: ignore[method-assign]
    result = trainer.fit()
    weights = {name: tensor.detach().clone() for name, tensor in trained[-1].state_dict().items()}
    return {"ids": ids, "losses": losses, "metrics": result.metrics, "weights": weights}


def sharded_weights() -> dict[str, Any]:
    """Builds on the meta device, shards, initialises; names what differs from a whole model."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.manual_seed(3)
    whole = Gpt(SHAPE)
    with torch.device("meta"):
        model = Gpt(SHAPE)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    model.init_weights(3)
    full = {name: parameter.full_tensor() for name, parameter in model.state_dict().items()}
    differing = [name for name, weight in whole.state_dict().items() if not torch.equal(full[name], weight)]
    x = torch.arange(16)[None]
    if not torch.allclose(model(x), whole(x), rtol=1e-5, atol=1e-6):
        differing.append("logits")
    return {"differing": differing, "is_tied": model.head.weight is model.embed.weight}


def sharded_head() -> tuple[torch.Tensor, ...]:
    """Losses, and a gradient in the first layer, with a head cut by vocabulary and with a whole one."""
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    torch.manual_seed(3)
    shape = GptConfig(vocab_size=61, max_sequence_length=16, tied=False, loss_chunk_tokens=5, **TINY)
    whole, cut = Gpt(shape), Gpt(shape)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(cut, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    x, y = torch.arange(16)[None] + 1, torch.arange(16)[None] * 3
    answers = []
    for model in (cut, whole):
        losses = model(x, y)
        losses.sum().backward()
        answers.append((losses.detach(), model.blocks["0"].attention.query.weight.grad))
    return answers[0][0], answers[1][0], answers[0][1], answers[1][1]
