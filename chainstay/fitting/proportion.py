"""Plans for smaller calls, by the costs of a larger one that was measured.

Measuring takes the time of tens of steps, too long where sentences have lengths of their own. A
graph that differs from a measured one in sizes only, and has no larger stage, is not measured:
its stages cost what those of the other do, in proportion to the bytes that they save and pass on,
which are known from the graph. Nothing trusts that. Each option is tried on the graph's own
tensors, a step by the plan is rehearsed, and what it needs beyond its prediction is added to the
overhead of every operation, until a prediction holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, islice
from math import ceil
from operator import add
from typing import Final

from chainstay.errors import InfeasibleBudgetError, PlanMismatchError
from chainstay.fitting.planner import GraphCall
from chainstay.fitting.strategies.fastest import Strategies, plan_of
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import Skip
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.costs import Subject, observe_chain
from chainstay.runtime.measures.measured import Measurement, measuring
from chainstay.runtime.measures.option_costs import chosen_options, restored_options
from chainstay.runtime.measures.rehearsal import Rehearsal
from chainstay.runtime.options.option import Option
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.staged_graph import (
    PlannedGraph,
    StagedGraph,
    names_of,
    subject_of,
)

_CORRECTIONS: Final = 6
"""How often a prediction that is too low is corrected before the graph is measured after all."""


@dataclass(frozen=True, slots=True)
class Lender:
    """A measured graph whose costs are lent to smaller ones.

    Attributes:
        shapes: The shapes of its call, for people.
        staged: The graph as stages.
        costs: What these cost.
    """

    shapes: str
    staged: StagedGraph
    costs: Measurement

    @property
    def saved_bytes(self) -> int:
        """Bytes that its stages save together."""
        return sum(cost.saved_bytes for cost in self.costs.account.stages)

    def account_for(self, graph: GraphChain) -> Account | None:
        """Return the costs of a smaller graph; ``None`` if it is larger, or not cut alike."""
        known, stages = self.staged.graph, self.staged.chain.stages
        if graph.cuts != known.cuts:
            return None
        passed_on = _shares(_passed_on(graph, stages), _passed_on(known, stages))
        sizes = _shares(_sizes(graph, stages), _sizes(known, stages))
        if max(*passed_on, *sizes) > 1:
            return None
        return _in_proportion(self.costs.account, sizes, passed_on)


def account_for(graph: GraphChain, lenders: Sequence[Lender]) -> tuple[Lender, Account] | None:
    """Return the lender whose costs are next above those of a graph, and these; ``None``: none."""
    accounts = ((lender, lender.account_for(graph)) for lender in lenders)
    found = [(lender, account) for lender, account in accounts if account is not None]
    return min(found, key=lambda pair: pair[0].saved_bytes, default=None)


def plan_in_proportion(
    lent: tuple[Lender, Account],
    call: GraphCall,
    graph: GraphChain,
    solved: Callable[[Measurement], Strategies],
    rehearsed: Callable[[PlannedGraph], Rehearsal],
) -> PlannedGraph | None:
    """Plan a smaller graph by the costs of a measured one.

    Args:
        lent: The measured graph, and the costs of the smaller one.
        call: A call of the smaller one.
        graph: The smaller one, cut where the other is.
        solved: Solves a chain, whose options are not made yet, in each way.
        rehearsed: Runs a step by a plan.

    Returns:
        The plan; ``None`` where the graph has to be measured.
    """
    lender, account = lent
    with measuring(call.device):
        subject = subject_of(graph, call.inputs, None, call.device, merges=False)
        stages = _grouped(subject.stages, lender.staged.chain.stages)
        subject = replace(subject, stages=stages)
        own = StagedGraph(
            graph=graph,
            chain=Chain(stages=stages, device=call.device, names=names_of(graph)),
            traits=tuple(seen.traits for seen in observe_chain(subject)),
        )
    options: dict[tuple[int, int], Option] = {}
    for _ in range(_CORRECTIONS):
        strategies = solved(Measurement(chain=own.chain, account=account, traits=own.traits))
        try:
            planned = _planned(own, strategies, subject, options)
        except (InfeasibleBudgetError, PlanMismatchError):  # measured, it may fit
            return None
        if planned is None:
            return None
        missing = rehearsed(planned).peak_bytes - planned.solution.peak_bytes
        if missing <= 0:
            origin = (
                f"costs of its stages: those for {lender.shapes}, in proportion to their bytes\n"
            )
            return replace(planned, origin=origin)
        planned.close()
        account = _with_standing(account, missing)
    return None


def _planned(
    own: StagedGraph,
    strategies: Strategies,
    subject: Subject,
    options: dict[tuple[int, int], Option],
) -> PlannedGraph | None:
    """The plan of the fastest strategy; ``None`` if it moves data: links have prices of their own.

    Args:
        own: The stages, which have no options yet.
        strategies: What is known to cost what.
        subject: The stages, to try options on.
        options: Options that were made; those that are still needed are added.

    Raises:
        InfeasibleBudgetError: None fits.
        PlanMismatchError: One of its options is none of these stages.
    """
    strategies.try_all()
    solution = strategies.found[strategies.best]
    if isinstance(solution, OffloadSolution):
        return None
    used = {(op.stage, op.option) for op in solution.schedule if op.option}
    choices = chosen_options(strategies.measured.account.stages)
    wanted = {key: choices[key] for key in used - options.keys()}
    if wanted:
        with measuring(own.chain.device):
            options |= restored_options([subject], wanted, is_checked=True)
    planned = plan_of(replace(own, options=dict(options)), strategies)
    assert isinstance(planned, PlannedGraph), "branches are measured"
    return planned


def _grouped(parts: Sequence[ChainStage], stages: Sequence[ChainStage]) -> tuple[ChainStage, ...]:
    """Stages of one part each, joined where `stages` are."""
    rest = iter(parts)
    return tuple(
        replace(stage, parts=tuple(part.parts[0] for part in islice(rest, len(stage.parts))))
        for stage in stages
    )


def _passed_on(graph: GraphChain, stages: Sequence[ChainStage]) -> list[int]:
    """Bytes of the input of each of these stages, of which the last one is the loss."""
    places = accumulate((len(stage.parts) for stage in stages), initial=0)
    return [graph.boundary_bytes(place) for place in places]


def _sizes(graph: GraphChain, stages: Sequence[ChainStage]) -> list[int]:
    """Bytes that each stage saves and passes on; the loss has its input."""
    parts = iter(graph.stages)
    saved = [sum(part.saved_bytes for part in islice(parts, len(s.parts))) for s in stages]
    passed_on = _passed_on(graph, stages)
    return [*map(add, saved, passed_on[1:]), passed_on[-1]]


def _shares(own: Sequence[int], known: Sequence[int]) -> list[Fraction]:
    """How much of the known sizes these are; larger than 1 where only the known one is 0."""
    return [
        Fraction(size, before) if before else Fraction(1 + size)
        for size, before in zip(own, known, strict=True)
    ]


def _in_proportion(
    account: Account, sizes: Sequence[Fraction], passed_on: Sequence[Fraction]
) -> Account:
    """Return an account whose stages cost so much of what they did.

    Args:
        account: The account.
        sizes: The share of each stage.
        passed_on: The share of each stage's input; the loss passes on one number.
    """
    stages = tuple(
        cost.scaled(share, passed)
        for cost, share, passed in zip(
            account.stages, sizes, (*passed_on[1:], Fraction(1)), strict=True
        )
    )

    def scaled(skip: Skip) -> Skip:
        least = min(passed_on[skip.first : skip.last + 1])  # it is part of all these states
        return replace(
            skip, bytes=int(skip.bytes * least), gradient_bytes=int(skip.gradient_bytes * least)
        )

    return replace(
        account,
        input_bytes=ceil(account.input_bytes * passed_on[0]),
        input_gradient_bytes=ceil(account.input_gradient_bytes * passed_on[0]),
        stages=stages,
        skips=tuple(map(scaled, account.skips)),
    )


def _with_standing(account: Account, size: int) -> Account:
    """Return an account in which `size` more bytes stand through the whole step."""
    return replace(account, stages=tuple(cost.beside(size) for cost in account.stages))
