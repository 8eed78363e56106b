"""A join as stages that can be run: its branches and its tail as chains of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.progress import Progress, unseen
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.idle_cuts import merge_idle_cuts
from chainstay.runtime.stage.loss_stage import on_stand_ins
from chainstay.runtime.stage.staged_graph import chain_alike
from chainstay.runtime.stage.states import State, detached


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedJoin:
    """A join, and what it takes to run it.

    Attributes:
        join: The join.
        chain: All its stages, branch by branch and then the tail, some joined; the loss excluded.
        lengths: How many of them each branch has.
    """

    join: GraphJoin
    chain: Chain
    lengths: tuple[int, ...]

    @property
    def sums(self) -> tuple[tuple[int, ...], ...]:
        """The sums of the join, stages as their positions in the chain; see `GraphJoin`."""
        stages = enumerate(self.chain.stages)
        position = {id(part): index for index, stage in stages for part in stage.parts}
        return tuple(tuple(position[id(stage)] for stage in own) for own in self.join.sums)


def with_join(former: StagedJoin, join: GraphJoin, inputs: Sequence[Any]) -> StagedJoin | None:
    """Return the stages of a join, joined where those of one that is alike are.

    ``None`` if options of these are no longer what they were.
    """
    sizes = (*former.lengths, len(former.chain.stages))  # the tail is what is left

    def subjects(stages: tuple[ChainStage, ...]) -> Iterator[Subject]:
        following = iter(stages)
        parts = parts_of(join, inputs, None, former.chain.device)
        for part, size in zip(parts, sizes, strict=False):  # there may be no tail
            yield replace(part, stages=tuple(islice(following, size)))

    chain = chain_alike(former.chain, join, subjects)
    return None if chain is None else replace(former, join=join, chain=chain)


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


def staged(
    join: GraphJoin, parts: Sequence[Subject], effects: tuple[Effects, ...], names: tuple[str, ...]
) -> StagedJoin:
    """Return the join made of the parts that `parts_of` found, with the effects of its stages."""
    stages = tuple(stage for part in parts for stage in part.model_stages)
    return StagedJoin(
        join=join,
        chain=Chain(stages=stages, device=parts[0].device, names=names, effects=effects),
        lengths=tuple(len(part.stages) for part in parts[: len(join.lengths)]),
    )
