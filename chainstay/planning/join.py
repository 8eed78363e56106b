"""Plans for measured joins: the fastest schedule found whose own peak is within the budget.

The dynamic program solves for what each kind of run costs, half-summed gradients included. Two
things depend on the whole schedule, and no profile can tell them before there is one: environments
saved for runs again, and the turns that branches take. The solver leaves these open:

- *The way to the join.* Stages run first in the order of plain training, so that random
  numbers and buffers are as there. The solver may send branches forward in turns.
- *The way back.* Each branch's part of the backward phase stays as it is; branches take turns
  as the solver says, or go back one after another as in plain training. The first is taken
  only where no gradient is summed in another order, and where autograd can be told.

None of these changes the time. So the optimum under what every schedule needs bounds all canonical
ones, and is the plan if it fits as it runs. Otherwise the budget is lowered by what it lacks, and
then the question is asked again with what stands beside the runs of a schedule that is known. Where
sizes are rounded, as in large joins, what a schedule leaves of the budget is added to it. As one
question of a large join takes seconds, no other is asked after some.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.dp import DP
from chainstay.dp.join import least_join
from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError
from chainstay.profiles import JoinProfile
from chainstay.runtime.execute.liveness import plan_execution
from chainstay.runtime.joins.account import JoinAccount
from chainstay.runtime.joins.measured_join import MeasuredJoin
from chainstay.runtime.joins.part_order import same_sum
from chainstay.runtime.joins.staged_join import StagedJoin
from chainstay.runtime.measures.stage_cost import OptionCost
from chainstay.schedule import Discards, Op, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve.budgets import Budget, parse_budget
from chainstay.solve.join import solve_join
from chainstay.validation.join.simulate import simulate_join

_ROUNDS: Final = 4
"""Solves with other budgets under one profile, and profiles of known schedules."""
_CLOSE: Final = 1.002
"""A schedule that is so close to the bound on all of them is not improved any more."""
_PATIENCE_S: Final = 5.0
"""Seconds after which no question is asked any more."""
_TOO_LARGE: Final = 2**47
"""More bytes than any machine has; half of what a profile may have."""


def solve_measured_join(measured: MeasuredJoin, budget: Budget) -> Solution:
    """Return the fastest schedule found of a measured join whose own peak is within the budget.

    Plain training, if that fits.

    Args:
        measured: What the join costs, see `chainstay.runtime.joins.measured_join`.
        budget: Bytes as for `chainstay.solve_join`; a percentage is of what plain training
            needs.

    Returns:
        The schedule, which the runtime can run; `peak_bytes` is its own, and `lower_bound` that
        of a problem at most as hard as that of any canonical schedule.

    Raises:
        InvalidBudgetError: `budget` is not a positive number of bytes.
        InfeasibleBudgetError: Nothing was found that fits; with ``error.required``, the least
            peak found, something is.
        InvalidProfileError: Too many branches or stages for the dynamic program.

    Complexity:
        One solve of the join where its optimum fits as it runs and sizes are exact; else mostly
        eight, up to 40. None begins after five seconds but the first.
    """
    start = time.perf_counter()
    plain = keep_all_join(measured.account.by_kind())
    plain_peak = peak_of_join(measured, plain)
    search = _JoinSearch(measured, parse_budget(budget, lambda: plain_peak), plain, plain_peak)
    if search.offer(plain) < 0:
        search.run()
    return replace(search.solution(), solve_seconds=time.perf_counter() - start)


def peak_of_join(measured: MeasuredJoin, schedule: Schedule) -> int:
    """Return the most memory that a schedule of a measured join needs, in bytes."""
    account = measured.account
    profile, overheads = account.by_kind(), account.overheads(schedule)
    keep = profile.keeps_input_gradients
    return simulate_join(profile, schedule, keep=keep, overheads=overheads).peak_bytes


@dataclass(slots=True)
class _JoinSearch:
    """The state of a search for a plan of a join.

    Attributes:
        measured: The join.
        budget: The real one, in bytes.
        latest: The schedule that was offered last, as it runs; at first plain training.
        least: The smallest peak of plain training and of schedules that depend on no times.
        bound: Time in ns that no canonical schedule within the budget goes below; 0 if none fits.
        best: The fastest schedule that fits, as it runs, if there is one.
        makespan: Its time in ns.
        peak: Its peak in bytes.
        deadline_s: When the last question may be asked, by the performance counter.
    """

    measured: MeasuredJoin
    budget: int
    latest: Schedule
    least: int
    bound: int | None = None
    best: Schedule | None = None
    makespan: int = 0
    peak: int = 0
    deadline_s: float = field(default_factory=lambda: time.perf_counter() + _PATIENCE_S)

    def run(self) -> None:
        """Look for the fastest schedule."""
        account, plain = self.measured.account, self.latest
        self._approach(account.by_kind(), self.budget + account.relief)
        if self.best is None and not self._is_done:
            self._approach(account.by_kind(plain), self.budget)
        self._refine()
        if self.best is None:
            self._offer_small(account.with_options(_steady(cost.options) for cost in account.costs))
            self._refine()

    def _refine(self) -> None:
        """Ask with what stands beside the runs of the best schedule, or the latest."""
        account = self.measured.account
        for _ in range(_ROUNDS):
            before = self.best
            if not self._is_done:
                self._approach(account.by_kind(self.best or self.latest), self.budget)
            if self.best is before:
                break

    def _offer_small(self, account: JoinAccount) -> None:
        """Offer schedules of small peaks, which depend on no measured times.

        So what an error names is enough when all is measured anew.
        """
        for is_sparing in (False, True):
            profile = account.by_kind()
            for _ in range(_ROUNDS):
                small = least_join(profile, profile.keeps_input_gradients, is_sparing=is_sparing)
                self.least = min(self.least, self.budget - self.offer(small))
                profile = account.by_kind(self.latest)

    @property
    def _is_done(self) -> bool:
        """Whether there is hardly anything to gain, or the time is up."""
        is_close = self.best is not None and self.makespan <= (self.bound or 0) * _CLOSE
        return is_close or time.perf_counter() > self.deadline_s

    def _approach(self, profile: JoinProfile, nominal: int) -> None:
        """Solve for a nominal budget, then for others by what the schedule lacks or leaves."""
        low, high = 0, 2 * nominal
        for _ in range(_ROUNDS):
            try:
                found = solve_join(profile, nominal, keep=profile.keeps_input_gradients)
            except InfeasibleBudgetError:
                bound, left = 0, high - nominal
            else:
                bound, left = int(found.lower_bound), self.offer(found.schedule)
                # What needs no more than the next budget would be found again.
                left = min(left, found.peak_bytes - 1 - nominal) if left < 0 else left
            if self.bound is None:  # of the first question of all
                self.bound = bound
            if left == 0 or self._is_done:
                return
            low, high = (low, nominal) if left < 0 else (nominal, high)
            nominal += left
            if not low < nominal < high:
                nominal = (low + high) // 2

    def offer(self, schedule: Schedule) -> int:
        """Keep a schedule if it fits in an order in which it can be run, and is the fastest.

        Returns:
            What it leaves of the budget, in bytes; less than 0 if it does not fit.
        """
        measured, account = self.measured, self.measured.account
        orders = runnable_orders(measured, schedule)
        peak, schedule = min(
            ((peak_of_join(measured, order), order) for order in orders),
            key=itemgetter(0),
            default=(2 * self.budget, self.latest),
        )
        self.latest = schedule
        profile = account.by_kind()
        keep = profile.keeps_input_gradients
        makespan = int(simulate_join(profile, schedule, keep=keep).makespan)
        if peak <= self.budget and (self.best is None or makespan < self.makespan):
            self.best, self.makespan, self.peak = schedule, makespan, peak
        return self.budget - peak

    def solution(self) -> Solution:
        """Return the best that was found.

        Raises:
            InfeasibleBudgetError: Nothing fits.
        """
        profile = self.measured.account.by_kind()
        if self.best is None:
            raise InfeasibleBudgetError(
                budget=self.budget,
                required=self.least,
                stages=profile.stages,
                family="known",
                network="join",
            )
        least, bound = int(profile.least_time), self.bound or 0
        is_known = least < bound <= self.makespan  # the runtime's turns may be no canonical ones
        return Solution(
            schedule=self.best,
            makespan=self.makespan,
            peak_bytes=self.peak,
            budget=self.budget,
            lower_bound=bound if is_known else least,
            unrestricted_bound=least,
            family=Family.CANONICAL_PERSISTENT if is_known else Family.ALL,
            discards=Discards.TAPE,
            method=str(DP()),
            solve_seconds=0.0,
        )


def _steady(options: tuple[OptionCost, ...]) -> tuple[OptionCost, ...]:
    """Return options of the same numbers, of which only those are of use that no times decide."""
    return tuple(
        option if option.is_steady else replace(option, saved_bytes=_TOO_LARGE)
        for option in options
    )


def runnable_orders(measured: MeasuredJoin, schedule: Schedule) -> Iterator[Schedule]:
    """Yield `schedule` in the orders of branches that the runtime can run.

    They take the same time: branches do the same, in other turns.
    """
    forward = _branch_by_branch(schedule)
    plain = _backward_one_by_one(forward)
    for candidate in dict.fromkeys((forward, plain)):
        if can_run(measured, candidate):
            yield candidate


def can_run(stages: StagedJoin, schedule: Schedule) -> bool:
    """Return whether the runtime can run a schedule in its order of branches, bit for bit."""
    try:
        plan = plan_execution(schedule, stages.shape)
    except InvalidScheduleError:
        return False
    rank = {stage: index for index, stage in enumerate(plan.backward)}
    # Gradients of three or more users are to be summed as in plain training.
    sums = (same_sum(list(uses), sorted(uses, key=rank.__getitem__)) for uses in stages.sums)
    return plan.is_plain_order or all(sums)


def _branch_by_branch(schedule: Schedule) -> Schedule:
    """Return `schedule` with branches one after the other before all of the tail."""
    start = next(index for index, op in enumerate(schedule) if op.branch is None)
    head = sorted(schedule[:start], key=_branch)
    return Schedule((*head, *schedule[start:]))


def _backward_one_by_one(schedule: Schedule) -> Schedule:
    """Return `schedule` with branches one by one, the last first, after all of the tail."""
    end = 1 + max(index for index, op in enumerate(schedule) if op.branch is None)
    rest = sorted(schedule[end:], key=_branch, reverse=True)
    return Schedule((*schedule[:end], *rest))


def _branch(op: Op) -> int:
    assert op.branch is not None, "an operation on a branch"
    return op.branch
