"""Solve a chain: choose a method, run it, certify its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from chainstay.dp import DP, unrestricted_bound
from chainstay.errors import (
    BackendError,
    InfeasibleBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.problems.consistency import MethodResult, contradiction_error, require_consistent
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Scope, Solution
from chainstay.solve.budgets import parse_budget
from chainstay.timetable import Time
from chainstay.validation.certify import certify
from chainstay.validation.simulate import simulate

__all__ = ["AutoChain", "budget_bytes", "resolve_method", "solve_chain"]

_log = logging.getLogger(__name__)


def solve_chain(
    profile: ChainProfile, budget: int | str, method: Method | str = "auto"
) -> Solution:
    """Return the fastest schedule of a chain within a memory budget, checked by the simulator.

    Args:
        profile: Costs of the chain.
        budget: Bytes for the network's input, activations, saved tensors and gradients of
            activations together (parameters, their gradients and optimizer state are the
            caller's): an int, text such as ``"8GiB"``, or a share of what plain training
            needs, such as ``"50%"``.
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
    if not isinstance(profile, ChainProfile):
        raise InvalidProfileError(
            f"profile is a {type(profile).__name__}, must be a ChainProfile; of a measured "
            "chain, pass measured.profile"
        )
    budget = budget_bytes(profile, budget)
    solver = resolve_method(method)
    start = time.perf_counter()
    if isinstance(solver, CPSAT | MIP):
        claim = _warm_started_claim(solver, profile, budget)
    else:
        claim = solver(profile, budget)
    seconds = time.perf_counter() - start
    if not isinstance(claim, Claim):
        raise UnknownMethodError(
            f"method {solver} returned a {type(claim).__name__}, must return a Claim"
        )
    solution = certify(profile, claim, budget=budget, method=str(solver), solve_seconds=seconds)
    return _with_unrestricted_bound(profile, claim, solution)


def budget_bytes(profile: ChainProfile, budget: int | str) -> int:
    """Return `budget` in bytes; a percentage is of the peak of plain training, rounded down.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one.
    """
    return parse_budget(budget, lambda: _keep_all_peak(profile))


@dataclass(frozen=True, slots=True)
class AutoChain:
    """The dynamic program, and on short chains an exact solver after it.

    The persistent optimum is found in milliseconds and is mostly the optimum among all
    schedules. Up to `exact_stages` stages CP-SAT, or the MIP where that is missing, starts
    from it and proves or improves it. A solver that is not installed, that a chain is too
    large for, or that runs out of time is left out.

    Attributes:
        discards: The rules for discards, as for `DP`.
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
        known = _persistent_optimum(profile, budget, Discards(self.discards))
        if known.claim is None:
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
        claim = known.claim
        if claim.family is Family.ALL:
            return claim
        wider = self._try_exact_solvers(profile, budget, known, claim.schedule)
        if wider is None or wider.makespan > claim.makespan:
            return claim
        is_proved = wider.makespan == wider.lower_bound
        return wider if is_proved or wider.makespan < claim.makespan else claim

    def _try_exact_solvers(
        self, profile: ChainProfile, budget: int, known: MethodResult, hint: Schedule | None
    ) -> Claim | None:
        """Return the claim of the first exact solver that has one."""
        if len(profile) > self.exact_stages:
            return None
        rules, limit = self.discards, self.time_limit_s
        for method in (
            CPSAT(discards=rules, time_limit_s=limit),
            MIP(discards=rules, time_limit_s=limit),
        ):
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
    if isinstance(method, str) and method in _METHODS:
        return _METHODS[method]
    if isinstance(method, str | type) or not callable(method):
        known = ", ".join(map(repr, _METHODS))
        raise UnknownMethodError(
            f"method is {method!r}; choose {known}, a settings object such as DP(slots=500), "
            "or a callable of the Method protocol"
        )
    return method


def _with_unrestricted_bound(profile: ChainProfile, claim: Claim, solution: Solution) -> Solution:
    """Return `solution` with the bound on all schedules.

    Raises:
        CertificateError: The solution is faster than that bound.
    """
    bound: Time = unrestricted_bound(profile, solution.budget)
    if claim.scope == Scope(Family.ALL, Discards.FREE):
        bound = max(bound, solution.lower_bound)
    if bound > solution.makespan:
        reason = f"nothing is faster than {bound} ns, yet {solution.method} has {claim.makespan} ns"
        result = MethodResult(
            method=solution.method, schedule_scope=claim.scope, bound_scope=claim.scope, claim=claim
        )
        raise contradiction_error(reason, profile, solution.budget, [result])
    return replace(solution, unrestricted_bound=bound)


def _warm_started_claim(method: CPSAT | MIP, profile: ChainProfile, budget: int) -> Claim:
    """Return the claim of an exact solver that starts from the persistent optimum."""
    try:
        known = _persistent_optimum(profile, budget, Discards(method.discards))
    except InvalidProfileError as reason:  # sizes beyond the dynamic program's arithmetic
        _log.info("%s without a start: %s", method, reason)
        return method(profile, budget)
    hint = known.claim.schedule if known.claim else None
    return _cross_checked_claim(method, profile, budget, known, hint)


def _persistent_optimum(profile: ChainProfile, budget: int, discards: Discards) -> MethodResult:
    """Return the result of the persistent dynamic program, checked by the simulator.

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
    certify(profile, claim, budget=required or budget, method=str(method), solve_seconds=0.0)
    persistent = Scope(Family.PERSISTENT, discards)
    if required is not None:
        return MethodResult(
            method=str(method), schedule_scope=persistent, bound_scope=persistent, required=required
        )
    return MethodResult(
        method=str(method), schedule_scope=persistent, bound_scope=claim.scope, claim=claim
    )


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
    scope = Scope(Family.SINGLE_SWEEP, Discards(method.discards))
    try:
        claim = method(profile, budget, hint=hint)
    except InfeasibleBudgetError as error:
        refusal = MethodResult(
            method=str(method), schedule_scope=scope, bound_scope=scope, required=error.required
        )
        require_consistent(profile, budget, (known, refusal))
        raise
    certify(profile, claim, budget=budget, method=str(method), solve_seconds=0.0)
    result = MethodResult(
        method=str(method), schedule_scope=scope, bound_scope=claim.scope, claim=claim
    )
    require_consistent(profile, budget, (known, result))
    return claim


def _keep_all_peak(profile: ChainProfile) -> int:
    return simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
