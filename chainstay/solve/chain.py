"""Solve a chain: choose a method, run it, certify its answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from chainstay.dp import DP, unrestricted_bound
from chainstay.dp.free_discards.solver import keeps_stages_apart
from chainstay.errors import (
    BackendError,
    InfeasibleBudgetError,
    InvalidProfileError,
    SolverLimitError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.problems import ChainProblem
from chainstay.problems.arguments import require_kind
from chainstay.problems.consistency import MethodResult, contradiction_error, require_consistent
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Scope, Solution
from chainstay.solve.budgets import Budget, budget_bytes
from chainstay.solve.common import MEASURED_PROFILE, resolve, timed_claim
from chainstay.timetable import Time
from chainstay.validation.certify import certify

_log = logging.getLogger(__name__)


def solve_chain(profile: ChainProfile, budget: Budget, method: Method | str = "auto") -> Solution:
    """Return the fastest schedule of a chain within a memory budget, checked by the simulator.

    Args:
        profile: Costs of the chain.
        budget: Bytes for the network's input, activations, saved tensors and gradients of
            activations together (parameters, their gradients and optimizer state are the
            caller's): an int, text such as ``"8GiB"``, or a share of what plain training
            needs, ``"50%"`` or ``0.5``.
        method: ``"dp"``, ``"mip"``, ``"cpsat"``, ``"auto"``, a settings object such as
            ``DP(slots=500)``, or any callable of the `Method` protocol.

    Returns:
        The schedule with its makespan, peak, and how sure it is to be optimal.

    Raises:
        InvalidProfileError: `profile` is not a `ChainProfile`.
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method.
        InfeasibleBudgetError: No schedule of the method's family fits;
            ``error.required`` is the least budget for which one does.
        SolverLimitError: The method ran out of time with nothing to show.
        BackendError: The method's solver is not installed, or failed.
        CertificateError: The method's claim is false, or the persistent optimum contradicts
            it: a bug, with all that is needed to report it in ``error.report``.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> solution = solve_chain(chain, 90, method="dp")
        >>> solution.makespan, solution.peak_bytes, solution.is_optimal
        (14, 90, True)
    """
    require_kind(profile, ChainProfile, needed=MEASURED_PROFILE)
    problem = ChainProblem(profile, budget_bytes(profile, budget))
    solver = resolve_method(method)
    name: str = getattr(solver, "__name__", str(solver))  # of a function, or of settings

    def ask() -> Claim:
        if isinstance(solver, CPSAT | MIP):
            return _warm_started_claim(solver, profile, problem.budget)
        return solver(profile, problem.budget)

    try:
        claim, seconds = timed_claim(ask, solver, Claim)
    except InfeasibleBudgetError as error:
        if error.required > problem.budget:
            raise
        refusal = MethodResult(method=name, required=error.required)
        reason = f"{name} says that nothing fits, and that {error.required} bytes are enough"
        raise contradiction_error(reason, problem, [refusal]) from error
    solution = certify_chain(problem, claim, method=name, solve_seconds=seconds)
    if not isinstance(solver, AutoChain | CPSAT | DP | MIP):
        _require_sound_bound(problem, claim, name)
    return solution


def _require_sound_bound(problem: ChainProblem, claim: Claim, method: str) -> None:
    """Compare a claim's bound with the persistent optimum under the strictest rules for discards.

    Nothing is known where it does not cover that.

    Raises:
        CertificateError: The persistent optimum is faster.
    """
    try:
        known, _ = _persistent_optimum(problem.profile, problem.budget, Discards.TABLE1)
    except InvalidProfileError as reason:  # sizes beyond the dynamic program's arithmetic
        _log.info("the bound of %s is not checked: %s", method, reason)
        return
    require_consistent(
        problem, (known, MethodResult(method=method, bound_scope=claim.scope, claim=claim))
    )


def certify_chain(
    problem: ChainProblem, claim: Claim, *, method: str, solve_seconds: float = 0.0
) -> Solution:
    """Return a claim as a solution, with the bound on all schedules.

    Raises:
        CertificateError: The claim is false, or the schedule faster than that bound.
    """
    profile, budget = problem.profile, problem.budget
    solution = certify(problem, claim, method=method, solve_seconds=solve_seconds)
    bound: Time = unrestricted_bound(profile, budget)
    if claim.scope == Scope(Family.ALL, Discards.FREE):
        bound = max(bound, solution.lower_bound)
    if bound > solution.makespan:
        reason = f"nothing is faster than {bound} ns, yet {method} has {claim.makespan} ns"
        raise contradiction_error(reason, problem, [MethodResult(method=method, claim=claim)])
    return replace(solution, unrestricted_bound=bound)


@dataclass(frozen=True, slots=True)
class AutoChain:
    """The dynamic program, and on short chains an exact solver after it.

    The persistent optimum is found in milliseconds and is mostly the optimum among all
    schedules. Up to `exact_stages` stages CP-SAT, or the MIP where that is missing, starts
    from it and proves or improves it. A solver that is not installed, that a chain is too
    large for, or that runs out of time is left out.

    Attributes:
        discards: The rules for discards, as for `DP`. Where stages have environments, or options
            keep several of them together, the dynamic program is that of Table 1's rules: its
            schedules are valid under all.
        exact_stages: Longest chain that the exact solvers are run on.
        time_limit_s: Time limit of each exact solver, in seconds.

    Raises:
        UnknownMethodError: There are no such rules.
    """

    discards: Discards | str = Discards.TABLE1
    exact_stages: int = 8
    time_limit_s: float = 10.0

    def __post_init__(self) -> None:
        DP(discards=self.discards)  # refuses rules that there are not

    def __str__(self) -> str:
        return "auto" if self.discards == Discards.TABLE1 else f"auto, {self.discards} discards"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the best claim of the dynamic program and, on a short chain, an exact solver."""
        known, claim = _persistent_optimum(profile, budget, self._rules_for(profile))
        if claim is None:
            assert known.required is not None, "the dynamic program always answers"
            wider = self._try_exact_solvers(profile, budget, known, hint)
            if wider is None:
                raise InfeasibleBudgetError(
                    budget=budget,
                    required=known.required,
                    stages=len(profile),
                    family=Family.PERSISTENT,
                )
            return wider
        if claim.family is Family.ALL:
            return claim
        wider = self._try_exact_solvers(profile, budget, known, claim.schedule)
        if wider is None or wider.makespan > claim.makespan:
            return claim
        is_proved = wider.makespan == wider.lower_bound
        return wider if is_proved or wider.makespan < claim.makespan else claim

    def _rules_for(self, profile: ChainProfile) -> Discards:
        """Return the rules that the dynamic program of this chain is asked for."""
        if profile.has_environments or not keeps_stages_apart(profile):
            return Discards.TABLE1
        return Discards(self.discards)

    def _try_exact_solvers(
        self, profile: ChainProfile, budget: int, known: MethodResult, hint: Schedule | None
    ) -> Claim | None:
        """Return the claim of the first exact solver that has one."""
        if len(profile) > self.exact_stages:
            return None
        solvers: tuple[type[CPSAT | MIP], ...] = (CPSAT, MIP)
        for solver in solvers:
            method = solver(discards=self.discards, time_limit_s=self.time_limit_s)
            try:
                return _cross_checked_claim(method, profile, budget, known, hint)
            except (BackendError, InvalidProfileError, SolverLimitError) as reason:
                _log.info("without %s: %s", method, reason)
        return None


_METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {"auto": AutoChain(), "cpsat": CPSAT(), "dp": DP(), "mip": MIP()}
)


