"""Plans for measured chains: the fastest schedule found whose own peak is within the budget.

See `chainstay.planning.search` for how it is looked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from chainstay.dp import DP, least_budget, unrestricted_bound
from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidBudgetError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.planning.search import Candidate, Search, evenly_timed, overhead_margin
from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.schedule import Discards, Op, Schedule
from chainstay.solution import Claim, Family, Method, Solution
from chainstay.solve import AutoChain, budget_bytes, resolve_method, solve_chain
from chainstay.timetable import Time
from chainstay.units import format_bytes
from chainstay.validation.certify import certify
from chainstay.validation.simulate import Replay, simulate

__all__ = ["solve_measured"]

_ROUNDS: Final = 6
"""Solves of each kind; see `Search.rounds`."""
_CLOSE: Final = 1.002
"""A persistent schedule that is so close to the bound on all of them is not improved any more."""


def solve_measured(
    measured: Measurement,
    budget: int | str,
    method: Method | str = "auto",
    *,
    can_run: Callable[[Schedule], bool] = lambda _: True,
) -> Solution:
    """The fastest schedule found of a measured chain whose own peak is within the budget.

    Plain training, if that fits, whatever the method. Otherwise, by ``"auto"`` and ``"dp"``, the
    optimum among persistent schedules by what each kind of run costs, options of stages included;
    by ``"auto"`` a schedule with free discards, if that is faster and no options are of use.

    Args:
        measured: What the chain costs, see `chainstay.measure`.
        budget: Bytes as for `chainstay.solve_chain`; a percentage is of what plain training
            of this chain needs.
        method: The method, as for `chainstay.solve_chain`; ``"auto"`` with free discards, which the
            runtime can do. All but ``"auto"`` and ``"dp"`` know no options; exact solvers are asked
            about few problems, found by the DP.
        can_run: Whether the runtime can run a schedule at all.

    Returns:
        The schedule; its `peak_bytes` are by what each of its own operations needs, what it makes
        again included. Of all schedules of `family` whose own peak is within the budget, none
        is faster than `lower_bound`. A persistent schedule attains it, and `is_optimal` is true,
        unless the environments (random states, buffers) that its runs again save do not fit
        beside the optimum. Other bounds are by a profile that is at most that of any schedule,
        and need not be attained: there, `is_optimal` may be false of an optimum.

    Raises:
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method, or none of its schedules can be run.
        InfeasibleBudgetError: Nothing was found that fits; with ``error.required``, the least
            peak found, something is. (No proof that nothing fits below it.)
        SolverLimitError: As for `chainstay.solve_chain`, and `CertificateError` likewise.

    Complexity:
        One solve by the DP where options are of use, three if saved environments do not fit.
        Elsewhere one more, and about 20 where free discards may be faster.

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
    search = ChainSearch.of(measured, budget, can_run)
    solution = search.plain(asked) or _fastest(search, asked)
    return replace(solution, solve_seconds=time.perf_counter() - start)


def _fastest(search: ChainSearch, asked: Method) -> Solution:
    """Return the persistent optimum, or what the search finds where that is faster."""
    is_auto = isinstance(asked, AutoChain)
    exact = search.persistent() if is_auto or asked == DP() else None
    if exact is not None and exact.makespan <= exact.lower_bound * _CLOSE:
        # What free discards drop between stages, options drop as well.
        is_in_parts = any(op.option for op in exact.schedule)
        if not is_auto or is_in_parts or not search.may_beat(exact.makespan, asked):
            return exact
    # Persistent plans under Table 1 make nothing twice and lose no input.
    methods = (asked, DP()) if is_auto else (asked,)
    try:
        found = search.fastest(methods)
    except ChainstayError:
        if exact is None:
            raise
        return exact
    if exact is not None and exact.makespan <= found.makespan:
        return exact
    if not any(cost.options for cost in search.measured.account.stages):
        return found
    profile = search.measured.account.by_kind(is_sound=False)
    bound = unrestricted_bound(profile, search.budget)  # other bounds know no options
    return replace(found, family=Family.ALL, lower_bound=bound, unrestricted_bound=bound)


