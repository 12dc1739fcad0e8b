"""Pipelines: each rank holds some of the layers, and micro-batches go from rank to rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drivetrain.engine.blocks import blocks_of, checkpoint_activations
from drivetrain.engine.gradient_norm import clip_sharded
from drivetrain.engine.objective import Objective
from drivetrain.engine.settings import RunSettings
from drivetrain.engine.stages import Cut, StagePart, aliases_of, keep_stages, plan_stages
from drivetrain.engine.stages_of_models import cut_of
from drivetrain.engine.state import TrainState
from drivetrain.engine.step import StepScope
from drivetrain.engine.strategies import pipeline_rules as rules
from drivetrain.engine.strategies.base import (
    Build,
    EvaluationForward,
    ForwardBackward,
    built_model,
    finish_state,
)
from drivetrain.engine.strategies.pipeline_forward import ForwardLine, Line, Stage
from drivetrain.engine.strategies.pipeline_groups import Groups, group_of_places, open_groups
from drivetrain.engine.strategies.pipeline_schedule import SPLITS_BACKWARD, TrainingLine
from drivetrain.engine.strategies.pipeline_weights import Weights, bring_weights, buffer_aliases, slots_of
from drivetrain.spec.batch import plan_batches
from drivetrain.spec.errors import InputError
from drivetrain.spec.layout import Layout
from drivetrain.spec.parts import StepPart


class Pipeline:
    """The model is cut into stages (`engine/stages.py`), of which each rank along the mesh's axis `pp` has
    one or, by the schedule, several; ranks along the data axes have the same stages and see other samples.

    - The rank's module is the whole model without the layers of others, under the whole model's names:
      optimizer, average, checkpoints and exports see nothing else.
    - Only rank 0 ever holds the whole model, on the CPU; the weights are those of any other strategy.
    - Along `dp_shard` weights, gradients and optimizer state are kept in parts and gathered for a step.
    - A weight that is tied over stages (embedding and head) lives in each, and its gradients are summed;
      where the pipeline folds, its two ends are on one rank and it is tied as in the whole model.
    - Gradients are reduced after the last micro-batch.
    """

    name = "pipeline"
    needs_group = True
    owns_backward = True

    def refusals(self, settings: RunSettings, layout: Layout, device: torch.device) -> list[str]:
        return rules.refusals(settings, layout, device)

    def setup(self, build: Build) -> TrainState:
        settings, layout, world = build.settings, build.layout, build.world
        if build.precision.uses_scaler:
            raise InputError("strategy pipeline", rules.FP16, "--precision bf16 or fp32")
        whole = built_model(build) if world.rank == 0 else None
        with torch.device("meta"):
            module = built_model(build)
        cut = cut_of(module)
        num_stages = layout.pp * rules.stages_per_rank(settings)
        parts = plan_stages(module, cut, num_stages)
        place = layout.place(world.rank)["pp"]
        by_place = [
            [p for p in parts if rules.place_of(p.index, layout.pp, settings.pipeline_schedule) == here]
            for here in range(layout.pp)
        ]
        _check_trained(module, cut, by_place)
        _treat_blocks(module, cut, settings)
        groups = open_groups(layout, world, settings.timeout_s)
        facts = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        aliases, buffers = aliases_of(module), buffer_aliases(module)
        holders = _holders(module, cut, by_place)
        keep_stages(module, cut, by_place[place])
        slots = slots_of(module, aliases, buffers=False)
        pairs = _pairs(build, holders)
        self._weights = Weights(
            slots,
            pairs={name: group for name, group in pairs.items() if name in slots},
            replicas=groups.replicas,
            mesh=groups.mesh,
        )
        bring_weights(self._weights, slots_of(module, buffers, buffers=True), facts, whole, world.device)
        self._build_lines(build, groups, [Stage(module, cut, part) for part in by_place[place]], num_stages)
        self._groups = groups
        self._counted_elsewhere = [name for name in slots if holders[name][0] != place]
        state = finish_state(build, module, module, channels_last=False)
        state.replicas = groups.replicas
        return state

    def _build_lines(self, build: Build, groups: Groups, stages: list[Stage], num_stages: int) -> None:
        settings, layout, world = build.settings, build.layout, build.world
        line = Line(
            stages=stages,
            place_of=lambda stage: rules.place_of(stage, layout.pp, settings.pipeline_schedule),
            place=layout.place(world.rank)["pp"],
            group=groups.stages,
            hosts=groups.hosts,
            device=world.device,
            autocast=build.precision.autocast,
        )
        plan = plan_batches(
            global_batch=settings.global_batch,
            num_data_ranks=layout.num_data_ranks,
            micro_batch=settings.micro_batch,
            num_stages=layout.pp,
        )
        self._fills_bubbles = settings.pipeline_schedule == "zero_bubble"
        self._forward = ForwardLine(line)
        self._training = TrainingLine(
            line,
            self._forward,
            settings.pipeline_schedule,
            num_stages=num_stages,
            micro_batch=plan.micro_batch,
        )

    def warm_up(self, state: TrainState, forward_backward: ForwardBackward | None) -> list[str]:
        if self._fills_bubbles and not SPLITS_BACKWARD:
            what = f"zero_bubble: torch {torch.__version__} cannot split a backward rightly"
            return [f"{what}: it stays whole, and bubbles are filled from torch 2.14 on"]
        return []

    def set_gradient_sync(self, state: TrainState, enabled: bool) -> None:
        pass  # gradients are reduced after the last backward

    def run_micro_batches(self, state: TrainState, scope: StepScope, objective: Objective) -> None:
        with self._weights.gathered():
            self._training.run(scope, objective)
            gradients = self._weights.reduced_gradients()
        self._weights.set_gradients(gradients)
        scope.mark(StepPart.EXPOSED_COMM)

    def clip(self, state: TrainState, max_norm: float) -> Tensor:
        return clip_sharded(
            state.module.parameters(),
            max_norm,
            stages=self._groups.stages,
            counted_elsewhere=[self._weights.parameter(name) for name in self._counted_elsewhere],
        )

    def evaluation(self, state: TrainState) -> AbstractContextManager[EvaluationForward]:
        return self._evaluating()

    @contextmanager
    def _evaluating(self) -> Iterator[EvaluationForward]:
        with self._weights.gathered():
            yield self._forward
            self._forward.finish()


def _check_trained(module: nn.Module, cut: Cut, by_place: list[list[StagePart]]) -> None:
    """Each rank needs something to train, or its optimizer would have nothing to do."""
    for place, stages in enumerate(by_place):
        owners = [name for stage in stages for name in stage.parts(cut)]
        if not any(p.requires_grad for name in owners for p in _parameters(module, name)):
            raise InputError(
                f"a pipeline of {len(by_place)} ranks",
                f"no parameter of rank {place}'s layers is trained ({owners[0]} to {owners[-1]} are frozen)",
                "use fewer ranks along pp, or strategy ddp",
            )


def _parameters(module: nn.Module, name: str) -> list[nn.Parameter]:
    owner, _, leaf = name.rpartition(".")
    part = getattr(module.get_submodule(owner), leaf)
    return [part] if isinstance(part, nn.Parameter) else list(part.parameters())


def _treat_blocks(module: nn.Module, cut: Cut, settings: RunSettings) -> None:
    """Recomputation and compilation of the whole model's blocks, before others' are taken out of it."""
    blocks = blocks_of(module)
    checkpoint_activations(blocks, every=settings.activation_checkpointing)
    if settings.compile:
        for block in blocks or [module.get_submodule(name) for name in cut.layers]:
            block.compile()


def _holders(module: nn.Module, cut: Cut, by_place: list[list[StagePart]]) -> dict[str, list[int]]:
    """The places in the pipeline that have each parameter: several for one that is tied over stages."""
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    holders: dict[str, list[int]] = {}
    for place, stages in enumerate(by_place):
        owned = {id(p) for stage in stages for name in stage.parts(cut) for p in _parameters(module, name)}
        for key in owned:
            holders.setdefault(first[key], []).append(place)
    return holders


def _pairs(build: Build, holders: dict[str, list[int]]) -> dict[str, dist.ProcessGroup]:
    """The groups over which gradients of tied weights are summed, by name; those of this rank. Called by all
    ranks."""
    groups = {
        places: group_of_places(build.layout, build.world, places, build.settings.timeout_s)
        for places in sorted({tuple(p) for p in holders.values() if len(p) > 1})
    }
    named = {name: groups.get(tuple(places)) for name, places in holders.items()}
    return {name: group for name, group in sorted(named.items()) if group is not None}
