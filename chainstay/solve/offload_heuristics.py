"""Good schedules fast: the activation sets of every rule, run by ordered no-wait."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, combinations
from operator import itemgetter
from typing import Final

from chainstay.baselines.offload import (
    OrderedNoWait,
    autoswap_sets,
    best_ordered,
    first_sets,
    host_fitting_sets,
    tflms,
    vdnn_sets,
)
from chainstay.dp.offload import fractional_optimum, promising_sets
from chainstay.errors import InvalidProfileError, SolverLimitError
from chainstay.problems.offload import OffloadClaim, OffloadProblem
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.timetable import Time, Transfers
from chainstay.validation.offload.simulate import simulate_offload

_TRIES: Final = 200_000
"""Sets that the local search tries, times stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heuristics:
    """The best of Greedy, Algorithm 1, vDNN, AutoSwap-like and TFLMS-like, then improved.

    The activations that each would move go through ordered no-wait; the best set is improved
    by moving one more, one less or another one, until that helps no more.

    Attributes:
        exhaustive_up_to: Number of movable activations up to which all sets are tried instead.

    Example:
        >>> str(Heuristics())
        'heuristics'
    """

    exhaustive_up_to: int = 8

    def __str__(self) -> str:
        return "heuristics" if self.exhaustive_up_to else "heuristics (rules only)"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the best schedule found, for integral transfers.

        Returns:
            A schedule, and as the bound that of moving parts of activations.

        Raises:
            InfeasibleBudgetError: Not one stage at a time fits.
            SolverLimitError: No set that the host has room for leaves enough memory.
            InvalidProfileError: Other transfers.
        """
        if problem.transfers is not Transfers.INTEGRAL:
            raise InvalidProfileError(
                f"heuristics are for integral transfers, not {problem.transfers} ones; use "
                "method='auto'"
            )
        problem.require_feasible()
        ordered, bound = OrderedNoWait.from_problem(problem), fractional_optimum(problem)
        simulate = partial(
            simulate_offload, problem.profile, budget=problem.budget, link=problem.link
        )
        schedules = self._schedules(ordered, bound)
        timed = ((simulate(schedule).makespan, schedule) for schedule in schedules)
        makespan, schedule = min(timed, key=itemgetter(0))
        return OffloadClaim(
            schedule=schedule, makespan=makespan, lower_bound=bound, family=Family.ALL
        )

    def _schedules(self, ordered: OrderedNoWait, bound: Time) -> Iterator[Schedule]:
        """Yield the best schedule by sets, and the best TFLMS-like one, if any of those fits."""
        problem, movable = ordered.problem, ordered.movable
        # All older activations away is what a feasible budget means.
        sets: Iterator[frozenset[int]] = iter([frozenset(movable)])
        if len(movable) <= self.exhaustive_up_to:
            by_size = (combinations(movable, size) for size in range(len(movable) + 1))
            sets = chain(sets, map(frozenset, chain.from_iterable(by_size)))
        else:
            fluid = replace(problem, link=replace(problem.link, latency=0, capacity=None))
            fluid = replace(fluid, transfers=Transfers.INTERRUPTIBLE)
            sets = chain(
                sets,
                promising_sets(fluid),
                first_sets(ordered),
                vdnn_sets(ordered),
                autoswap_sets(ordered),
                host_fitting_sets(ordered),
            )
        best = best_ordered(ordered, sets)
        if best is None:
            raise SolverLimitError(
                f"{self} found no activations that {problem.link.capacity} bytes of host memory "
                "have room for, and that leave enough memory; raise host_budget, or budget"
            )
        ticks, chosen = best
        least = bound * problem.link.ticks
        if len(movable) > self.exhaustive_up_to and ticks > least:
            ticks, chosen = _improved(ordered, ticks, chosen, _TRIES // len(problem.profile))
        plan = ordered.plan(chosen)
        assert plan is not None, "it has a makespan"
        yield plan.schedule
        if ticks > least and (other := tflms(ordered)) is not None:
            yield other.schedule


def _improved(
    ordered: OrderedNoWait, ticks: int, chosen: frozenset[int], tries: int
) -> tuple[int, frozenset[int]]:
    """Return a local optimum near `chosen`, or what was found after so many `tries`."""
    is_better = True
    while is_better:
        is_better = False
        for other in _neighbours(ordered, chosen):
            tries -= 1
            found = ordered.makespan_ticks(other)
            if found is not None and found < ticks:
                ticks, chosen, is_better = found, other, True
                break
            if tries <= 0:
                return ticks, chosen
    return ticks, chosen


def _neighbours(ordered: OrderedNoWait, chosen: frozenset[int]) -> Iterator[frozenset[int]]:
    """Yield sets with one activation less, one more, one exchanged for one of the nearest."""
    for j in sorted(chosen):
        yield chosen - {j}
    others = [j for j in ordered.movable if j not in chosen]
    for j in others:
        yield chosen | {j}
    for j in sorted(chosen):
        for other in sorted(others, key=lambda other: abs(other - j))[:4]:
            yield chosen - {j} | {other}
