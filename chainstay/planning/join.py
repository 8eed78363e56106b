"""Plans for measured joins: the fastest schedule found whose own peak is within the budget.

See `chainstay.planning.search` for how it is looked for. Two things are arranged before a
schedule is judged, which the solver leaves open and which change no time:

- *The way to the join.* Stages run first in the order of plain training, so that random
  numbers and buffers are as there. The solver may send branches forward in turns.
- *The way back.* Each branch's part of the backward phase stays as it is; branches take turns
  as the solver says, or go back one after another as in plain training. The first is taken
  only where no gradient is summed in another order, and where autograd can be told.

Either may need more memory than what the solver had in mind, so it is simulated again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError
from chainstay.planning.search import (
    Candidate,
    Search,
    evenly_timed,
    overhead_margin,
    with_larger_overheads,
)
from chainstay.profiles import JoinProfile, Stage
from chainstay.runtime.execute.liveness import plan_execution
from chainstay.runtime.joins.backward_order import can_change_order
from chainstay.runtime.joins.executor import shape_of
from chainstay.runtime.joins.measured_join import MeasuredJoin
from chainstay.runtime.joins.part_order import same_sum
from chainstay.runtime.joins.staged_join import StagedJoin
from chainstay.schedule import Op, Schedule
from chainstay.solution import Family, Method, Solution
from chainstay.solve.budgets import parse_budget
from chainstay.solve.join import solve_join
from chainstay.validation.join.simulate import simulate_join

_ROUNDS: Final = 4
"""Solves of each kind; see `Search.rounds`."""


def solve_measured_join(
    measured: MeasuredJoin, budget: int | str, method: DP | None = None
) -> Solution:
    """The fastest schedule found of a measured join whose own peak is within the budget.

    Plain training, if that fits.

    Args:
        measured: What the join costs, see `chainstay.runtime.joins.measured_join`.
        budget: Bytes as for `chainstay.solve_join`; a percentage is of what plain training
            needs.
        method: Settings of the dynamic program.

    Returns:
        The schedule, which the runtime can run; `peak_bytes` is its own, and `lower_bound` that
        of a problem at most as hard as that of any schedule.

    Raises:
        InvalidBudgetError: `budget` is not a positive number of bytes.
        InfeasibleBudgetError: Nothing was found that fits; with ``error.required``, the least
            peak found, something is.
        InvalidProfileError: Too many branches or stages for the dynamic program.

    Complexity:
        About ten solves of the join at most.
    """
    start = time.perf_counter()
    plain_peak = peak_of_join(measured, keep_all_join(measured.account.bare()))
    search = _JoinSearch(
        budget=parse_budget(budget, lambda: plain_peak),
        optimistic=measured.account.optimistic(),
        pessimistic=measured.account.pessimistic(),
        rounds=_ROUNDS,
        least=plain_peak,
        measured=measured,
        method=method or DP(),
        plain_peak=plain_peak,
    )
    solution = search.plain() or search.fastest()
    return replace(solution, solve_seconds=time.perf_counter() - start)


def peak_of_join(measured: MeasuredJoin, schedule: Schedule) -> int:
    """The most memory that a schedule of a measured join needs, in bytes."""
    account = measured.account
    overheads = account.overheads(schedule)
    replay = simulate_join(account.bare(), schedule, keep=account.keep, overheads=overheads)
    return replay.peak_bytes


@dataclass(slots=True, kw_only=True)
class _JoinSearch(Search[JoinProfile]):
    """The state of a search for a plan of a join.

    Attributes:
        measured: The join.
        method: The method of solving.
        plain_peak: The peak of plain training in bytes; that can always be run.
    """

    measured: MeasuredJoin
    method: DP
    plain_peak: int

    def plain(self) -> Solution | None:
        """Plain training, if it fits; nothing is faster."""
        if self.plain_peak > self.budget:
            return None
        return Solution(
            schedule=keep_all_join(self.optimistic),
            makespan=self.optimistic.least_time,
            peak_bytes=self.plain_peak,
            budget=self.budget,
            lower_bound=self.optimistic.least_time,
            unrestricted_bound=self.optimistic.least_time,
            family=Family.ALL,
            method=str(self.method),
            solve_seconds=0.0,
        )

    def fastest(self) -> Solution:
        """Return the fastest plan that fits, found as `chainstay.planning.search` says."""
        relief, method = self.measured.account.relief, self.method
        self.bound = self.ask(self.optimistic, self.budget + relief, method)[0]
        self.correct(method, _ROUNDS)
        margin = overhead_margin(_stages(self.optimistic), _stages(self.pessimistic))
        self.bisect(self.pessimistic, self.budget, self.budget + margin + relief, method)
        self.bisect(self.optimistic, self.budget - margin, self.budget, method)
        self.repeat(method)
        if self.best is None:
            self.least = self.plain_peak
            self.smallest(method)
        if self.best is None:
            raise InfeasibleBudgetError(
                budget=self.budget,
                required=self.least or self.plain_peak,
                stages=self.optimistic.stages,
                family="known",
                network="join",
            )
        bound = 0 if self.bound is None else self.bound.lower_bound
        least = self.optimistic.least_time
        best = self.best.solution
        if bound > best.makespan:
            return replace(best, lower_bound=least, unrestricted_bound=least)
        return replace(best, lower_bound=max(bound, least), unrestricted_bound=least)

    def solve(self, profile: JoinProfile, nominal: int, method: Method) -> Solution:
        """See `Search` and `chainstay.solve_join`."""
        assert isinstance(method, DP), "joins are solved by the dynamic program"
        return solve_join(profile, nominal, method, keep=self.measured.account.keep)

    def own_profile(self, schedule: Schedule) -> JoinProfile:
        """See `Search`."""
        return self.measured.account.profile_for(schedule)

    def without_times(self, profile: JoinProfile) -> JoinProfile:
        """See `Search`."""
        branches = tuple(map(evenly_timed, profile.branches))
        return replace(profile, branches=branches, tail=evenly_timed(profile.closing))

    def dearer(self, profile: JoinProfile, solution: Solution, limit: int) -> JoinProfile:  # noqa: ARG002  # as for chains
        """Return `profile` with the overheads that the schedule has, where these are larger."""
        own = self.own_profile(solution.schedule)
        branches = tuple(map(with_larger_overheads, profile.branches, own.branches))
        tail = with_larger_overheads(profile.closing, own.closing)
        return replace(profile, branches=branches, tail=tail)

    def offer(self, solution: Solution, profile: JoinProfile, nominal: int) -> bool:
        """Whether `solution` really fits in some order; it is kept if it is the fastest."""
        fits = False
        account = self.measured.account
        for schedule in runnable_orders(self.measured, solution.schedule):
            peak = peak_of_join(self.measured, schedule)
            self.least = peak if self.least is None else min(self.least, peak)
            if peak > self.budget:
                continue
            fits = True
            own = account.profile_for(schedule)
            makespan = simulate_join(own, schedule, keep=account.keep).makespan
            if self.best is None or makespan < self.best.solution.makespan:
                real = replace(
                    solution,
                    schedule=schedule,
                    makespan=makespan,
                    peak_bytes=peak,
                    budget=self.budget,
                    lower_bound=0,
                    unrestricted_bound=0,
                )
                self.best = Candidate(real, profile, nominal)
        return fits


def runnable_orders(measured: MeasuredJoin, schedule: Schedule) -> Iterator[Schedule]:
    """`schedule` with the ways to the join and back that the runtime can take.

    They take the same time: branches do the same, in other turns.
    """
    forward = _branch_by_branch(schedule)
    plain = _backward_one_by_one(forward)
    for candidate in dict.fromkeys((forward, plain)):
        if can_run(measured, candidate):
            yield candidate


def can_run(stages: StagedJoin, schedule: Schedule) -> bool:
    """Whether the runtime can take this way to the join and back, bit for bit."""
    try:
        plan = plan_execution(schedule, shape_of(stages))
    except InvalidScheduleError:
        return False
    rank = {stage: index for index, stage in enumerate(plan.backward)}
    return plan.is_plain_order or (can_change_order() and _sums_stay(stages, rank.__getitem__))


def _sums_stay(stages: StagedJoin, rank: Callable[[int], int]) -> bool:
    """Whether gradients of what is used three times or more are summed as in plain training."""
    return all(same_sum(list(uses), sorted(uses, key=rank)) for uses in stages.sums)


def _branch_by_branch(schedule: Schedule) -> Schedule:
    """Everything in front of the tail's first operation, one branch after the other."""
    start = next(index for index, op in enumerate(schedule) if op.branch is None)
    head = sorted(schedule[:start], key=_branch)
    return Schedule((*head, *schedule[start:]))


def _backward_one_by_one(schedule: Schedule) -> Schedule:
    """Everything behind the tail's last operation, the last branch first."""
    end = 1 + max(index for index, op in enumerate(schedule) if op.branch is None)
    rest = sorted(schedule[end:], key=_branch, reverse=True)
    return Schedule((*schedule[:end], *rest))


def _branch(op: Op) -> int:
    assert op.branch is not None, "an operation on a branch"
    return op.branch


def _stages(profile: JoinProfile) -> Iterator[Stage]:
    for chain in (*profile.branches, profile.closing):
        yield from chain.stages
