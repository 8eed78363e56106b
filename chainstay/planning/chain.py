"""Plans for measured chains: a profile by kind of run is solved, its schedule judged as it runs.

`Account.by_kind` says what each kind of run takes, and what it needs at least. A method solves
that. What its schedule needs and takes in truth is told by the simulator with an overhead for each
operation (`Account.overheads`): random states and buffers are saved for runs again only, it takes
time to drop the input of what is kept, and a schedule that is not persistent may make again what
it still holds. Where these exceed the budget, the method is asked again, twice with what the
operations of its latest schedule need, and at last with what no schedule's exceed.

=====================================  =======================================================
method                                 profile
=====================================  =======================================================
`DP`, `MIP`, `CPSAT`, ``"auto"``       by kind of run, with all options of stages
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
from typing import Final, NamedTuple

from chainstay.dp import DP, unrestricted_bound
from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidBudgetError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.measured import Measurement
from chainstay.schedule import Discards, OpKind, Schedule
from chainstay.solution import Claim, Family, Method, Solution
from chainstay.solve import AutoChain, budget_bytes, resolve_method, solve_chain
from chainstay.units import format_bytes
from chainstay.validation.certify import certify
from chainstay.validation.simulate import Replay, simulate

__all__ = ["solve_measured"]

_SOLVES: Final = 4
"""Questions to a method, at most."""


def solve_measured(
    measured: Measurement,
    budget: int | str,
    method: Method | str = "auto",
    *,
    can_run: Callable[[Schedule], bool] = lambda _: True,
) -> Solution:
    """The fastest schedule found of a measured chain whose own peak is within the budget.

    Plain training, if that fits, whatever the method. Otherwise the method's schedule, by what each
    kind of run costs, options of stages included. ``"auto"`` is the persistent optimum, or where
    no options are of use, a schedule with free discards if that is faster.

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
        again included. Of all schedules of `family` whose own peak is within the budget, none
        is faster than `lower_bound`. If the method proves its optimum, `is_optimal` is true unless
        options were left out, or what its runs again save (random states, buffers) does not fit.

    Raises:
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
    plain = Schedule.keep_all(len(measured.profile))
    budget = budget_bytes(measured.profile_for(plain), budget)
    asked = AutoChain(discards=Discards.FREE) if method == "auto" else resolve_method(method)
    planner = _ChainPlanner(measured=measured, budget=budget, can_run=can_run)
    solution = planner.plain(asked) or planner.fastest(asked)
    return replace(solution, solve_seconds=time.perf_counter() - start)


