"""A join as stages that can be run: its branches and its tail as chains of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.execute.liveness import Shape
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.progress import Progress, unseen
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.idle_cuts import merge_idle_cuts
from chainstay.runtime.stage.loss_stage import on_stand_ins
from chainstay.runtime.stage.staged_graph import StagedGraph
from chainstay.runtime.stage.states import State, detached


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedJoin(StagedGraph):
    """A captured graph, cut into a join, and its stages, some joined.

    Attributes:
        lengths: How many stages each branch has.
    """

    graph: GraphJoin
    lengths: tuple[int, ...]

    @property
    def shape(self) -> Shape:
        """The number of stages in each part."""
        return Shape(len(self.chain.stages) - sum(self.lengths), self.lengths)

    @property
    def sums(self) -> tuple[tuple[int, ...], ...]:
        """The sums of the join, stages as their positions in the chain; see `GraphJoin`."""
        stages = enumerate(self.chain.stages)
        position = {id(part): index for index, stage in stages for part in stage.parts}
        return tuple(tuple(position[id(stage)] for stage in own) for own in self.graph.sums)

    def subjects(self, inputs: Sequence[Any]) -> Iterable[Subject]:
        """Return the branches and the tail; see `StagedGraph`."""
        stages = iter(self.chain.stages)
        parts = parts_of(self.graph, inputs, None, self.chain.device)
        sizes = (*self.lengths, self.shape.tail)
        for part, size in zip(parts, sizes, strict=False):  # there may be no tail
            yield replace(part, stages=tuple(islice(stages, size)))


def parts_of(
    join: GraphJoin,
    inputs: Sequence[Any],
    loss: ChainStage | None,
    device: torch.device,
    *,
    progress: Progress = unseen,
) -> list[Subject]:
    """The branches and, if there is anything to run behind them, the tail."""
    stand_ins = join.stand_ins(inputs)
    given, shared = join.begin(stand_ins.of_all(inputs))
    counted = join.counted(shared)

    def subject(stages: Sequence[ChainStage], source: State) -> Subject:
        return Subject(
            stages=merge_idle_cuts(stages, source, shared),
            source=source,
            shared=shared,
            counted=counted,
            device=device,
            progress=progress,
        )

    subjects = []
    met: State = ()
    for stages, source in zip(join.branches, join.split(detached(given)), strict=True):
        subjects.append(subject(_alone(stages), source))
        state = source
        for stage in stages:
            state = detached(stage(state, shared))
        met += state
    tail = _alone(join.tail)
    if loss is not None:
        tail.append(on_stand_ins(loss, stand_ins))
    if tail:
        subjects.append(subject(tail, met))
    return subjects


def _alone(stages: Iterable[GraphStage]) -> list[ChainStage]:
    return [ChainStage(stage.name, (stage,)) for stage in stages]


def staged(join: GraphJoin, parts: Sequence[Subject], effects: tuple[Effects, ...]) -> StagedJoin:
    """Return the join made of the parts that `parts_of` found, with the effects of its stages."""
    stages = tuple(stage for part in parts for stage in part.model_stages)
    return StagedJoin(
        graph=join,
        chain=Chain(
            stages=stages, device=parts[0].device, names=join.shared_names, effects=effects
        ),
        lengths=tuple(len(part.stages) for part in parts[: len(join.lengths)]),
    )
