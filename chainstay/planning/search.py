"""Plans for measured chains: the fastest schedule whose own peak is within the budget.

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

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from chainstay.dp import DP, unrestricted_bound
from chainstay.errors import (
    InfeasibleBudgetError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.planning.asking import Answers, is_exact, scout_of
from chainstay.profiles import ChainProfile
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Solution
from chainstay.solve import AutoChain, budget_bytes, resolve_method
from chainstay.units import format_bytes
from chainstay.validation.certify import certify
from chainstay.validation.simulate import Replay, simulate

__all__ = ["solve_measured"]

_ROUNDS: Final = 6
"""Solves of each kind; each halves what is unknown of the best nominal budget."""


def solve_measured(
    measured: Measurement,
    budget: int | str,
    method: Method | str = "auto",
    *,
    can_run: Callable[[Schedule], bool] = lambda _: True,
) -> Solution:
    """The fastest schedule found of a measured chain whose own peak is within the budget.

    Plain training, if that fits, whatever the method.

    Args:
        measured: What the chain costs, see `chainstay.measure`.
        budget: Bytes as for `chainstay.solve_chain`; a percentage is of what plain training
            of this chain needs.
        method: The method, as for `chainstay.solve_chain`; ``"auto"`` with free discards, which the
            runtime can do. Exact solvers are asked about few problems, found by the DP.
        can_run: Whether the runtime can run a schedule at all.

    Returns:
        The schedule; its `peak_bytes` are by the profile for it alone, what it makes again
        included, `lower_bound` and `unrestricted_bound` by a profile that is at most that of
        any schedule: of all schedules of `family` whose own peak is within the budget, none is
        faster. It need not be attained, so `is_optimal` may be false of an optimum.

    Raises:
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method, or none of its schedules can be run.
        InfeasibleBudgetError: Nothing was found that fits; with ``error.required``, the least
            peak found, something is. (No proof that nothing fits below it.)
        SolverLimitError: As for `chainstay.solve_chain`, and `CertificateError` likewise.

    Complexity:
        About 20 solves by the DP at most.

    Example:
        >>> import torch, chainstay
        >>> layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
        >>> measured = chainstay.measure(torch.nn.Sequential(*layers), torch.zeros(2, 8))
        >>> str(solve_measured(measured, "100%").schedule)
        'Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0'
    """
    start = time.perf_counter()
    plain = Schedule.keep_all(len(measured.profile))
    budget = budget_bytes(measured.profile_for(plain), budget)
    asked = AutoChain(discards=Discards.FREE) if method == "auto" else resolve_method(method)
    search = _Search(measured, budget, can_run)
    solution = search.plain(asked)
    if solution is None:
        # Persistent plans under Table 1 make nothing twice and lose no input.
        methods = (asked, DP()) if isinstance(asked, AutoChain) else (asked,)
        solution = search.fastest(methods)
    return replace(solution, solve_seconds=time.perf_counter() - start)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A schedule that fits, and the problem that it was the solution of.

    Attributes:
        solution: Its peak and budget are the real ones.
        profile: The profile of that problem.
        nominal: The budget of that problem, in bytes.
    """

    solution: Solution
    profile: ChainProfile
    nominal: int