def resolve_method(method: Method | str) -> Method:
    """Return the method of that name, or `method` itself.

    Raises:
        UnknownMethodError: There is no such method.
    """
    return resolve(method, _METHODS, example="DP(slots=500)", own=Method)


def _warm_started_claim(method: CPSAT | MIP, profile: ChainProfile, budget: int) -> Claim:
    """Return the claim of an exact solver that starts from the persistent optimum."""
    try:
        known, claim = _persistent_optimum(profile, budget, Discards(method.discards))
    except InvalidProfileError as reason:  # sizes beyond the dynamic program's arithmetic
        _log.info("%s without a start: %s", method, reason)
        return method(profile, budget)
    hint = claim.schedule if claim else None
    return _cross_checked_claim(method, profile, budget, known, hint)


def _persistent_optimum(
    profile: ChainProfile, budget: int, discards: Discards
) -> tuple[MethodResult, Claim | None]:
    """Return the result of the persistent dynamic program, checked, and its claim if all fits.

    Raises:
        InvalidProfileError: The sizes overflow exact 64-bit arithmetic.
        CertificateError: The claim of the dynamic program is false.
    """
    method, required = DP(discards=discards), None
    try:
        claim = method(profile, budget)
    except InfeasibleBudgetError as error:
        required = error.required
        claim = method(profile, required)
    certify(ChainProblem(profile, required or budget), claim, method=str(method))
    persistent = Scope(Family.PERSISTENT, discards)
    result = MethodResult(
        method=str(method),
        schedule_scope=persistent,
        bound_scope=persistent if required is not None else claim.scope,
        claim=None if required is not None else claim,
        required=required,
    )
    return result, None if required is not None else claim


def _cross_checked_claim(
    method: CPSAT | MIP,
    profile: ChainProfile,
    budget: int,
    known: MethodResult,
    hint: Schedule | None,
) -> Claim:
    """Return the claim of an exact solver, checked against the result that is `known`.

    Raises:
        CertificateError: One of the two is wrong.
    """
    problem = ChainProblem(profile, budget)
    scope = Scope(Family.SINGLE_SWEEP, Discards(method.discards))
    try:
        claim = method(profile, budget, hint=hint)
    except InfeasibleBudgetError as error:
        refusal = MethodResult(
            method=str(method), schedule_scope=scope, bound_scope=scope, required=error.required
        )
        require_consistent(problem, (known, refusal))
        raise
    certify(problem, claim, method=str(method))
    result = MethodResult(
        method=str(method), schedule_scope=scope, bound_scope=claim.scope, claim=claim
    )
    require_consistent(problem, (known, result))
    return claim