class _Judged(NamedTuple):
    """A schedule as it runs.

    Attributes:
        replay: The simulation with an overhead for each operation.
        excess: Bytes that the runtime needs beyond it, for what it makes again while it is held.
    """

    replay: Replay
    excess: int

    @property
    def needs(self) -> int:
        """All bytes that it needs."""
        return self.replay.peak_bytes + self.excess


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
        """Plain training, if it fits; nothing is faster."""
        schedule = Schedule.keep_all(len(self.measured.profile))
        profile = self.measured.profile_for(schedule)
        peak = simulate(profile, schedule).peak_bytes
        if peak > self.budget or not self.can_run(schedule):
            return None
        makespan = profile.least_time
        claim = Claim(schedule=schedule, makespan=makespan, lower_bound=makespan, family=Family.ALL)
        solution = certify(ChainProblem(profile, self.budget), claim, method=str(method))
        return replace(solution, unrestricted_bound=makespan)

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
                or found.makespan < best.makespan
                or (found.makespan == best.makespan and found.is_optimal and method is asked)
            ):
                best = found
            elif best is not None:
                break
            # What free discards drop between stages, options drop as well.
            if isinstance(asked, AutoChain) and best and any(op.option for op in best.schedule):
                break
        if best is None:
            raise self._nothing(methods)
        return best

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
        takes_time = isinstance(method, MIP | CPSAT | AutoChain)
        for question in range(2 if takes_time and known is not None else _SOLVES):
            is_sound = best is None and question == _SOLVES - 1
            profile = _profile_for(method, account, latest, is_sound=is_sound)
            nominal = self.budget - excess if is_sound else self.budget + left
            try:
                solution = solve_chain(profile, nominal, method)
            except (InvalidBudgetError, InfeasibleBudgetError):
                continue
            except SolverLimitError as limit:
                self.limit = limit
                continue
            bound = solution if question == 0 else bound
            latest = solution.schedule
            judged = _judged(self.measured, solution)
            makespan = judged.replay.makespan
            excess = judged.excess
            fits = self._fits(solution, judged)
            if fits and (best is None or makespan < best.makespan):
                best = replace(
                    solution,
                    makespan=makespan,
                    budget=self.budget,
                    peak_bytes=judged.needs,
                    lower_bound=0,
                    unrestricted_bound=0,
                )
            if _is_rounded(method):
                left += self.budget - judged.needs
            elif fits and (takes_time or makespan == solution.makespan):
                break
            else:
                left = -excess
        return best and self._bounded(best, bound, method)

    def _fits(self, solution: Solution, judged: _Judged) -> bool:
        """Whether the runtime can run a schedule within the budget."""
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
        """Whether the runtime can run a schedule; if not, `refused` says why."""
        schedule = solution.schedule
        if not self.can_run(schedule):
            what = "what lies between the model's blocks"
        elif _renews_inputs_of_parts(schedule):
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
        knows_all = _profile_for(method, account, is_sound=False) == least
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

    def _nothing(self, methods: tuple[Method, ...]) -> ChainstayError:
        """Return the error to raise if nothing fits."""
        if self.limit is not None:
            return self.limit
        try:
            enough = [least for method in methods if (least := self._least(method)) is not None]
        except SolverLimitError as limit:
            return limit
        if not enough or (self.refused and DP() not in methods):
            return UnknownMethodError(self.refused)
        required, reason = min(enough)
        return InfeasibleBudgetError(
            budget=self.budget,
            required=required,
            stages=len(self.measured.profile),
            family="known",
            reason=reason,
        )

    def _least(self, method: Method) -> tuple[int, str] | None:
        """Return a budget that is enough for the method's plans, and why it takes so much.

        It depends neither on the budget nor on times, which differ whenever they are measured:
        only options that do not depend on these count. ``None`` if such a plan cannot be run.
        """
        account = self.measured.account.with_steady_options()
        measured = replace(self.measured, account=account)
        profile = _profile_for(method, account, is_sound=True)
        required = 1
        try:
            solution = solve_chain(profile, required, method)
        except InfeasibleBudgetError as error:
            required = error.required
            solution = solve_chain(profile, required, method)
        if not self._is_runnable(solution):
            return None
        judged = _judged(measured, solution)
        return max(required, judged.needs), self._reason(measured, solution, judged)

    def _reason(self, measured: Measurement, solution: Solution, judged: _Judged) -> str:
        """Return a sentence on what needs most in the schedule that needs least."""
        pairs = zip(judged.replay.timeline, measured.overheads_for(solution.schedule), strict=True)
        highest, overhead = max(pairs, key=lambda pair: pair[0].during_bytes)
        op = highest.op
        cost = measured.account.stages[op.stage]
        step = "forward" if op.kind.is_forward else "backward"
        operator = cost.forward_operator if op.kind.is_forward else cost.backward_operator
        at = f" at {operator}" if operator else ""
        schedule = Schedule.keep_all(len(measured.profile))
        plain = simulate(measured.profile_for(schedule), schedule).peak_bytes
        return (
            f"That is {judged.needs / max(plain, 1):.0%} of plain training; the {step} of stage "
            f"{op.stage} ({cost.name}) needs most, {format_bytes(overhead)} for itself alone{at}."
        )


def _profile_for(
    method: Method, account: Account, latest: Schedule | None = None, *, is_sound: bool = False
) -> ChainProfile:
    """Return what a method is asked about: the costs that it knows and the runtime can do.

    Args:
        method: The method.
        account: The chain's costs.
        latest: A schedule whose operations need no more than that; by default, every schedule's
            need that at least, or for a user's own method, those of plain training do.
        is_sound: Whether no schedule's operations need more, instead.
    """
    if not isinstance(method, DP | MIP | CPSAT | AutoChain):
        own = latest or Schedule.keep_all(len(account.stages))
        return account.profile() if is_sound else account.profile_for(own)
    if method.discards == Discards.FREE:
        account = account.without_options()
    if latest is not None and not is_sound:
        return account.by_kind_in(latest)
    return account.by_kind(is_sound=is_sound)


def _is_rounded(method: Method) -> bool:
    """Whether a method may leave some of the budget for what it knows too little about."""
    return not isinstance(method, DP | MIP | CPSAT | AutoChain) or (
        isinstance(method, DP) and method.slots is not None
    )


def _judged(measured: Measurement, solution: Solution) -> _Judged:
    """Simulate a schedule with each operation's own overhead and each stage's own times."""
    profile, overheads = measured.costs_of(solution.schedule)
    replay = simulate(profile, solution.schedule, discards=solution.discards, overheads=overheads)
    return _Judged(replay, remade_bytes(profile, solution.schedule))


def _renews_inputs_of_parts(schedule: Schedule) -> bool:
    """Whether a stage that is kept in part gets another input before its backward."""
    in_part: set[int] = set()
    for op in schedule:
        if op.kind.is_forward and op.stage + 1 in in_part:
            return True
        if op.kind is OpKind.FORWARD_KEEP_ALL and op.option:
            in_part.add(op.stage)
        elif op.kind is OpKind.BACKWARD:
            in_part.discard(op.stage)
    return False
