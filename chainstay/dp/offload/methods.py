"""Greedy and Algorithm 1 as methods: claims with times and bounds."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from chainstay.dp.method import DP
from chainstay.dp.offload.fluid import fluid_plan, greedy_amounts
from chainstay.dp.offload.slots import subsets_on_slots
from chainstay.dp.offload.subsets import best_subset
from chainstay.errors import InvalidProfileError
from chainstay.problems.offload import OffloadClaim, OffloadProblem
from chainstay.problems.ordered_no_wait import OrderedPlan
from chainstay.solution import Family
from chainstay.timetable import Time, Transfers, exact

_ANSWERS: Final = 32
"""How many sets the program on slots returns to `promising_sets`."""


@dataclass(frozen=True, slots=True)
class Greedy:
    """The optimum when a part of an activation may stay: [BES20], Greedy.

    From the first activation on, offload exactly what the peak has above the budget.

    Example:
        >>> str(Greedy())
        'greedy'
    """

    def __str__(self) -> str:
        return "greedy"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the optimum for fractional transfers; see `OffloadMethod`.

        Raises:
            InfeasibleBudgetError: Not one stage at a time fits.
            InvalidProfileError: Other transfers, or a link with latency or two directions.
        """
        if problem.transfers is not Transfers.FRACTIONAL:
            raise InvalidProfileError(
                f"greedy moves parts of activations, and transfers are {problem.transfers}; use "
                "transfers='fractional', or method='auto'"
            )
        plan = _greedy_plan(problem)
        return _claim(plan, plan.makespan, Family.ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm1:
    """Whole activations, interruptible transfers: [BES20], Algorithm 1, corrected.

    Attributes:
        slots: ``None`` is exact. A number treats states alike that differ by less than that
            part of the peak: a plan that fits, and the fractional optimum as the bound.

    Raises:
        UnknownMethodError: `slots` is neither None nor positive.

    Example:
        >>> str(Algorithm1(slots=500))
        'dp, 500 slots'
    """

    slots: int | None = None

    def __post_init__(self) -> None:
        DP(slots=self.slots)  # refuses what is no number of slots

    def __str__(self) -> str:
        return "dp" if self.slots is None else f"dp, {self.slots} slots"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the best plan for interruptible transfers; see `OffloadMethod`.

        Returns:
            The best plan whose offloads all precede all prefetches, and a bound: from the
            program itself, or that not even parts of activations are faster.

        Raises:
            InfeasibleBudgetError: Not one stage at a time fits.
            InvalidProfileError: Other transfers, or a link with latency or two directions.
            SolverLimitError: Too many states without slots.
        """
        if problem.transfers is not Transfers.INTERRUPTIBLE:
            raise InvalidProfileError(
                f"Algorithm 1 is about interruptible transfers, not {problem.transfers} ones; use "
                "transfers='interruptible', or method='auto'"
            )
        problem.require_feasible()
        bound = fractional_optimum(problem)
        plan = _plan(problem, greedy_set(problem))
        if plan.makespan == bound:
            return _claim(plan, bound, Family.ALL)
        idle = _idle_ticks(problem, plan.makespan)
        if self.slots is None:
            best = best_subset(problem, below=idle)
            if best is not None:
                plan = _plan(problem, best.chosen)
                expected = problem.profile.least_time + Fraction(best.idle, problem.link.ticks)
                plan = plan._replace(makespan=exact(expected))
            is_tight = plan.makespan == bound
            return _claim(plan, plan.makespan, Family.ALL if is_tight else Family.OFFLOAD_FIRST)
        for chosen in subsets_on_slots(problem, self.slots, below=float(idle)):
            plan = min(plan, _plan(problem, chosen), key=lambda plan: plan.makespan)
        return _claim(plan, bound, Family.ALL)


def greedy_set(problem: OffloadProblem) -> frozenset[int]:
    """Return the activations that Greedy moves, to be moved whole."""
    return frozenset(j for j, amount in enumerate(greedy_amounts(problem)) if amount)


def fractional_optimum(problem: OffloadProblem) -> Time:
    """Return a time that no plan is below, whatever its transfers.

    It is exact for fractional transfers over links that are their own `Link.relaxed`.

    Raises:
        InfeasibleBudgetError: Not one stage at a time fits.
    """
    return _greedy_plan(replace(problem, link=problem.link.relaxed)).makespan


def _greedy_plan(problem: OffloadProblem) -> OrderedPlan:
    problem.require_feasible()
    plan = fluid_plan(problem, greedy_amounts(problem))
    assert plan is not None, "what is feasible is feasible with the oldest activations away"
    return plan


def promising_sets(problem: OffloadProblem, slots: int = 500) -> list[frozenset[int]]:
    """Return sets of activations that Greedy and Algorithm 1 would move, for other models."""
    problem = replace(problem, link=problem.link.relaxed)
    greedy = greedy_set(problem)
    idle = _idle_ticks(problem, _plan(problem, greedy).makespan)
    found = subsets_on_slots(problem, slots, below=float(idle) + 1, answers=_ANSWERS)
    return [greedy, *found]


def _plan(problem: OffloadProblem, chosen: Collection[int]) -> OrderedPlan:
    """Return the plan that moves the `chosen` activations whole."""
    sizes = problem.profile.activations[:-1]
    plan = fluid_plan(problem, [size * (j in chosen) for j, size in enumerate(sizes)])
    assert plan is not None, "programs choose sets that leave enough memory"
    return plan


def _idle_ticks(problem: OffloadProblem, makespan: Time) -> int:
    """Return the ticks of a makespan in which no computation runs."""
    return int((makespan - problem.profile.least_time) * problem.link.ticks)


def _claim(plan: OrderedPlan, lower_bound: Time, family: Family) -> OffloadClaim:
    """Return a plan as a claim."""
    return OffloadClaim(
        schedule=plan.schedule,
        makespan=plan.makespan,
        lower_bound=lower_bound,
        family=family,
        timetable=plan.timetable,
    )
