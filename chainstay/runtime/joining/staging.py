"""A join as stages that can be run: its branches and its tail as chains of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import Subject
from chainstay.runtime.environment import Traits
from chainstay.runtime.extracted import AnyLoss, LossPart
from chainstay.runtime.extraction.calls import device_of
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.losses import own_loss
from chainstay.runtime.measurement import measuring, traits_of
from chainstay.runtime.merging import merge_idle_cuts
from chainstay.runtime.mode import Mode, titled_modules
from chainstay.runtime.progress import Progress, unseen
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, detached

__all__ = ["StagedJoin", "Surroundings", "parts_of", "staged", "staged_unmeasured", "traits_of_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedJoin:
    """A join, and what it takes to run it.

    Attributes:
        chain: All stages, branch by branch and then the tail, the loss excluded.
        lengths: How many of them each branch has.
        widths: How many tensors each branch's last state has.
        inputs: How many tensors each branch's first state has.
        traits: How each stage's forward touches the world.
        sums: Of each parameter or input that is used three times or more, the stages that use
            it (positions in the chain), once per use, in the order in which plain training
            runs them backward.
    """

    chain: Chain
    lengths: tuple[int, ...]
    widths: tuple[int, ...]
    inputs: tuple[int, ...]
    traits: tuple[Traits, ...]
    sums: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the stages of a join run in.

    Attributes:
        given: First states of all branches.
        shared: What all stages may read.
        device: Where they run.
        loss: From the model's output to one number; ``None`` to look for it in there.
        progress: Told of every run of a stage.
    """

    given: State
    shared: State
    device: torch.device
    loss: Callable[[Any], torch.Tensor] | None = None
    progress: Progress = unseen

    def subject(self, stages: Sequence[ChainStage], source: State) -> Subject:
        """Stages, those joined that are better not cut."""
        return Subject(
            stages=merge_idle_cuts(stages, source, self.shared),
            source=source,
            shared=self.shared,
            device=self.device,
            progress=self.progress,
        )


def parts_of(
    join: ExtractedJoin, around: Surroundings, *, has_loss: bool | None = None
) -> list[Subject]:
    """The branches and, if there is anything to run behind them, the tail.

    Args:
        join: What to cut.
        around: What it runs in.
        has_loss: Whether a loss is behind the tail, where it matters only that it is; by
            default it is looked for.
    """
    subjects = []
    met: State = ()
    for stages, source in zip(join.branches, join.split(around.given), strict=True):
        subjects.append(around.subject(_alone(stages), source))
        state = source
        with torch.enable_grad():
            for stage in stages:
                state = detached(stage(state, around.shared))
        met += state
    tail = _alone(join.tail)
    if has_loss:
        tail.append(ChainStage("loss", (AnyLoss(),), is_loss=True))
    elif has_loss is None:
        function = around.loss or own_loss(join.tail, join.finish, met, around.shared)
        if function is not None:
            tail.append(ChainStage("loss", (LossPart(join.finish, function),), is_loss=True))
    if tail:
        subjects.append(around.subject(tail, met))
    return subjects


def _alone(stages: Iterable[GraphStage]) -> list[ChainStage]:
    return [ChainStage(each.name, (each,)) for each in stages]


def staged(join: ExtractedJoin, parts: Sequence[Subject], traits: tuple[Traits, ...]) -> StagedJoin:
    """What `parts_of` found, together; with the traits of all stages but the loss."""
    device = parts[0].device
    branches = parts[: len(join.branches)]
    stages = tuple(stage for part in parts for stage in part.stages if not stage.is_loss)
    modules = titled_modules(stages)
    position = {id(part): index for index, stage in enumerate(stages) for part in stage.parts}
    return StagedJoin(
        chain=Chain(
            stages=stages,
            layouts=tuple(TensorLayout.of(t) for part in branches for t in part.source),
            device=device,
            mode=Mode.now(modules, device),
            modules=modules,
        ),
        lengths=tuple(len(part.stages) for part in branches),
        widths=join.widths,
        inputs=tuple(map(len, join.inputs)),
        traits=traits,
        sums=tuple(tuple(_positions(stages_of_sum, position)) for stages_of_sum in join.sums),
    )


def staged_unmeasured(
    join: ExtractedJoin, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, has_loss: bool
) -> StagedJoin:
    """The stages that measuring finds, without measuring them.

    Args:
        join: See `chainstay.runtime.joining.extract_join`.
        args: Of a call.
        kwargs: Of a call.
        has_loss: Whether a loss was measured; it decides about the last cut.
    """
    device = device_of(join.model, args, kwargs)
    with measuring(join.model.modules(), device):
        given, shared = join.begin(args, kwargs)
        parts = parts_of(join, Surroundings(detached(given), shared, device), has_loss=has_loss)
        return staged(join, parts, tuple(traits_of_all(parts)))


def traits_of_all(parts: Iterable[Subject]) -> Iterator[Traits]:
    """Of every stage of every part but the loss."""
    for part in parts:
        yield from traits_of(part)


def _positions(stages: Sequence[GraphStage], position: Mapping[int, int]) -> list[int]:
    return [position[id(stage)] for stage in stages]
