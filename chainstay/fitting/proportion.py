"""Plans for smaller calls, by the costs of a larger one that was measured.

Measuring takes the time of tens of steps, too long where sentences have lengths of their own. A
graph that differs from a measured one in sizes only, and has no larger stage, is not measured:
its stages cost what those of the other do, in proportion to the bytes that they save and pass on,
which are known from the graph. These are estimates, so they are checked: each option is tried on
the graph's own tensors, a step by the plan is rehearsed, and what it needs beyond its prediction is
added to the overhead of every operation, until a prediction holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError, PlanMismatchError
from chainstay.fitting.measured_graph import MeasuredGraph
from chainstay.fitting.planner import GraphCall
from chainstay.fitting.strategies.fastest import Strategies, plan_of
from chainstay.problems.offload import OffloadSolution
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.measures.costs import Subject, observe_chain
from chainstay.runtime.measures.measured import Measurement, measuring
from chainstay.runtime.measures.option_costs import chosen_options, restored_options
from chainstay.runtime.measures.rehearsal import Rehearsal
from chainstay.runtime.options.option import Option
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.staged_graph import (
    PlannedGraph,
    StagedChain,
    grouped_alike,
    subject_of,
)

_CORRECTIONS: Final = 6
"""How often a prediction that is too low is corrected before the graph is measured after all."""


def plan_in_proportion(
    larger: MeasuredGraph,
    call: GraphCall,
    graph: GraphChain,
    solved: Callable[[Measurement], Strategies],
    rehearsed: Callable[[PlannedGraph], Rehearsal],
) -> PlannedGraph | None:
    """Plan a smaller graph by the costs of a measured one.

    Args:
        larger: The measured graph.
        call: A call of the smaller one.
        graph: The smaller one, cut where the other is.
        solved: Solves a chain, whose options are not made yet, in each way.
        rehearsed: Runs a step by a plan.

    Returns:
        The plan; ``None`` where the graph has to be measured.
    """
    account = larger.account_for(graph)
    assert account is not None, "the graph is no larger in any stage"
    with measuring(call.device):
        stages = grouped_alike(graph, larger.staged.chain.stages)
        subject = subject_of(graph, call.inputs, None, call.device, merges=False)
        subject = replace(subject, stages=stages)
        own = Chain(
            stages=stages,
            device=call.device,
            names=graph.shared_names,
            effects=tuple(seen.effects for seen in observe_chain(subject)),
        )
    options: dict[tuple[int, int], Option] = {}
    for _ in range(_CORRECTIONS):
        strategies = solved(Measurement(chain=own, account=account))
        try:
            planned = _planned(graph, strategies, subject, options)
        except (InfeasibleBudgetError, PlanMismatchError):  # measured, it may fit
            return None
        except InvalidProfileError:  # sizes in proportions of their own contradict each other
            return None
        if planned is None:
            return None
        missing = rehearsed(planned).peak_bytes - planned.solution.peak_bytes
        if missing <= 0:
            origin = (
                f"costs of its stages: those for {larger.shapes}, in proportion to their bytes\n"
            )
            return replace(planned, origin=origin)
        planned.close()
        # So much more stands through the whole step.
        account = replace(account, stages=tuple(cost.beside(missing) for cost in account.stages))
    return None


def _planned(
    graph: GraphChain,
    strategies: Strategies,
    subject: Subject,
    options: dict[tuple[int, int], Option],
) -> PlannedGraph | None:
    """Return the fastest strategy's plan; ``None`` if it moves data: links have other prices.

    Options that it needs and that `options` lacks are made there, and tried on the `subject`.

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
        with measuring(subject.device):
            options |= restored_options([subject], wanted, is_checked=True)
    chain = replace(strategies.measured.chain, options=dict(options))
    return plan_of(StagedChain(graph=graph, chain=chain), strategies)
