"""[POFO] as a method: persistent plans, and whole transfers from them, improved."""

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
from chainstay.hybrid import HybridClaim, HybridProblem
from chainstay.offloading import contradiction
from chainstay.profiles import Link
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family
from chainstay.solve.hybrid_whole import Program, WholeTransfers
from chainstay.timetable import Time, Transfers, exact
from chainstay.validation.hybrid_fluid import fractional_makespan

__all__ = ["Pofo", "claim_of", "nothing_found", "recomputing_only", "relaxed"]

_log = logging.getLogger(__name__)

_SHORT: Final = 6
"""Stages up to which POFO without slots has few states."""
_ROUNDING: Final = Fraction(1, 5000)
"""Of a bound on slots, whose search ends a ten thousandth above the best plan."""
_INTERPRETED_SLOTS: Final = 16
"""As many as loops that are not compiled can take."""
_SLOWER_LINKS: Final = 6
"""Tried where memory behind the link is limited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pofo:
    """[POFO] with its correction, and whole transfers from its plans.

    Attributes:
        slots: ``None``: exact for chains of up to 6 stages, else 100 slots (16 without numba).
        tries: Program lists looked at to improve each plan for whole transfers.
        proves: Whether to look for a bound, too, which takes half the time.

    Raises:
        UnknownMethodError: `slots` is neither None nor a positive number.

    Example:
        >>> str(Pofo(slots=50))
        'dp, 50 slots'
    """

    slots: int | None = None
    tries: int = 300
    proves: bool = True

    def __post_init__(self) -> None:
        DP(slots=self.slots)  # refuses what is no number of slots

    def __str__(self) -> str:
        return "dp" if self.slots is None else f"dp, {self.slots} slots"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """As `HybridMethod`.

        Raises:
            SolverLimitError: No persistent plan was found that fits; there may be one.
        """
        plans, bound = self.plans(problem)
        if (recomputing := recomputing_only(problem)) is not None:
            plans.append(SlotPlan(recomputing.ops, frozenset()))
        schedules = [_with_moves(plan) for plan in plans]
        program: Program | None = None
        if problem.transfers is Transfers.INTEGRAL:
            programs = [
                WholeTransfers(problem, plan.ops, self.tries).best(plan.moved) for plan in plans
            ]
            program = min(filter(None, programs), default=None, key=lambda each: each.makespan)
            schedules += [] if program is None else [program.schedule]
        valued = [
            (value, schedule)
            for schedule in schedules
            if (value := _value(problem, schedule)) is not None
        ]
        if not valued:
            raise nothing_found(problem)
        value, schedule = min(valued, key=lambda pair: pair[0])
        fractional = HybridClaim(
            schedule=schedule,
            makespan=value,
            lower_bound=_rounded(bound, value),
            family=Family.PERSISTENT,
            fractional_makespan=value,
            fractional_bound=_rounded(bound, value),
        )
        if value < fractional.lower_bound:
            reason = f"{self}: no persistent plan takes less than {bound}, yet one takes {value}"
            raise contradiction(reason, problem, {str(self): fractional})
        if problem.transfers is Transfers.FRACTIONAL:
            return fractional
        if program is None:
            raise nothing_found(problem)
        return replace(
            claim_of(program, problem),
            fractional_makespan=value,
            fractional_bound=fractional.fractional_bound,
        )

    def plans(self, problem: HybridProblem) -> tuple[list[SlotPlan], Time]:
        """Persistent plans and what none takes less than, over a link without latency.

        [POFO] knows no limit on what is away. Where there is one, a slower link has the same
        effect: plans are made for slower ones, until what they move just has room. Of two
        levels, the first has plans of its own.
        """
        plans, bound = self._plans(problem, relaxed(problem.link))
        plans += self._with_room(problem, problem.link, plans)
        if problem.link.beyond is not None:
            host = replace(problem.link, beyond=None)
            plans += self._plans(problem, relaxed(host))[0]
            plans += self._with_room(problem, host, plans)
        return plans, bound

    def _with_room(
        self, problem: HybridProblem, link: Link, plans: list[SlotPlan]
    ) -> list[SlotPlan]:
        """Plans for slower links, unless some of `plans` has room already."""
        room = _room(link)
        has_room = any(plan.moved and _moved_bytes(problem, plan) <= room for plan in plans)
        if has_room or math.isinf(room):
            return []
        found: list[SlotPlan] = []
        slow, fast = Fraction(0), Fraction(relaxed(link).bandwidth)
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
            amounts = Amounts.of(profile, problem.budget, link)
            plan = ExactHybrid.solve(amounts)
            if plan is None:
                return [], 0
            return [SlotPlan(plan.ops, plan.moved)], exact(plan.cost * amounts.time_unit)
        slots = self.slots or (100 if is_available() else _INTERPRETED_SLOTS)
        if not self.proves:
            plans = good_plans(profile, problem.budget, link, slots)
            return plans[::-1], profile.least_time
        plans, bound = bracket(profile, problem.budget, link, slots)
        return plans[::-1], max(profile.least_time, exact(bound))


def claim_of(program: Program, problem: HybridProblem) -> HybridClaim:
    """A program list that proves nothing but the obvious."""
    return HybridClaim(
        schedule=program.schedule,
        makespan=program.makespan,
        lower_bound=problem.profile.least_time,
        family=Family.ALL,
    )


def _rounded(bound: Time, value: Time) -> Time:
    """`bound`, from which floats may be off a little, but not above the `value` that it is by."""
    return min(bound, value) if bound - value <= value * _ROUNDING else bound


def nothing_found(problem: HybridProblem) -> SolverLimitError:
    """The error of a problem without an answer, of which nobody knows that it has none."""
    return SolverLimitError(
        f"no plan of this {len(problem.profile)}-stage chain was found that fits in "
        f"{problem.budget} bytes, which does not prove that there is none; raise the budget a "
        "little, or try method='cpsat' if the chain is short"
    )


def relaxed(link: Link) -> Link:
    """A half-duplex link without latency or limit that can do at least as much."""
    return Link(
        bandwidth=sum(
            (level.bandwidth * (2 if level.is_full_duplex else 1) for level in link.levels),
            start=Fraction(0),
        )
    )


def _room(link: Link) -> float:
    """Bytes that may be away from the device."""
    limits = [level.capacity for level in link.levels]
    return sum(math.inf if limit is None else limit for limit in limits)


def _moved_bytes(problem: HybridProblem, plan: SlotPlan) -> int:
    profile = problem.profile
    return sum(
        profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes
        for kind, i in plan.moved
    )


def _with_moves(plan: SlotPlan) -> Schedule:
    """A plan in text: computations, with what leaves in front."""
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    moves = (Op(kinds[kind], i) for kind, i in sorted(plan.moved))
    return Schedule((*moves, *plan.ops))


def _value(problem: HybridProblem, schedule: Schedule) -> Time | None:
    """What a plan takes if parts of items may move, if it fits."""
    try:
        return fractional_makespan(
            problem.profile, schedule, budget=problem.budget, link=relaxed(problem.link)
        )
    except InvalidScheduleError as reason:
        _log.debug("rounded too far: %s", reason)
        return None


def recomputing_only(problem: HybridProblem) -> Schedule | None:
    """The persistent optimum without transfers, if it fits."""
    try:
        return DP()(problem.profile, problem.budget).schedule
    except InfeasibleBudgetError:
        return None
