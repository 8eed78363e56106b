"""The method "dp" for recomputation with offloading: [POFO]'s plans, made whole and improved."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from chainstay.dp import DP
from chainstay.dp.hybrid import Amounts, ExactHybrid, SlotPlan, bracket, good_plans
from chainstay.dp.jit import is_available
from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError, SolverLimitError
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.problems.offload import transfer_contradiction_error
from chainstay.profiles import Link
from chainstay.schedule import Discards, OpKind, Schedule
from chainstay.solution import Family
from chainstay.solve.least_memory import least_memory_program
from chainstay.solve.whole_transfers import WholeTransferSearch
from chainstay.timetable import Time, TimedSchedule, Transfers, exact
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan

_log = logging.getLogger(__name__)

_SHORT: Final = 6
"""Stages up to which POFO without slots has few states."""
_ROUNDING: Final = Fraction(1, 5000)
"""Relative error of a bound on slots: the search ends a ten thousandth above the best plan."""
_INTERPRETED_SLOTS: Final = 16
"""Slots where loops are not compiled."""
_SLOWER_LINKS: Final = 6
"""Number of slower links that are tried where memory behind the link is limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pofo:
    """[POFO] with its correction, and whole transfers from its plans.

    Attributes:
        slots: ``None``: exact for chains of up to 6 stages, else 100 slots (16 without numba).
        tries: Schedules simulated to improve each plan for whole transfers.
        finds_bound: Whether to compute a lower bound, too, which takes half the time.

    Raises:
        UnknownMethodError: `slots` is neither None nor a positive number.

    Example:
        >>> str(Pofo(slots=50))
        'dp, 50 slots'
    """

    slots: int | None = None
    tries: int = 300
    finds_bound: bool = True

    def __post_init__(self) -> None:
        DP(slots=self.slots)  # refuses what is no number of slots

    def __str__(self) -> str:
        return "dp" if self.slots is None else f"dp, {self.slots} slots"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return the best schedule found, with bounds on persistent plans.

        Raises:
            SolverLimitError: Nothing was found that fits; there may be something.
        """
        plans, bound = self.plans(problem)
        if (recomputing := recompute_only_schedule(problem)) is not None:
            plans.append(SlotPlan(recomputing.ops, frozenset()))
        schedules = [_with_moves(plan) for plan in plans]
        integral: TimedSchedule | None = None
        if problem.transfers is Transfers.INTEGRAL:
            candidates = [
                WholeTransferSearch(problem, plan.ops, self.tries).best(plan.moved)
                for plan in plans
            ]
            integral = min(filter(None, candidates), default=None, key=lambda t: t.makespan)
            schedules += [] if integral is None else [integral.schedule]
        valued = [
            (value, schedule)
            for schedule in schedules
            if (value := _fractional_value(problem, schedule)) is not None
        ]
        if integral is None and problem.transfers is Transfers.INTEGRAL:
            integral = least_memory_program(problem)
        if not valued:
            if integral is None:
                raise nothing_found_error(problem)
            return unproved_claim(integral, problem)
        value, schedule = min(valued, key=lambda pair: pair[0])
        least = _clamped_bound(bound, value)
        fractional = HybridClaim(
            schedule=schedule,
            makespan=value,
            lower_bound=least,
            family=Family.PERSISTENT,
            fractional_makespan=value,
            fractional_bound=least,
        )
        if value < least:
            reason = f"{self}: no persistent plan takes less than {bound}, yet one takes {value}"
            raise transfer_contradiction_error(reason, problem, {str(self): fractional})
        if problem.transfers is Transfers.FRACTIONAL:
            return fractional
        if integral is None:
            raise nothing_found_error(problem)
        whole = unproved_claim(integral, problem)
        return replace(whole, fractional_makespan=value, fractional_bound=least)

    def plans(self, problem: HybridProblem) -> tuple[list[SlotPlan], Time]:
        """Return persistent plans and a lower bound on all of them, over a link without latency.

        [POFO] knows no limit on what is away. Where there is one, a slower link has the same
        effect: plans are made for slower ones, until what they move just has room.
        """
        plans, bound = self._plans(problem, problem.link.relaxed)
        plans += self._with_room(problem, problem.link, plans)
        return plans, bound

    def _with_room(
        self, problem: HybridProblem, link: Link, plans: list[SlotPlan]
    ) -> list[SlotPlan]:
        """Return plans for slower links, unless some of `plans` has room already."""
        room = link.room
        has_room = any(plan.moved and _moved_bytes(problem, plan) <= room for plan in plans)
        if has_room or math.isinf(room):
            return []
        found: list[SlotPlan] = []
        slow, fast = Fraction(0), Fraction(link.relaxed.bandwidth)
        for _ in range(_SLOWER_LINKS if room else 0):
            middle = (slow + fast) / 2
            slower = self._plans(problem, Link(bandwidth=middle))[0]
            if any(_moved_bytes(problem, plan) <= room for plan in slower):
                slow = middle
            else:
                fast = middle
            found += slower
        return found

    def _plans(self, problem: HybridProblem, link: Link) -> tuple[list[SlotPlan], Time]:
        profile = problem.profile
        if self.slots is None and len(profile) <= _SHORT:
            amounts = Amounts.from_chain(profile, problem.budget, link)
            plan = ExactHybrid.solve(amounts)
            if plan is None:
                return [], 0
            return [SlotPlan(plan.ops, plan.moved)], exact(plan.cost * amounts.time_unit)
        slots = self.slots or (100 if is_available() else _INTERPRETED_SLOTS)
        if not self.finds_bound:
            plans = good_plans(profile, problem.budget, link, slots)
            return plans[::-1], profile.least_time
        plans, bound = bracket(profile, problem.budget, link, slots)
        return plans[::-1], max(profile.least_time, exact(bound))


def unproved_claim(timed: TimedSchedule, problem: HybridProblem) -> HybridClaim:
    """Return a schedule as a claim whose only bound is the sum of all times."""
    return HybridClaim(
        schedule=timed.schedule,
        makespan=timed.makespan,
        lower_bound=problem.profile.least_time,
        family=Family.ALL,
    )


def _clamped_bound(bound: Time, value: Time) -> Time:
    """Return `bound`, lowered to `value` if it is above it by no more than float rounding."""
    return min(bound, value) if bound - value <= value * _ROUNDING else bound


def nothing_found_error(problem: HybridProblem) -> SolverLimitError:
    """Return the error for a problem without an answer that is not proved to have none."""
    is_integral = problem.transfers is Transfers.INTEGRAL
    other = "method='cpsat' if the chain is short" if is_integral else "transfers='integral'"
    return SolverLimitError(
        f"no plan of this {len(problem.profile)}-stage chain was found that fits in "
        f"{problem.budget} bytes, which does not prove that there is none; raise the budget a "
        f"little, or try {other}"
    )


def _moved_bytes(problem: HybridProblem, plan: SlotPlan) -> int:
    profile = problem.profile
    # What a plan moves is saved before the turn, so by the first of a stage's forwards that save.
    forwards = (op for op in reversed(plan.ops) if op.kind is OpKind.FORWARD_KEEP_ALL)
    chosen = {op.stage: op.option for op in forwards}
    return sum(
        profile.activation_bytes(i)
        if kind == "a"
        else profile.stages[i].all_options[chosen[i]].saved_bytes
        for kind, i in plan.moved
    )


def _with_moves(plan: SlotPlan) -> Schedule:
    """Return a plan as a schedule: its offloads first, then its computations."""
    moves = (item.offload for item in sorted(plan.moved))
    return Schedule((*moves, *plan.ops))


def _fractional_value(problem: HybridProblem, schedule: Schedule) -> Time | None:
    """Return the makespan of a plan if parts of items may move; None if it does not fit."""
    try:
        return fractional_makespan(
            problem.profile, schedule, budget=problem.budget, link=problem.link.relaxed
        )
    except InvalidScheduleError as reason:
        _log.debug("the plan of rounded sizes does not fit: %s", reason)
        return None


def recompute_only_schedule(
    problem: HybridProblem, discards: Discards = Discards.TABLE1
) -> Schedule | None:
    """Return the persistent optimum without transfers under these rules, if it fits."""
    try:
        return DP(discards=discards)(problem.profile, problem.budget).schedule
    except InfeasibleBudgetError:
        return None
