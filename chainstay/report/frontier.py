"""The trade-off between budget and time around a plan, computed within a few seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from chainstay.dp.method import DP
from chainstay.errors import ChainstayError, InfeasibleBudgetError, InvalidSolutionError
from chainstay.problems import (
    AnyProblem,
    ChainProblem,
    HybridProblem,
    JoinProblem,
    OffloadProblem,
    problem_of,
)
from chainstay.profiles import AnyProfile, ChainProfile
from chainstay.schedule import Discards
from chainstay.solution import Family, Solution
from chainstay.solve import solve_chain, solve_join
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.solve.offload import AutoOffload, solve_offload
from chainstay.timetable import Time

_log = logging.getLogger(__name__)

_CURVED_STAGES: Final = 80
"""Number of stages of the longest chain whose whole curve takes about a second."""
_STEPS: Final = 16
"""Number of steps between the least feasible budget and that of keeping everything."""

_HYBRID: Final = Pofo(slots=40, tries=20)
"""Method for recomputing and offloading together: coarse, several times faster than ``auto``."""
_LIMITED_BY_TIME: Final = ("mip", "cpsat")
"""Methods that take as long as their time limit, and are not used here."""

_Solve = Callable[[int | str], Solution]


@dataclass(frozen=True, slots=True, order=True)
class FrontierPoint:
    """The best plan found at one budget.

    Attributes:
        budget: Bytes (slots for a `HomogeneousJoin`).
        makespan: Makespan of the best plan found, in ns.
        lower_bound: Time in ns that no schedule of the solution's family within `budget` beats.
    """

    budget: int
    makespan: Time
    lower_bound: Time

    @property
    def is_optimal(self) -> bool:
        """True if the makespan is proved to be the least."""
        return self.makespan == self.lower_bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """Least makespans by budget.

    Attributes:
        points: Points by ascending budget; what fits in a budget fits in a larger one, too.
        method: The method that found them, for people.
        is_complete: True if nothing changes between neighbouring points: a whole curve.
    """

    points: tuple[FrontierPoint, ...]
    method: str
    is_complete: bool = False


def frontier_of(
    solution: Solution,
    profile: AnyProfile,
    *,
    seconds: float = 10.0,
    keep: Sequence[bool] | None = None,
) -> Frontier:
    """Solve at more budgets by a fast method of the plan's kind, until time is up.

    Args:
        solution: The plan around which to look.
        profile: The costs that it is a plan of.
        seconds: Time limit; no solve starts that is likely to end later.
        keep: The flags that were given to `solve_join`, for a join.

    Returns:
        The whole curve for chains of up to 80 stages whose plan is persistent; else the least
        feasible budget, that of keeping all, and up to 15 between them, as far as time allows,
        beside the plan itself. Budgets at which the method found nothing are left out.
    """
    problem = problem_of(solution, profile, keep=keep, error=InvalidSolutionError)
    rules = _rules(solution)
    if problem.kind == "chain" and rules == DP() and problem.stages <= _CURVED_STAGES:
        return _whole_curve(problem.chains[0][1])
    method, solve = _solver(problem, rules)
    own = FrontierPoint(solution.budget, solution.makespan, solution.lower_bound)
    points = sorted({own, *_solved(solve, seconds, _expected(solution, problem))})
    return Frontier(points=tuple(points), method=method)


def _rules(solution: Solution) -> DP:
    """Return the dynamic program of the plan's own family, or of a wide one where there is none."""
    discards = Discards.FREE if solution.discards is Discards.FREE else Discards.TABLE1
    weak = solution.family is Family.WEAKLY_PERSISTENT and discards is not Discards.FREE
    return DP(persistence="weak" if weak else "strong", discards=discards)


def _whole_curve(profile: ChainProfile) -> Frontier:
    curve = DP().curve(profile)
    pairs = zip(curve.budgets.tolist(), curve.makespans.tolist(), strict=True)
    return Frontier(
        points=tuple(FrontierPoint(budget, makespan, makespan) for budget, makespan in pairs),
        method="dp: the optimum among persistent schedules, at every budget",
        is_complete=True,
    )


def _solver(problem: AnyProblem, rules: DP) -> tuple[str, _Solve]:
    """Return a fast method of the problem's kind, for people and to be called with a budget."""
    match problem:
        case ChainProblem():
            return str(rules), partial(solve_chain, problem.profile, method=rules)
        case JoinProblem():
            return "dp", partial(solve_join, problem.profile, keep=problem.keep or None)
        case OffloadProblem(profile=profile, link=link, transfers=transfers):
            quick = AutoOffload(exact_stages=0)
            return "auto, without exact solvers", partial(
                solve_offload, profile, link=link, transfers=transfers, method=quick
            )
        case HybridProblem(profile=chain, link=link, transfers=transfers):
            return str(_HYBRID), partial(
                solve_hybrid, chain, link=link, transfers=transfers, method=_HYBRID
            )


def _expected(solution: Solution, problem: AnyProblem) -> float:
    """Return the seconds that a solve by our methods is likely to take, given the plan's own."""
    if problem.kind == "offload" or solution.method.startswith(_LIMITED_BY_TIME):
        return 0.0
    return solution.solve_seconds / (4 if problem.kind == "hybrid" else 1)


def _solved(solve: _Solve, seconds: float, expected: float) -> Iterator[FrontierPoint]:
    """Yield points: keeping all, the least budget, then ever finer steps, until time is up."""
    attempt = _TimedSolver(solve, time.monotonic() + seconds, expected)
    most = attempt("100%")
    least = attempt.least_budget()
    found = [most]
    if most is not None and least is not None and least < most.budget:
        found.append(attempt(least))
        found += (attempt(budget) for budget in _between(least, most.budget))
    yield from filter(None, found)


def _between(least: int, most: int) -> Iterator[int]:
    step = _STEPS
    while step > 1:
        for number in range(step // 2, _STEPS, step):
            yield least + (most - least) * number // _STEPS
        step //= 2


@dataclass(slots=True)
class _TimedSolver:
    """A solver that does not start if a solve as long as the last would end after `deadline`.

    The last, not the longest: the first one pays for what is loaded and compiled.
    """

    solve: _Solve
    deadline: float
    last: float

    def __call__(self, budget: int | str) -> FrontierPoint | None:
        """Return the point of `budget`; None where nothing is found, or in time."""
        start = time.monotonic()
        if start + self.last > self.deadline:
            return None
        try:
            found = self.solve(budget)
        except ChainstayError as reason:
            _log.info("no plan at a budget of %s: %s", budget, reason)
            return None
        finally:
            self.last = time.monotonic() - start
        return FrontierPoint(found.budget, found.makespan, found.lower_bound)

    def least_budget(self) -> int | None:
        """Return the least feasible budget, as the error for a budget of 1 names it."""
        if time.monotonic() + self.last > self.deadline:
            return None
        try:
            self.solve(1)
        except InfeasibleBudgetError as infeasible:
            return infeasible.required
        except ChainstayError as reason:
            _log.info("no least budget: %s", reason)
        return None