@dataclass(slots=True)
class _Search:
    """The state of a search for a plan of a chain.

    Attributes:
        measured: The chain.
        budget: The real one, in bytes.
        can_run: The predicate, as for `solve_measured`.
        best: The fastest plan so far that fits.
        bound: The optimum under the optimistic profile, once that is known.
        least: The smallest peak of a schedule that can be run.
        refused: Why a schedule whose peak fits cannot be run, if there was one.
        limit: What a solver said that ran out of time.
        makes_again: Whether a plan makes again what it holds, so that others may need less.
        answers: Answers of solvers, kept because ways to look for plans meet.
    """

    measured: Measurement
    budget: int
    can_run: Callable[[Schedule], bool]
    best: _Plan | None = None
    bound: Solution | None = None
    least: int | None = None
    refused: str = ""
    limit: SolverLimitError | None = None
    makes_again: bool = False
    answers: Answers = field(default_factory=Answers)
    optimistic: ChainProfile = field(init=False)
    pessimistic: ChainProfile = field(init=False)

    def __post_init__(self) -> None:
        self.optimistic = self.measured.account.optimistic()
        self.pessimistic = self.measured.profile

    def plain(self, method: Method) -> Solution | None:
        """Plain training, if it fits; nothing is faster."""
        schedule = Schedule.keep_all(len(self.pessimistic))
        profile = self.measured.profile_for(schedule)
        peak = simulate(profile, schedule).peak_bytes
        if peak > self.budget or not self.can_run(schedule):
            return None
        makespan = profile.least_time
        claim = Claim(schedule=schedule, makespan=makespan, lower_bound=makespan, family=Family.ALL)
        solution = certify(
            profile, claim, budget=self.budget, method=str(method), solve_seconds=0.0
        )
        return replace(solution, unrestricted_bound=makespan)

    def fastest(self, methods: tuple[Method, ...]) -> Solution:
        """Return the best plan by the first of `methods`, or by a later one if the first fails."""
        for method in methods:
            self._by(method)
            if not self.refused:
                break
        if self.best is None:
            for method in methods:
                self._smallest(method)
                if not (self.refused or self.makes_again):
                    break
            self._repeat(scout_of(methods[0]))
        if self.best is None:
            raise self._nothing(methods)
        return self._bounded(self.best.solution)

    def _by(self, method: Method) -> None:
        """Try all that the module's text says."""
        scout = scout_of(method)
        solution, _ = self._ask(self.optimistic, self.budget, scout)
        self.bound = self.bound or solution
        if solution is None and is_exact(scout):
            return  # then nothing fits under any profile
        self._correct(scout)
        margin = _margin(self.optimistic, self.pessimistic)
        self._bisect(self.pessimistic, self.budget, self.budget + margin, scout)
        self._bisect(self.optimistic, self.budget - margin, self.budget, scout)
        self._repeat(scout)
        if scout is not method:
            self.bound = self._ask(self.optimistic, self.budget, method)[0] or self.bound
            if self.best is not None:
                self._ask(self.best.profile, self.best.nominal, method)

    def _correct(self, method: Method) -> None:
        """Add to the optimistic profile what its own optimum needs in truth, and solve again."""
        profile = self.optimistic
        for _ in range(2 * _ROUNDS):
            solution, fits = self._ask(profile, self.budget, method)
            if solution is None or fits:
                return
            dearer = self._dearer(profile, solution, self.budget)
            if dearer == profile:
                return
            profile = dearer

    def _bisect(self, profile: ChainProfile, low: int, high: int, method: Method) -> None:
        """Look for the largest nominal budget from `low` to `high` whose schedule fits."""
        nominal = low
        for _ in range(_ROUNDS):
            if self._is_proved:
                return
            if nominal > 0:
                solution, fits = self._ask(profile, nominal, method)
            if nominal <= 0 or solution is None or fits:
                low = nominal
            else:
                high = nominal
            nominal = (low + high + 1) // 2
            if nominal in (low, high):
                return

    def _repeat(self, method: Method) -> None:
        """Solve for the stages that the best plan runs again, while that helps."""
        for _ in range(_ROUNDS):
            if self.best is None or self._is_proved:
                return
            before = self.best
            self._ask(self.measured.profile_for(before.solution.schedule), self.budget, method)
            if self.best is before:
                return

    @property
    def _is_proved(self) -> bool:
        """Whether nothing faster can be found."""
        return (
            self.best is not None
            and self.bound is not None
            and self.best.solution.makespan <= self.bound.lower_bound
        )

    def _smallest(self, method: Method) -> None:
        """Try schedules of small peaks.

        They depend neither on the budget nor on times, which differ whenever they are measured:
        with the least peak that a call tells of, the next one succeeds.
        """
        for is_sound in (True, False):
            profile = self.pessimistic if is_sound else self.optimistic
            for _ in range(_ROUNDS):
                required, solution = self.answers.least(profile, method)
                self._offer(solution, profile, required)
                following = (
                    self.measured.profile_for(solution.schedule)
                    if is_sound
                    else self._dearer(profile, solution, required)
                )
                if following == profile:
                    break
                profile = following

    def _ask(
        self, profile: ChainProfile, nominal: int, method: Method
    ) -> tuple[Solution | None, bool]:
        """The method's solution of that problem, if it has one, and whether it really fits."""
        try:
            solution = self.answers.solution(profile, nominal, method)
        except InfeasibleBudgetError:
            return None, False
        except SolverLimitError as limit:
            self.limit = limit
            return None, False
        return solution, self._offer(solution, profile, nominal)

    def _offer(self, solution: Solution, profile: ChainProfile, nominal: int) -> bool:
        """Whether `solution` really fits; it is kept if it is the fastest that does."""
        schedule = solution.schedule
        replay = self._replay(solution)
        peak, makespan = replay.peak_bytes, replay.makespan
        excess = remade_bytes(self.pessimistic, schedule)
        self.makes_again = self.makes_again or excess > 0
        if not self.can_run(schedule):
            self.refused = (
                f"the plan of {solution.method} makes again what lies between the model's blocks, "
                "which this runtime cannot do; use method='dp'"
            )
            return False
        self.least = peak + excess if self.least is None else min(self.least, peak + excess)
        if peak + excess > self.budget:
            if peak <= self.budget:
                self.refused = (
                    f"the plan of {solution.method} makes {format_bytes(excess)} of tensors again "
                    "while it holds them, which this runtime cannot do within the budget; use "
                    "method='dp'"
                )
            return False
        if self.best is None or makespan < self.best.solution.makespan:
            real = replace(
                solution,
                makespan=makespan,
                budget=self.budget,
                peak_bytes=peak + excess,
                lower_bound=0,
                unrestricted_bound=0,
            )
            self.best = _Plan(real, profile, nominal)
        return True

    def _replay(self, solution: Solution) -> Replay:
        """Simulate `solution` with each operation's own overhead and each stage's times."""
        return simulate(
            self.measured.profile_for(solution.schedule),
            solution.schedule,
            discards=solution.discards,
            overheads=self.measured.overheads_for(solution.schedule),
        )

    def _dearer(self, profile: ChainProfile, solution: Solution, limit: int) -> ChainProfile:
        """Return `profile` with the overheads of operations that need more than `limit` bytes."""
        stages = list(profile.stages)
        overheads = self.measured.overheads_for(solution.schedule)
        for snapshot, overhead in zip(self._replay(solution).timeline, overheads, strict=True):
            index, kind = snapshot.op.stage, snapshot.op.kind
            if snapshot.during_bytes <= limit:
                continue
            name = "forward" if kind.is_forward else "backward"
            name = f"{name}_overhead_bytes"
            stages[index] = replace(
                stages[index], **{name: max(overhead, getattr(stages[index], name))}
            )
        return replace(profile, stages=tuple(stages))

    def _bounded(self, solution: Solution) -> Solution:
        """Return `solution` with the bound that is proved for all schedules' own peaks."""
        unrestricted = unrestricted_bound(self.optimistic, self.budget)
        solution = replace(solution, unrestricted_bound=unrestricted)
        bound = self.bound
        if bound is None or bound.lower_bound > solution.makespan:
            return replace(solution, family=Family.ALL, lower_bound=unrestricted)
        return replace(
            solution, family=bound.family, discards=bound.discards, lower_bound=bound.lower_bound
        )

    def _nothing(self, methods: tuple[Method, ...]) -> Exception:
        """Return the error to raise if nothing fits."""
        if self.limit is not None:
            return self.limit
        if self.least is None or (self.refused and DP() not in methods):
            return UnknownMethodError(self.refused)
        return InfeasibleBudgetError(
            budget=self.budget,
            required=self.least,
            stages=len(self.pessimistic),
            family="known",
        )


def _margin(one: ChainProfile, other: ChainProfile) -> int:
    """The most by which an overhead of `other` exceeds that of `one`."""
    pairs = zip(one.stages, other.stages, strict=True)
    return max(
        max(
            theirs.forward_overhead_bytes - mine.forward_overhead_bytes,
            theirs.backward_overhead_bytes - mine.backward_overhead_bytes,
        )
        for mine, theirs in pairs
    )
