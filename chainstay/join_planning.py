"""Plans for measured joins: the fastest schedule found whose own peak is within the budget.

As `chainstay.planning` does for chains: solvers are asked about problems between an optimistic
and a pessimistic one, and what they find is judged by what its operations really need. Two
things are arranged before, which the solver leaves open and which change no time:

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
from dataclasses import dataclass, field, replace
from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.execute.liveness import plan_execution
from chainstay.runtime.joins.backward_order import can_change_order
from chainstay.runtime.joins.executor import shape_of
from chainstay.runtime.joins.measured_join import MeasuredJoin
from chainstay.runtime.joins.part_order import same_sum
from chainstay.runtime.joins.staged_join import StagedJoin
from chainstay.schedule import Op, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve.budgets import parse_budget
from chainstay.solve.join import solve_join
from chainstay.validation.join.simulate import simulate_join

__all__ = ["can_run", "peak_of_join", "runnable_orders", "solve_measured_join"]

_ROUNDS: Final = 4
"""Solves of each kind; each halves what is unknown of the best nominal budget."""


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
        measured, parse_budget(budget, lambda: plain_peak), method or DP(), plain_peak
    )
    solution = search.plain() or search.fastest()
    return replace(solution, solve_seconds=time.perf_counter() - start)


def peak_of_join(measured: MeasuredJoin, schedule: Schedule) -> int:
    """The most memory that a schedule of a measured join needs, in bytes."""
    account = measured.account
    overheads = account.overheads(schedule)
    replay = simulate_join(account.bare(), schedule, keep=account.keep, overheads=overheads)
    return replay.peak_bytes


@dataclass(slots=True)
class _JoinSearch:
    """The state of a search for a plan of a join.

    Attributes:
        measured: The join.
        budget: The real one, in bytes.
        method: The method of solving.
        plain_peak: The peak of plain training in bytes; that can always be run.
        best: The fastest plan so far that fits.
        bound: The optimum of the optimistic problem, once that is known.
        least: The smallest peak of a schedule that can be run.
    """

    measured: MeasuredJoin
    budget: int
    method: DP
    plain_peak: int
    best: Solution | None = None
    bound: Solution | None = None
    least: int = field(init=False)
    optimistic: JoinProfile = field(init=False)
    pessimistic: JoinProfile = field(init=False)

    def __post_init__(self) -> None:
        self.least = self.plain_peak
        self.optimistic = self.measured.account.optimistic()
        self.pessimistic = self.measured.account.pessimistic()

    def plain(self) -> Solution | None:
        """Plain training, if it fits; nothing is faster."""
        if self.least > self.budget:
            return None
        return Solution(
            schedule=keep_all_join(self.optimistic),
            makespan=self.optimistic.least_time,
            peak_bytes=self.least,
            budget=self.budget,
            lower_bound=self.optimistic.least_time,
            unrestricted_bound=self.optimistic.least_time,
            family=Family.ALL,
            method=str(self.method),
            solve_seconds=0.0,
        )

    def fastest(self) -> Solution:
        """Return the fastest plan that fits, found as the module's text says."""
        relief = self.measured.account.relief
        self.bound = self._ask(self.optimistic, self.budget + relief)[0]
        self._correct()
        margin = _margin(self.optimistic, self.pessimistic)
        self._bisect(self.pessimistic, self.budget, self.budget + margin + relief)
        self._bisect(self.optimistic, self.budget - margin, self.budget)
        self._repeat()
        if self.best is None:
            self._smallest()
        if self.best is None:
            raise InfeasibleBudgetError(
                budget=self.budget,
                required=self.least,
                stages=self.optimistic.stages,
                family="known",
                network="join",
            )
        bound = 0 if self.bound is None else self.bound.lower_bound
        least = self.optimistic.least_time
        if bound > self.best.makespan:
            return replace(self.best, lower_bound=least, unrestricted_bound=least)
        return replace(self.best, lower_bound=max(bound, least), unrestricted_bound=least)

    def _bisect(self, profile: JoinProfile, low: int, high: int) -> None:
        """Look for the largest nominal budget from `low` to `high` whose schedule fits."""
        nominal = low
        for _ in range(_ROUNDS):
            if self._is_proved:
                return
            solution, fits = self._ask(profile, nominal) if nominal > 0 else (None, False)
            if solution is None or fits:
                low = nominal
            else:
                high = nominal
            nominal = (low + high + 1) // 2
            if nominal in (low, high):
                return

    def _repeat(self) -> None:
        """Solve for what the best plan's operations need, while that helps."""
        for _ in range(_ROUNDS):
            before = self.best
            if before is None or self._is_proved:
                return
            self._ask(self.measured.account.profile_for(before.schedule), self.budget)
            if self.best is before:
                return

    @property
    def _is_proved(self) -> bool:
        """Whether nothing faster can be found."""
        if self.best is None or self.bound is None:
            return False
        return self.best.makespan <= self.bound.lower_bound

    def _correct(self) -> None:
        """Add to the optimistic problem what its own optimum needs in truth, and solve again."""
        profile = self.optimistic
        for _ in range(_ROUNDS):
            solution, fits = self._ask(profile, self.budget)
            if solution is None or fits:
                return
            dearer = self._dearer(profile, solution)
            if dearer == profile:
                return
            profile = dearer

    def _smallest(self) -> None:
        """Try schedules of small peaks, all times taken as equal.

        They depend neither on the budget nor on times, which differ whenever they are measured:
        with the least peak that a call tells of, the next one succeeds.
        """
        self.least = self.plain_peak
        for is_sound in (True, False):
            profile = self.pessimistic if is_sound else self.optimistic
            for _ in range(_ROUNDS):
                solution = self._least(profile)
                self._offer(solution)
                own = self.measured.account.profile_for(solution.schedule)
                following = own if is_sound else self._dearer(profile, solution)
                if following == profile:
                    break
                profile = following

    def _least(self, profile: JoinProfile) -> Solution:
        """The schedule of the smallest peak of that problem."""
        keep, even = self.measured.account.keep, _evenly_timed(profile)
        try:
            return solve_join(even, 1, self.method, keep=keep)
        except InfeasibleBudgetError as error:
            return solve_join(even, error.required, self.method, keep=keep)

    def _dearer(self, profile: JoinProfile, solution: Solution) -> JoinProfile:
        """`profile` with the overheads that the schedule has, where these are larger."""
        own = self.measured.account.profile_for(solution.schedule)
        return _larger(profile, own)

    def _ask(self, profile: JoinProfile, nominal: int) -> tuple[Solution | None, bool]:
        """The solution of that problem, if it has one, and whether it really fits."""
        try:
            solution = solve_join(profile, nominal, self.method, keep=self.measured.account.keep)
        except InfeasibleBudgetError:
            return None, False
        return solution, self._offer(solution)

    def _offer(self, solution: Solution) -> bool:
        """Whether `solution` really fits in some order; it is kept if it is the fastest."""
        fits = False
        for schedule in runnable_orders(self.measured, solution.schedule):
            peak = peak_of_join(self.measured, schedule)
            self.least = min(self.least, peak)
            if peak <= self.budget:
                fits = True
                account = self.measured.account
                own = account.profile_for(schedule)
                makespan = simulate_join(own, schedule, keep=account.keep).makespan
                if self.best is None or makespan < self.best.makespan:
                    self.best = replace(
                        solution,
                        schedule=schedule,
                        makespan=makespan,
                        peak_bytes=peak,
                        budget=self.budget,
                        lower_bound=0,
                        unrestricted_bound=0,
                    )
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


