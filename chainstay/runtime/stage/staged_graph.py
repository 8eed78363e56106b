"""A captured graph as stages, measured or not, and ready to run by a schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import Any, Self

import torch

from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.cuts.chain import GraphChain, GraphStages
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.measured import effects_of, measuring
from chainstay.runtime.measures.option_costs import options_again
from chainstay.runtime.measures.progress import Progress, unseen
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.idle_cuts import merge_idle_cuts
from chainstay.runtime.stage.loss_stage import on_stand_ins
from chainstay.runtime.stage.states import detached
from chainstay.runtime.transfer import PlannedTransfers
from chainstay.solution import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGraph(ABC):
    """A captured graph, cut, and its stages, some joined.

    Attributes:
        graph: The graph, cut.
        chain: The stages, the loss excluded; those of a join branch by branch, then the tail.
    """

    graph: GraphStages
    chain: Chain

    @abstractmethod
    def subjects(self, inputs: Sequence[Any]) -> Iterable[Subject]:
        """Return the stages, to be run on inputs of the graph; call it inside `measuring`."""

    def with_graph(self, graph: GraphStages, inputs: Sequence[Any]) -> Self | None:
        """Return the stages of a graph, joined where these are, which is alike.

        ``None`` if options of these are no longer what they were: with a probability of 0, dropout
        saves nothing.

        What was seen of a stage counts for one that is equal, numbers included. Another one may do
        what it says it may: dropout with a probability of 0 draws nothing, with another it does.
        """
        former = self.chain
        stages = grouped_alike(graph, former.stages)
        effects = []
        for stage, before, known in zip(stages, former.stages, former.effects, strict=True):
            own = stage.effects  # positions of shared values may be others
            is_same = _texts(stage) == _texts(before)
            # A call's number may decide whether it draws.
            is_same = is_same and stage.effects.draws_random == before.effects.draws_random
            seen = replace(own, draws_random=known.draws_random, draws_on_host=known.draws_on_host)
            effects.append(seen if is_same else own)
        chain = replace(former, stages=stages, names=graph.shared_names, effects=tuple(effects))
        again = replace(self, graph=graph, chain=chain)
        with measuring(former.device):
            options = options_again(former.options, stages, partial(again.subjects, inputs))
        return None if options is None else replace(again, chain=replace(chain, options=options))


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedChain(StagedGraph):
    """A captured graph, cut into a chain, and its stages, some joined."""

    graph: GraphChain

    def subjects(self, inputs: Sequence[Any]) -> Iterable[Subject]:
        """Return the one subject; see `StagedGraph`."""
        own = subject_of(self.graph, inputs, None, self.chain.device, merges=False)
        return (replace(own, stages=self.chain.stages),)

    def planned(
        self, solution: Solution, profile: ChainProfile, transfers: PlannedTransfers | None
    ) -> PlannedGraph:
        """The graph by the schedule of `solution`.

        Raises:
            PlanMismatchError: The schedule is for another number of stages, or cannot be run.
            InvalidScheduleError: An operation lacks what it needs.
        """
        schedule = solution.schedule if transfers is None else transfers.schedule
        return PlannedGraph(
            staged=self,
            executor=Executor(self.chain, schedule, transfers),
            solution=solution,
            profile=profile,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph(Planned):
    """A captured graph, cut into a chain or a join, by a plan, with the costs of its stages."""

    staged: StagedGraph
    executor: Executor

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs of the graph."""
        state, shared = self.graph.begin(inputs)
        return self.graph.finish(self.executor(state, shared), shared)

    @property
    def graph(self) -> GraphStages:
        """The graph, cut."""
        return self.staged.graph

    @property
    def chain(self) -> Chain:
        """See `Planned`."""
        return self.executor.chain

    def for_graph(self, graph: GraphStages, inputs: Sequence[Any]) -> PlannedGraph | None:
        """The plan for a graph with other numbers; ``None`` if its options do not fit these."""
        staged = replace(self.staged, chain=self.chain).with_graph(graph, inputs)
        if staged is None:
            return None
        return replace(self, staged=staged, executor=self.executor.with_chain(staged.chain))

    def close(self) -> None:
        """Stop transfers; see `Planned`."""
        self.executor.close()


def subject_of(  # noqa: PLR0913  # a call of the graph, and whom to tell
    graph: GraphChain,
    inputs: Sequence[Any],
    loss: ChainStage | None,
    device: torch.device,
    *,
    progress: Progress = unseen,
    merges: bool = True,
) -> Subject:
    """The stages of a graph, with stand-ins for its inputs: running them leaves no trace.

    Call it inside `measuring`.
    """
    stand_ins = graph.stand_ins(inputs)
    state, shared = graph.begin(stand_ins.of_all(inputs))
    stages = [ChainStage(stage.name, (stage,)) for stage in graph.stages]
    if loss is not None:
        stages.append(on_stand_ins(loss, stand_ins))
    source = detached(state)
    merged = merge_idle_cuts(stages, source, shared) if merges else tuple(stages)
    return Subject(
        stages=merged,
        source=source,
        shared=shared,
        counted=graph.counted(shared),
        device=device,
        progress=progress,
        blocks=_blocks(graph, merged),
    )


def _blocks(graph: GraphChain, stages: Sequence[ChainStage]) -> tuple[tuple[int, int], ...]:
    """Return the first and last stage of every block that is several stages."""
    counts = (len(stage.parts) for stage in stages if not stage.is_loss)
    at = {part: stage for stage, part in enumerate(accumulate(counts, initial=0))}
    borders = [at[part] for part in graph.borders if part in at]
    return tuple((first, after - 1) for first, after in pairwise(borders) if after - first > 1)


def unmeasured_graph(graph: GraphChain, subject: Subject) -> StagedChain:
    """The stages of a graph, run once each; call it inside `measuring`."""
    chain = Chain(
        stages=subject.model_stages,
        device=subject.device,
        names=graph.shared_names,
        effects=effects_of([subject]),
    )
    return StagedChain(graph=graph, chain=chain)


def grouped_alike(graph: GraphStages, stages: Sequence[ChainStage]) -> tuple[ChainStage, ...]:
    """Return the stages of a graph, joined where those of a graph that is alike are."""
    parts = iter(graph.stages)
    return tuple(replace(stage, parts=tuple(islice(parts, len(stage.parts)))) for stage in stages)


def _texts(stage: ChainStage) -> list[str]:
    return [part.text for part in stage.parts]
