"""A captured graph as stages, measured or not, and ready to run by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

import torch

from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.cuts.chain import GraphChain, GraphStages
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.costs import Subject
from chainstay.runtime.measures.measured import effects_of, measuring
from chainstay.runtime.measures.option_costs import options_again
from chainstay.runtime.measures.progress import Progress, unseen
from chainstay.runtime.options.table import OptionTable
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.idle_cuts import merge_idle_cuts
from chainstay.runtime.stage.loss_stage import on_stand_ins
from chainstay.runtime.stage.states import detached
from chainstay.runtime.transfer import PlannedTransfers
from chainstay.solution import Solution


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedGraph:
    """A captured graph, cut, and its stages, some joined."""

    graph: GraphChain
    chain: Chain

    def planned(
        self, solution: Solution, profile: ChainProfile, transfers: PlannedTransfers | None = None
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
    """A captured graph by a plan, with the costs of its stages."""

    staged: StagedGraph
    executor: Executor
    profile: ChainProfile

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs of the graph."""
        state, shared = self.graph.begin(inputs)
        return self.graph.finish(self.executor(state, shared), shared)

    @property
    def graph(self) -> GraphChain:
        """The graph, cut."""
        return self.staged.graph

    @property
    def options(self) -> OptionTable:
        """See `Planned`."""
        return self.executor.chain.options

    def for_graph(self, graph: GraphChain, inputs: Sequence[Any]) -> PlannedGraph | None:
        """The plan for a graph with other numbers; ``None`` if its options do not fit these."""
        staged = with_graph(self.executor.chain, graph, inputs)
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


def unmeasured_graph(graph: GraphChain, subject: Subject) -> StagedGraph:
    """The stages of a graph, run once each; call it inside `measuring`."""
    chain = Chain(
        stages=subject.model_stages,
        device=subject.device,
        names=graph.shared_names,
        effects=effects_of([subject]),
    )
    return StagedGraph(graph=graph, chain=chain)


def grouped_alike(graph: GraphStages, stages: Sequence[ChainStage]) -> tuple[ChainStage, ...]:
    """Return the stages of a graph, joined where those of a graph that is alike are."""
    parts = iter(graph.stages)
    return tuple(replace(stage, parts=tuple(islice(parts, len(stage.parts)))) for stage in stages)


def with_graph(former: Chain, graph: GraphChain, inputs: Sequence[Any]) -> StagedGraph | None:
    """The stages of a graph, joined where those of a graph that is alike are.

    ``None`` if options of these are no longer what they were, see `chain_alike`.
    """

    def subjects(stages: tuple[ChainStage, ...]) -> Iterator[Subject]:
        own = subject_of(graph, inputs, None, former.device, merges=False)
        yield replace(own, stages=stages)

    chain = chain_alike(former, graph, subjects)
    return None if chain is None else StagedGraph(graph=graph, chain=chain)


def chain_alike(
    former: Chain,
    graph: GraphStages,
    subjects: Callable[[tuple[ChainStage, ...]], Iterator[Subject]],
) -> Chain | None:
    """Return the stages of a graph, joined where those of one that is alike are.

    ``None`` if options of these are no longer what they were: with a probability of 0, dropout
    saves nothing.

    What was seen of a stage counts for one that is equal, numbers included. Another one may do
    what it says it may: dropout with a probability of 0 draws nothing, with another it does.

    Args:
        former: The stages of the graph that is alike.
        graph: The graph.
        subjects: Yields the parts of the graph, made of these stages, to be run.
    """
    stages = grouped_alike(graph, former.stages)
    effects = []
    for stage, before, known in zip(stages, former.stages, former.effects, strict=True):
        own = stage.effects  # positions of shared values may be others
        is_same = _texts(stage) == _texts(before)
        # A call's number may decide whether it draws.
        is_same = is_same and stage.effects.draws_random == before.effects.draws_random
        seen = replace(own, draws_random=known.draws_random, draws_on_host=known.draws_on_host)
        effects.append(seen if is_same else own)
    with measuring(former.device):
        options = options_again(former.options, stages, lambda: subjects(stages))
    if options is None:
        return None
    return Chain(
        stages=stages,
        device=former.device,
        names=graph.shared_names,
        effects=tuple(effects),
        options=options,
    )


def _texts(stage: ChainStage) -> list[str]:
    return [part.text for part in stage.parts]