def _evenly_timed(profile: JoinProfile) -> JoinProfile:
    def evenly(chain: ChainProfile) -> ChainProfile:
        stages = (replace(each, forward_time=1, backward_time=1) for each in chain.stages)
        return replace(chain, stages=tuple(stages))

    return replace(
        profile, branches=tuple(map(evenly, profile.branches)), tail=evenly(profile.closing)
    )


def _larger(one: JoinProfile, other: JoinProfile) -> JoinProfile:
    """The larger overheads of both, which differ in nothing else."""

    def chain(mine: ChainProfile, theirs: ChainProfile) -> ChainProfile:
        stages = (
            replace(
                each,
                forward_overhead_bytes=max(
                    each.forward_overhead_bytes, there.forward_overhead_bytes
                ),
                backward_overhead_bytes=max(
                    each.backward_overhead_bytes, there.backward_overhead_bytes
                ),
            )
            for each, there in zip(mine.stages, theirs.stages, strict=True)
        )
        return replace(mine, stages=tuple(stages))

    branches = tuple(map(chain, one.branches, other.branches))
    return replace(one, branches=branches, tail=chain(one.closing, other.closing))


def _margin(one: JoinProfile, other: JoinProfile) -> int:
    """The most by which an overhead of `other` exceeds that of `one`."""
    pairs = zip(
        (stage for chain in (*one.branches, one.closing) for stage in chain.stages),
        (stage for chain in (*other.branches, other.closing) for stage in chain.stages),
        strict=True,
    )
    return max(
        max(
            theirs.forward_overhead_bytes - mine.forward_overhead_bytes,
            theirs.backward_overhead_bytes - mine.backward_overhead_bytes,
        )
        for mine, theirs in pairs
    )
