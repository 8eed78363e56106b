"""Recomputing and offloading together verified.

A bound on persistent plans that may move parts of items holds for every such plan: those
that only recompute, and those that only offload. A bound on all schedules holds for every
schedule. And a schedule that is such a plan, with whole transfers, takes no less than its
own computations and items with transfers in parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError, SolverLimitError
from chainstay.formulations import CPSAT
from chainstay.problems import HybridProblem
from chainstay.problems.consistency import AnyClaim, MethodResult
from chainstay.problems.hybrid import HybridClaim, HybridSolution
from chainstay.problems.offload import transfer_contradiction_error
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve.hybrid import AutoHybrid, IntegerProgramHybrid, Pofo, certify_with_bound
from chainstay.timetable import Transfers
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.verify.cross_check import Answer, MethodUnderTest, NamedFunction, Suite
from chainstay.verify.transfer_instances import random_hybrid


def _search(problem: HybridProblem) -> HybridClaim:
    """Return the optimum, by exhaustive search."""
    problem.require_feasible()
    found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
    if found is None:
        raise SolverLimitError("search says that nothing fits, although something should")
    return HybridClaim(schedule=found.schedule, makespan=found.makespan, lower_bound=found.makespan)


def _fractional_claim(
    schedule_of: Callable[[HybridProblem], Schedule], problem: HybridProblem
) -> HybridClaim:
    """Return a schedule with its makespan for fractional transfers, and no bound."""
    try:
        schedule = schedule_of(problem)
        makespan = fractional_makespan(
            problem.profile, schedule, budget=problem.budget, link=problem.link
        )
    except (InfeasibleBudgetError, InvalidScheduleError) as reason:
        raise SolverLimitError(str(reason)) from reason
    return HybridClaim(
        schedule=schedule, makespan=makespan, lower_bound=0, family=Family.PERSISTENT
    )


def _recompute_only(problem: HybridProblem) -> Schedule:
    return DP()(problem.profile, problem.budget).schedule


def _offload_everything(problem: HybridProblem) -> Schedule:
    moves = [Op(OpKind.OFFLOAD_SAVED, i) for i in range(problem.stages - 1)]
    moves += [Op(OpKind.OFFLOAD_ACTIVATION, 0)]
    return Schedule((*moves, *Schedule.keep_all(problem.stages)))


_integral = partial(MethodUnderTest, transfers=Transfers.INTEGRAL)
_fractional = partial(MethodUnderTest, transfers=Transfers.FRACTIONAL, only=("simple link",))
_CPSAT: Final = IntegerProgramHybrid(CPSAT(time_limit_s=3.0), alone=True)

HYBRID_METHODS: Final = (
    _fractional(method=Pofo(), most_stages=5),
    _fractional(method=Pofo(slots=40), most_stages=20),
    *(
        _fractional(method=NamedFunction(name, partial(_fractional_claim, plan)), most_stages=20)
        for name, plan in (
            ("recompute only", _recompute_only),
            ("offload only", _offload_everything),
        )
    ),
    _integral(method=AutoHybrid(combined=Pofo(tries=60), exact_stages=0), most_stages=5),
    _integral(method=AutoHybrid(combined=Pofo(tries=60), time_limit_s=1.0), most_stages=3, every=3),
    _integral(method=NamedFunction("search", _search), most_stages=2),
    _integral(method=_CPSAT, most_stages=3, every=3, only=("no options",)),
)
"""Quick methods on every instance, exhaustive search and exact ones on samples of the shortest."""


@dataclass(frozen=True)
class HybridSuite(Suite):
    """Chains to recompute and offload, some with options, some with little room on the host."""

    methods: tuple[MethodUnderTest, ...] = HYBRID_METHODS
    noun: ClassVar[str] = "hybrid instances"
    names_least_budget: ClassVar[bool] = False  # where the host has little room, it is not known

    instance = staticmethod(random_hybrid)

    def meets(self, restriction: str, problem: Any) -> bool:
        """Return whether the link is plain, or stages have no options."""
        part = problem.link if restriction == "simple link" else problem.profile
        return bool(part.is_plain)

    def ask(self, tested: MethodUnderTest, problem: Any) -> AnyClaim:
        """Run a method, if anything fits."""
        problem.require_feasible()
        return Suite.ask(self, tested, problem)

    def certify(self, tested: MethodUnderTest, problem: Any, claim: HybridClaim) -> Solution:
        """Return the claim as a solution; a plan of [POFO] takes no less than by parts of items."""
        solution = certify_with_bound(problem, claim, method=tested.name)
        if reason := _fractional_contradiction(problem, solution):
            text = f"{tested.name}: {reason}"
            raise transfer_contradiction_error(text, problem, {tested.name: claim})
        return solution

    def covers(self, other: Answer, one: Answer) -> bool:
        """Return whether both are about the same transfers, and `other` has a bound."""
        return other.claim is not None and one.tested.transfers is other.tested.transfers

    def believed(self, answer: Answer) -> MethodResult:
        """Return what an answer says about all answers to the same problem.

        All fractional answers are persistent, so a bound on such plans is one on all of them.
        """
        claim = answer.claim
        assert isinstance(claim, HybridClaim), "it covers something"
        bound = claim.unrestricted_bound
        if claim.family is not Family.TWICE:
            bound = max(bound, claim.lower_bound)
        return replace(answer.result, claim=replace(claim, lower_bound=bound))


def _fractional_contradiction(problem: HybridProblem, solution: HybridSolution) -> str:
    """Return why a schedule that is a plan of [POFO] is too fast; empty if it is not."""
    if problem.transfers is not Transfers.INTEGRAL or not problem.link.is_plain:
        return ""
    computations = [op for op in solution.schedule if op.kind.is_computation]
    turn = computations.index(Op(OpKind.BACKWARD, problem.stages - 1))
    starts, loss = solution.timetable.starts, problem.profile.stages[-1]
    is_plan = all(
        move.end <= starts[turn]
        if move.op.kind.is_offload
        else move.start >= starts[turn - 1] + loss.forward_time
        for move in solution.timetable.moves
    )
    if not is_plan:
        return ""
    try:
        value = fractional_makespan(
            problem.profile, solution.schedule, budget=problem.budget, link=problem.link
        )
    except InvalidScheduleError:  # no persistent plan
        return ""
    if value > solution.makespan:
        return f"whole transfers take {solution.makespan}, and parts of items {value}"
    return ""