@dataclass(slots=True, kw_only=True)
class ChainSearch(Search[ChainProfile]):
    """The state of a search for a plan of a chain.

    Attributes:
        measured: The chain.
        can_run: The predicate, as for `solve_measured`.
        refused: Why a schedule whose peak fits cannot be run, if there was one.
        makes_again: Whether a plan makes again what it holds, so that others may need less.
        neediest: The operation at the peak of the schedule that needs least, and its overhead.
    """

    measured: Measurement
    can_run: Callable[[Schedule], bool]
    refused: str = ""
    makes_again: bool = False
    neediest: tuple[Op, int] | None = None

    @classmethod
    def of(
        cls, measured: Measurement, budget: int, can_run: Callable[[Schedule], bool]
    ) -> ChainSearch:
        """Return a search of which nothing is done."""
        return cls(
            budget=budget,
            optimistic=measured.account.optimistic(),
            pessimistic=measured.profile,
            rounds=_ROUNDS,
            measured=measured,
            can_run=can_run,
        )

    def plain(self, method: Method) -> Solution | None:
        """Plain training, if it fits; nothing is faster."""
        schedule = Schedule.keep_all(len(self.pessimistic))
        profile = self.measured.profile_for(schedule)
        peak = simulate(profile, schedule).peak_bytes
        if peak > self.budget or not self.can_run(schedule):
            return None
        makespan = profile.least_time
        claim = Claim(schedule=schedule, makespan=makespan, lower_bound=makespan, family=Family.ALL)
        solution = certify(ChainProblem(profile, self.budget), claim, method=str(method))
        return replace(solution, unrestricted_bound=makespan)

    def persistent(self) -> Solution | None:
        """The best persistent schedule by what each kind of run costs, if one fits and can run.

        Environments that are saved for later runs depend on the schedule. The optimum without
        any bounds all schedules, and is the optimum if it fits with those that it has. Otherwise
        it is solved for again, for a budget less by what it lacked, and if that does not fit
        either, with the environments of all stages.
        """
        account = self.measured.account
        bound: Solution | None = None
        nominal = self.budget
        for is_sound in (False, False, True):
            profile = account.by_kind(is_sound=is_sound)
            try:
                solution = solve_chain(profile, self.budget if is_sound else nominal, DP())
            except (InvalidBudgetError, InfeasibleBudgetError):
                continue
            bound = bound or solution
            own, overheads = self.measured.costs_of(solution.schedule)
            peak = simulate(own, solution.schedule, overheads=overheads).peak_bytes
            if peak <= self.budget and self.can_run(solution.schedule):
                return replace(
                    solution,
                    budget=self.budget,
                    peak_bytes=peak,
                    lower_bound=bound.lower_bound,
                    family=bound.family,
                    unrestricted_bound=bound.unrestricted_bound,
                )
            nominal = 2 * self.budget - peak
        self._note_least()
        return None

    def _note_least(self) -> None:
        """Note what persistent schedules need at least, where stages may be kept in part.

        Only options that do not depend on times count: another measurement finds them again.
        """
        measured = replace(self.measured, account=self.measured.account.with_steady_options())
        profile = measured.account.by_kind()
        if any(stage.options for stage in profile.stages):
            self.least = least_budget(profile)  # what is solved for it fits
            schedule = solve_chain(profile, self.least, DP()).schedule
            self.neediest = _at_peak(measured, schedule, simulate(profile, schedule))

    def may_beat(self, makespan: Time, method: Method) -> bool:
        """Whether a schedule without options may be faster, by the bound of the quick method."""
        solution, _ = self.ask(self.optimistic, self.budget, _scout_of(method))
        return solution is not None and solution.lower_bound < makespan

    def fastest(self, methods: tuple[Method, ...]) -> Solution:
        """Return the best plan by the first of `methods`, or by a later one if the first fails."""
        for method in methods:
            self._by(method)
            if not self.refused:
                break
        if self.best is None:
            for method in methods:
                self.smallest(method)
                if not (self.refused or self.makes_again):
                    break
            self.repeat(_scout_of(methods[0]))
        if self.best is None:
            raise self._nothing(methods)
        return self._bounded(self.best.solution)

    def _by(self, method: Method) -> None:
        """Try all that `chainstay.planning.search` says."""
        scout = _scout_of(method)
        solution, _ = self.ask(self.optimistic, self.budget, scout)
        self.bound = self.bound or solution
        if solution is None and _is_exact(scout):
            return  # then nothing fits under any profile
        self.correct(scout, 2 * _ROUNDS)
        margin = overhead_margin(self.optimistic.stages, self.pessimistic.stages)
        self.bisect(self.pessimistic, self.budget, self.budget + margin, scout)
        self.bisect(self.optimistic, self.budget - margin, self.budget, scout)
        self.repeat(scout)
        if scout is not method:
            self.bound = self.ask(self.optimistic, self.budget, method)[0] or self.bound
            if self.best is not None:
                self.ask(self.best.profile, self.best.nominal, method)

    def solve(self, profile: ChainProfile, nominal: int, method: Method) -> Solution:
        """See `Search` and `chainstay.solve_chain`."""
        return solve_chain(profile, nominal, method)

    def own_profile(self, schedule: Schedule) -> ChainProfile:
        """See `Search`."""
        return self.measured.profile_for(schedule)

    def without_times(self, profile: ChainProfile) -> ChainProfile:
        """See `Search`."""
        return evenly_timed(profile)

    def offer(self, solution: Solution, profile: ChainProfile, nominal: int) -> bool:
        """See `Search`."""
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
        if self.least is None or peak + excess < self.least:
            self.least = peak + excess
            self.neediest = _at_peak(self.measured, solution.schedule, replay)
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
            self.best = Candidate(real, profile, nominal)
        return True

    def _replay(self, solution: Solution) -> Replay:
        """Simulate `solution` with each operation's own overhead and each stage's times."""
        return simulate(
            self.measured.profile_for(solution.schedule),
            solution.schedule,
            discards=solution.discards,
            overheads=self.measured.overheads_for(solution.schedule),
        )

    def dearer(self, profile: ChainProfile, solution: Solution, limit: int) -> ChainProfile:
        """See `Search`."""
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
            reason=self._reason(),
        )

    def _reason(self) -> str:
        """Return a sentence on what needs most in the schedule that needs least."""
        if self.neediest is None or self.least is None:
            return ""
        op, overhead = self.neediest
        cost = self.measured.account.stages[op.stage]
        step = "forward" if op.kind.is_forward else "backward"
        operator = cost.forward_operator if op.kind.is_forward else cost.backward_operator
        at = f" at {operator}" if operator else ""
        schedule = Schedule.keep_all(len(self.pessimistic))
        plain = simulate(self.measured.profile_for(schedule), schedule).peak_bytes
        return (
            f"That is {self.least / max(plain, 1):.0%} of plain training; the {step} of stage "
            f"{op.stage} ({cost.name}) needs most, {format_bytes(overhead)} for itself alone{at}."
        )


def _at_peak(measured: Measurement, schedule: Schedule, replay: Replay) -> tuple[Op, int]:
    """Return the operation that needs most, and its overhead in bytes."""
    pairs = zip(replay.timeline, measured.overheads_for(schedule), strict=True)
    highest, overhead = max(pairs, key=lambda pair: pair[0].during_bytes)
    return highest.op, overhead


def _scout_of(method: Method) -> Method:
    """Return a quick method that looks for promising problems as `method` would."""
    match method:
        case AutoChain() | CPSAT() | MIP() | DP(persistence="weak"):
            return DP(discards=method.discards)
    return method


def _is_exact(method: Method) -> bool:
    """Whether what it finds infeasible is so under lower budgets and larger overheads, too."""
    return isinstance(method, DP) and method.slots is None
