"""The search for the fastest schedule whose own peak is within the budget: chains and joins alike.

What a stage needs besides what it keeps depends on the schedule, and on what of it is done
(`chainstay.runtime.measures.account`), and the solvers want one profile for all. Between them
stands this search. A schedule is judged by the simulator with an overhead for each of its
operations; solvers are asked under profiles between the optimistic one, which has at most these
whatever the schedule, and the pessimistic one, which has at least these:

- The optimum under the optimistic profile bounds every schedule. If its own peak fits, it is
  the optimum.
- Otherwise the overheads of the operations that do not fit are added to the profile, and so on.
- Let d be the most by which an overhead of the pessimistic profile exceeds that of the
  optimistic one. Of any schedule, these two see peaks at most d apart, and its own lies between.
  So budgets up to d above the real one are tried with the pessimistic profile, and budgets up
  to d below it with the optimistic one, by bisection.
- A profile for the best one alone may allow a faster one that runs the same stages again.

Each of these finds the best on some chains. All is bounded by the optimistic optimum, so a
solution says truly how far from optimal it may be; mostly that is a percent or less.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.profiles import ChainProfile, JoinProfile, Stage
from chainstay.schedule import Schedule
from chainstay.solution import Method, Solution

__all__ = ["Candidate", "Search", "evenly_timed", "overhead_margin", "with_larger_overheads"]

P = TypeVar("P", ChainProfile, JoinProfile)

Answer = Solution | InfeasibleBudgetError | SolverLimitError


@dataclass(frozen=True, slots=True)
class Candidate(Generic[P]):
    """A schedule that fits, and the problem that it was the solution of.

    Attributes:
        solution: Its peak and budget are the real ones.
        profile: The profile of that problem.
        nominal: The budget of that problem, in bytes.
    """

    solution: Solution
    profile: P
    nominal: int


@dataclass(slots=True, kw_only=True)
class Search(ABC, Generic[P]):
    """The state of a search for a plan.

    Attributes:
        budget: The real one, in bytes.
        optimistic: The profile that has at most what any schedule's operations need.
        pessimistic: The profile that has at least that.
        rounds: The most solves of each kind; each halves what is unknown of the best nominal
            budget.
        best: The fastest plan so far that fits.
        bound: The optimum under the optimistic profile, once that is known.
        least: The smallest peak of a schedule that can be run.
        limit: What a solver said that ran out of time.
        answers: Answers of solvers by the problem, kept because ways to look for plans meet; a
            user's own method may have no hash.
    """

    budget: int
    optimistic: P
    pessimistic: P
    rounds: int
    best: Candidate[P] | None = None
    bound: Solution | None = None
    least: int | None = None
    limit: SolverLimitError | None = None
    answers: dict[tuple[P, int], list[tuple[Method, Answer]]] = field(default_factory=dict)

    @abstractmethod
    def solve(self, profile: P, nominal: int, method: Method) -> Solution:
        """Return the method's solution of a problem.

        Raises:
            InfeasibleBudgetError: No schedule fits in the budget.
            SolverLimitError: The method ran out of time.
        """

    @abstractmethod
    def offer(self, solution: Solution, profile: P, nominal: int) -> bool:
        """Whether `solution` really fits; it is kept if it is the fastest that does."""

    @abstractmethod
    def own_profile(self, schedule: Schedule) -> P:
        """Return the profile that is sound for `schedule` alone."""

    @abstractmethod
    def dearer(self, profile: P, solution: Solution, limit: int) -> P:
        """Return `profile` with the overheads of operations that need more than `limit` bytes."""

    @abstractmethod
    def without_times(self, profile: P) -> P:
        """Return `profile`, all times being equal."""

    def ask(self, profile: P, nominal: int, method: Method) -> tuple[Solution | None, bool]:
        """The method's solution of that problem, if it has one, and whether it really fits."""
        answer = self._answer(profile, nominal, method)
        if isinstance(answer, Solution):
            return answer, self.offer(answer, profile, nominal)
        if isinstance(answer, SolverLimitError):
            self.limit = answer
        return None, False

    def correct(self, method: Method, rounds: int) -> None:
        """Add to the optimistic profile what its own optimum needs in truth, and solve again."""
        profile = self.optimistic
        for _ in range(rounds):
            solution, fits = self.ask(profile, self.budget, method)
            if solution is None or fits:
                return
            dearer = self.dearer(profile, solution, self.budget)
            if dearer == profile:
                return
            profile = dearer

    def bisect(self, profile: P, low: int, high: int, method: Method) -> None:
        """Look for the largest nominal budget from `low` to `high` whose schedule fits."""
        nominal = low
        for _ in range(self.rounds):
            if self._is_proved:
                return
            solution, fits = self.ask(profile, nominal, method) if nominal > 0 else (None, False)
            if solution is None or fits:
                low = nominal
            else:
                high = nominal
            nominal = (low + high + 1) // 2
            if nominal in (low, high):
                return

    def repeat(self, method: Method) -> None:
        """Solve for the stages that the best plan runs again, while that helps."""
        for _ in range(self.rounds):
            before = self.best
            if before is None or self._is_proved:
                return
            self.ask(self.own_profile(before.solution.schedule), self.budget, method)
            if self.best is before:
                return

    def smallest(self, method: Method) -> None:
        """Try schedules of small peaks.

        They depend neither on the budget nor on times, which differ whenever they are measured:
        with the least peak that a call tells of, the next one succeeds.

        Raises:
            SolverLimitError: The method ran out of time.
        """
        for is_sound in (True, False):
            profile = self.pessimistic if is_sound else self.optimistic
            for _ in range(self.rounds):
                required, solution = self._least(profile, method)
                self.offer(solution, profile, required)
                following = (
                    self.own_profile(solution.schedule)
                    if is_sound
                    else self.dearer(profile, solution, required)
                )
                if following == profile:
                    break
                profile = following

    @property
    def _is_proved(self) -> bool:
        """Whether nothing faster can be found."""
        return (
            self.best is not None
            and self.bound is not None
            and self.best.solution.makespan <= self.bound.lower_bound
        )

    def _least(self, profile: P, method: Method) -> tuple[int, Solution]:
        """The least budget that the method has a solution for, and that, all times being equal."""
        profile, nominal = self.without_times(profile), 1
        answer = self._answer(profile, nominal, method)
        if isinstance(answer, InfeasibleBudgetError):
            nominal = answer.required
            answer = self._answer(profile, nominal, method)
        if isinstance(answer, Solution):
            return nominal, answer
        raise answer

    def _answer(self, profile: P, nominal: int, method: Method) -> Answer:
        """The method's answer; nothing is asked twice."""
        known = self.answers.setdefault((profile, nominal), [])
        for asked, answer in known:
            if asked == method:
                return answer
        try:
            found: Answer = self.solve(profile, nominal, method)
        except (InfeasibleBudgetError, SolverLimitError) as refusal:
            found = refusal
        known.append((method, found))
        return found


def evenly_timed(profile: ChainProfile) -> ChainProfile:
    """Return `profile`, all times being equal."""
    stages = (replace(each, forward_time=1, backward_time=1) for each in profile.stages)
    return replace(profile, stages=tuple(stages))


def overhead_margin(ones: Iterable[Stage], others: Iterable[Stage]) -> int:
    """The most by which an overhead of `others` exceeds that of the same stage in `ones`."""
    return max(
        max(
            other.forward_overhead_bytes - one.forward_overhead_bytes,
            other.backward_overhead_bytes - one.backward_overhead_bytes,
        )
        for one, other in zip(ones, others, strict=True)
    )


def with_larger_overheads(one: ChainProfile, other: ChainProfile) -> ChainProfile:
    """Return `one` with the larger of both profiles' overheads in every stage."""
    stages = []
    for mine, theirs in zip(one.stages, other.stages, strict=True):
        forward = max(mine.forward_overhead_bytes, theirs.forward_overhead_bytes)
        backward = max(mine.backward_overhead_bytes, theirs.backward_overhead_bytes)
        stages.append(
            replace(mine, forward_overhead_bytes=forward, backward_overhead_bytes=backward)
        )
    return replace(one, stages=tuple(stages))
