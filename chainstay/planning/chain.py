"""Plans for measured chains: a profile by kind of run is solved, its schedule judged as it runs.

`Account.by_kind` says what each kind of run takes, and what it needs at least. A method solves
that. What its schedule needs and takes in truth is told by the simulator with an overhead for each
operation (`Account.overheads`): random states and buffers are saved for runs again only, which
not all methods count; it takes time to drop the input of what is kept, a part of the output
that the caller holds may be made again, and a schedule that is not persistent may make again what
it still holds. Where these exceed the budget, the method is asked again, twice with what the
operations of its latest schedule need, and at last with what no schedule's exceed. Where none of
its plans fits, its plan of least peak is tried, which does not depend on times.

=====================================  =======================================================
method                                 profile
=====================================  =======================================================
`DP`, `MIP`, `CPSAT`, ``"auto"``       by kind of run, with all options of stages, and but for
                                       ``"auto"`` with what they save to run again
                                       (environments)
these with free discards               by kind of run; without options, since the runtime
                                       cannot give a new input to what is kept in part
a user's own                           without either: one overhead for each forward and
                                       backward, of plain training, then of its latest
                                       schedule, and at last of any schedule
=====================================  =======================================================

The optimum under what every schedule needs at least bounds all. Where options were left out, or a
method knows no kinds of runs, the bound is that on all schedules, which has both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from chainstay.dp import DP, unrestricted_bound
from chainstay.errors import (
    InfeasibleBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
    type_with_article,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.planning.questions import (
    Judged,
    counts_environments,
    is_rounded,
    judge,
    least_solution,
    plain_peak,
    profile_for,
    renews_inputs_of_parts,
    what_needs_most,
)
from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile
from chainstay.runtime.measures.measured import Measurement
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Solution
from chainstay.solve import AutoChain, resolve_method, solve_chain
from chainstay.solve.budgets import Budget, parse_budget
from chainstay.units import format_bytes
from chainstay.validation.certify import certify
from chainstay.validation.simulate import simulate

_SOLVES: Final = 4
"""Questions to a method, at most."""

_NOTICED: Final = 0.01
"""A plan without proof takes the place of one with it where it saves this part of plain training's
time: times are measured no better."""


def solve_measured(
    measured: Measurement,
    budget: Budget,
    method: Method | str = "auto",
    *,
    can_run: Callable[[Schedule], bool] = lambda _: True,
) -> Solution:
    """Return the fastest schedule found of a measured chain whose own peak is within the budget.

    Plain training, if that fits, whatever the method. Otherwise the method's schedule, by what each
    kind of run costs, options of stages included. ``"auto"`` is the persistent optimum, or a faster
    schedule with free discards: where that has no proof, by 1 % of plain training's time.

    Args:
        measured: What the chain costs, see `chainstay.measure`.
        budget: Bytes as for `chainstay.solve_chain`; a percentage is of what plain training
            of this chain needs.
        method: The method, as for `chainstay.solve_chain`; ``"auto"`` with free discards, which the
            runtime can do. With free discards no options are used, which the runtime cannot do
            together. A user's own method is given neither options nor costs by kind of run.
        can_run: Whether the runtime can run a schedule at all.

    Returns:
        The schedule; its `peak_bytes` are by what each of its own operations needs, what it makes
        again included, and of plain training, less what no backward reads. Of all schedules of
        `family` whose own peak is within the budget, none is faster than `lower_bound`. If the
        method proves its optimum, `is_optimal` is true unless a part of the output that the caller
        holds is made again and does not fit; with other rules than Table 1's, also where options
        were left out, or what runs again save (random states, buffers) does not fit.

    Raises:
        InvalidProfileError: `measured` is no measured chain.
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method, or none of its schedules can be run.
        InfeasibleBudgetError: Nothing was found that fits; with ``error.required``, the least
            that is known to be enough, something is. (No proof that nothing fits below it.)
        SolverLimitError: As for `chainstay.solve_chain`, and `CertificateError` likewise.

    Complexity:
        One solve; up to four where saved environments do not fit, with free discards, and for
        methods that round sizes or are a user's own. ``"auto"`` asks up to three methods, exact
        solvers come after a dynamic program, and are asked twice at most if that has a plan.

    Example:
        >>> import torch, chainstay
        >>> layers = [torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)]
        >>> measured = chainstay.measure(torch.nn.Sequential(*layers), torch.zeros(2, 8))
        >>> str(solve_measured(measured, "100%").schedule)
        'Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0'
    """
    start = time.perf_counter()
    if not isinstance(measured, Measurement):
        raise InvalidProfileError(
            f"measured is {type_with_article(measured)}, must be what chainstay.measure returns; a "
            "profile is for solve_chain"
        )
    budget = parse_budget(budget, lambda: plain_peak(measured))
    asked = AutoChain(discards=Discards.FREE) if method == "auto" else resolve_method(method)
    planner = _ChainPlanner(measured=measured, budget=budget, can_run=can_run)
    solution = planner.plain(asked) or planner.fastest(asked)
    return replace(solution, solve_seconds=time.perf_counter() - start)


@dataclass(slots=True, kw_only=True)
class _ChainPlanner:
    """The methods that are asked about one measured chain and budget.

    Attributes:
        measured: The chain.
        budget: Bytes.
        can_run: The predicate, as for `solve_measured`.
        refused: Why a schedule that was found cannot be run, if there was one.
        limit: The error of a solver that ran out of time, if one did.
    """

    measured: Measurement
    budget: int
    can_run: Callable[[Schedule], bool]
    refused: str = ""
    limit: SolverLimitError | None = None

    def plain(self, method: Method) -> Solution | None:
        """Return plain training, if it fits; nothing is faster."""
        profile, peak = self.measured.plain_profile, plain_peak(self.measured)
        schedule = Schedule.keep_all(len(profile))
        if peak > self.budget or not self.can_run(schedule):
            return None
        makespan = profile.least_time
        claim = Claim(schedule=schedule, makespan=makespan, lower_bound=makespan, family=Family.ALL)
        problem = ChainProblem(profile, max(self.budget, simulate(profile, schedule).peak_bytes))
        solution = certify(problem, claim, method=str(method))
        return replace(solution, budget=self.budget, peak_bytes=peak, unrestricted_bound=makespan)

    def fastest(self, asked: Method) -> Solution:
        """Return the fastest solution of the methods that `asked` stands for.

        Raises:
            ChainstayError: There is none; as `solve_measured`.
        """
        best: Solution | None = None
        methods = tuple(self._methods(asked))
        for method in methods:
            found = self._solved(method, best)
            if found is not None and (
                best is None
                or self._is_faster(found, best)
                or (found.makespan == best.makespan and found.is_optimal and method is asked)
            ):
                best = found
            elif best is not None:
                break
        return best or self._smallest_of(methods)

    def _is_faster(self, found: Solution, best: Solution) -> bool:
        """Return whether a plan is faster than the best so far, by enough to give up a proof."""
        loses_proof = best.is_optimal and not found.is_optimal
        noticed = _NOTICED * self.measured.profile.least_time if loses_proof else 0
        return found.makespan + noticed < best.makespan

    def _methods(self, asked: Method) -> Iterator[Method]:
        """Yield the methods to ask in turn while each is faster than the one before."""
        match asked:
            case AutoChain():
                yield from dict.fromkeys((DP(), DP(discards=asked.discards)))
                if len(self.measured.profile) > asked.exact_stages:
                    return
            case MIP() | CPSAT() | DP(persistence="weak"):
                yield DP(discards=asked.discards)  # its plan is known to fit, others may not
        yield asked

    def _solved(self, method: Method, known: Solution | None) -> Solution | None:
        """Return the method's fastest solution that fits as it runs, if one does and can be run.

        Where a plan is `known`, one that takes its time limit is not asked for another that fits.
        """
        account = self.measured.account
        best: Solution | None = None
        bound: Solution | None = None
        latest: Schedule | None = None
        left = excess = 0
        answered: tuple[ChainProfile, int] | None = None
        takes_time = isinstance(method, MIP | CPSAT | AutoChain)
        for question in range(2 if takes_time and known is not None else _SOLVES):
            is_sound = best is None and question == _SOLVES - 1
            profile = profile_for(method, account, latest, is_sound=is_sound)
            nominal = self.budget - excess if is_sound else self.budget + left
            if (profile, nominal) == answered:
                continue
            answered = profile, nominal
            try:
                solution = solve_chain(profile, nominal, method)
            except (InvalidBudgetError, InfeasibleBudgetError):
                continue
            except SolverLimitError as limit:
                self.limit = limit
                continue
            bound = solution if question == 0 else bound
            latest = solution.schedule
            judged = judge(self.measured, solution)
            makespan = judged.replay.makespan
            excess = judged.excess
            fits = self._fits(solution, judged)
            if fits and (best is None or makespan < best.makespan):
                best = _as_it_runs(solution, judged, self.budget)
            if is_rounded(method):
                left += self.budget - judged.needs
            elif fits and (takes_time or makespan == solution.makespan):
                break
            else:
                left = -excess
        return best and self._bounded(best, bound, method)

    def _fits(self, solution: Solution, judged: Judged) -> bool:
        """Return whether the runtime can run a schedule within the budget."""
        if not self._is_runnable(solution):
            return False
        if judged.replay.peak_bytes <= self.budget < judged.needs:
            self.refused = (
                f"the plan of {solution.method} makes {format_bytes(judged.excess)} of tensors "
                "again while it holds them, which this runtime cannot do within the budget; "
                "use method='dp'"
            )
        return judged.needs <= self.budget

    def _is_runnable(self, solution: Solution) -> bool:
        """Return whether the runtime can run a schedule; if not, `refused` says why."""
        schedule = solution.schedule
        if not self.can_run(schedule):
            what = "what lies between the model's blocks"
        elif renews_inputs_of_parts(schedule):
            what = "the input of what is kept in part"
        else:
            return True
        self.refused = (
            f"the plan of {solution.method} makes again {what}, which this runtime cannot do; use "
            "method='dp'"
        )
        return False

    def _bounded(self, solution: Solution, bound: Solution | None, method: Method) -> Solution:
        """Return `solution` with what is proved of all schedules within the budget.

        Args:
            solution: The solution.
            bound: The method's under what every schedule needs at least, if that was found.
            method: The method.
        """
        account = self.measured.account
        least = account.by_kind(is_sound=False)
        everything = account.by_kind(is_sound=False, apart=counts_environments(method))
        knows_all = profile_for(method, account) == everything
        if bound is None or not knows_all or bound.lower_bound > solution.makespan:
            unrestricted = unrestricted_bound(least, self.budget)
            return replace(
                solution,
                family=Family.ALL,
                lower_bound=unrestricted,
                unrestricted_bound=unrestricted,
            )
        return replace(
            solution,
            family=bound.family,
            discards=bound.discards,
            lower_bound=bound.lower_bound,
            unrestricted_bound=bound.unrestricted_bound,
        )

    def _smallest_of(self, methods: tuple[Method, ...]) -> Solution:
        """Return the plan of least peak of several methods, for budgets in which they find none.

        Raises:
            ChainstayError: It does not fit, either, or there is none.
        """
        if self.limit is not None:
            raise self.limit
        smallest: Solution | None = None
        for method in methods:
            found = self._smallest(method, smallest)
            if found is not smallest:
                smallest, chosen = found, method
        if smallest is None or (self.refused and DP() not in methods):
            raise UnknownMethodError(self.refused)
        required = smallest.peak_bytes
        if required > self.budget:
            raise InfeasibleBudgetError(
                budget=self.budget,
                required=required,
                stages=len(self.measured.profile),
                family="known",
                plain=plain_peak(self.measured),
                reason=what_needs_most(self.measured, smallest),
            )
        return self._bounded(replace(smallest, budget=self.budget), None, chosen)

    def _smallest(self, method: Method, known: Solution | None) -> Solution | None:
        """Return the plan of least peak among `known` and those of a method; ``None`` for none.

        It depends neither on the budget nor on times, which differ whenever they are measured. What
        cannot be run is left out. A method that says itself that it needs more than `known`
        is not asked for a plan.
        """
        account = self.measured.account.without_times()
        profile = profile_for(method, account, is_sound=True)
        smallest, latest = known, None
        for _ in range(_SOLVES if isinstance(method, DP) else 1):
            solution = least_solution(profile, method, known)
            if solution is None or solution.schedule == latest:
                break
            latest = solution.schedule
            judged = judge(self.measured, solution)
            if self._is_runnable(solution) and (
                smallest is None or judged.needs < smallest.peak_bytes
            ):
                smallest = _as_it_runs(solution, judged, judged.needs)
            profile = profile_for(method, account, latest)
        needs = plain_peak(self.measured)
        if isinstance(method, DP) and (smallest is None or smallest.peak_bytes > needs):
            profile = profile_for(method, account)
            return self._smaller_than_plain(method, profile, needs) or smallest
        return smallest

    def _smaller_than_plain(
        self, method: Method, profile: ChainProfile, most: int
    ) -> Solution | None:
        """Return the plan of least peak that is found within `most` bytes, those of plain training.

        What runs again holds random states and copies of buffers. Where these are most of the
        memory, plans that run few stages again need least.
        """
        smallest, least = replace(self, budget=most).plain(method), 0
        for _ in range(_SOLVES if smallest is not None else 0):
            middle = (most + least) // 2
            try:
                solution = solve_chain(profile, middle, method)
            except InfeasibleBudgetError as error:
                least = error.required
                continue
            judged = judge(self.measured, solution)
            if self._is_runnable(solution) and judged.needs < most:
                smallest, most = _as_it_runs(solution, judged, judged.needs), judged.needs
            else:
                least = middle
        return smallest


def _as_it_runs(solution: Solution, judged: Judged, budget: int) -> Solution:
    """Return `solution` with its own time and peak, and without what is proved of it."""
    return replace(
        solution,
        makespan=judged.replay.makespan,
        budget=budget,
        peak_bytes=judged.needs,
        lower_bound=0,
        unrestricted_bound=0,
    )
