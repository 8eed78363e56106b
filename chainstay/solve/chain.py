"""The front door of the solvers of chains: choose a method, ask it, certify its answer."""

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
from chainstay.evidence import Statement, confront, contradiction
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Scope, Solution
from chainstay.solve.budgets import size_of
from chainstay.timetable import Time
from chainstay.validation.certify import certify
from chainstay.validation.simulate import simulate

__all__ = ["Auto", "budget_bytes", "method_of", "solve_chain"]

_log = logging.getLogger(__name__)


def solve_chain(
    profile: ChainProfile, budget: int | str, method: Method | str = "auto"
) -> Solution:
    """The fastest schedule of a chain within a memory budget, replayed by the referee.

    Args:
        profile: What the chain costs.
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
    solver = method_of(method)
    start = time.perf_counter()
    if isinstance(solver, CPSAT | MIP):
        claim = _started(solver, profile, budget)
    else:
        claim = solver(profile, budget)
    seconds = time.perf_counter() - start
    if not isinstance(claim, Claim):
        raise UnknownMethodError(
            f"method {solver} returned a {type(claim).__name__}, must return a Claim"
        )
    solution = certify(profile, claim, budget=budget, method=str(solver), solve_seconds=seconds)
    return _bounded(profile, claim, solution)


def budget_bytes(profile: ChainProfile, budget: int | str) -> int:
    """`budget` in bytes; a percentage is of the peak of plain training, rounded down.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one.
    """
    return size_of(budget, lambda: _keep_all_peak(profile))


@dataclass(frozen=True, slots=True)
class Auto:
    """The dynamic program, and on short chains an exact solver after it.

    The persistent optimum is found in milliseconds and is mostly the optimum among all
    schedules. Up to `exact_stages` stages CP-SAT, or the MIP where that is missing, starts
    from it and proves or improves it. A solver that is not installed, that a chain is too
    large for, or that runs out of time is left out.

    Attributes:
        discards: The rules for discards, as for `DP`.
        exact_stages: Longest chain that the exact solvers are asked about.
        time_limit_s: For each of them, in seconds.

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
        """As `Method`."""
        known = _persistent_optimum(profile, budget, Discards(self.discards))
        if known.claim is None:
            assert known.required is not None, "the dynamic program always answers"
            wider = self._ask_exact_solvers(profile, budget, known, hint)
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
        wider = self._ask_exact_solvers(profile, budget, known, claim.schedule)
        if wider is None or wider.makespan > claim.makespan:
            return claim
        is_proved = wider.makespan == wider.lower_bound
        return wider if is_proved or wider.makespan < claim.makespan else claim

    def _ask_exact_solvers(
        self, profile: ChainProfile, budget: int, known: Statement, hint: Schedule | None
    ) -> Claim | None:
        """The claim of the first solver that has one."""
        if len(profile) > self.exact_stages:
            return None
        rules, limit = self.discards, self.time_limit_s
        for method in (
            CPSAT(discards=rules, time_limit_s=limit),
            MIP(discards=rules, time_limit_s=limit),
        ):
            try:
                return _confronted(method, profile, budget, known, hint)
            except (BackendError, InvalidProfileError, SolverLimitError) as reason:
                _log.info("without %s: %s", method, reason)
        return None


_METHODS: Final[Mapping[str, Method]] = MappingProxyType(
    {"auto": Auto(), "cpsat": CPSAT(), "dp": DP(), "mip": MIP()}
)


def method_of(method: Method | str) -> Method:
    """The method of that name, or `method` itself.

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


def _bounded(profile: ChainProfile, claim: Claim, solution: Solution) -> Solution:
    """`solution` with the bound on all schedules.

    Raises:
        CertificateError: It is faster than that.
    """
    bound: Time = unrestricted_bound(profile, solution.budget)
    if claim.scope == Scope(Family.ALL, Discards.FREE):
        bound = max(bound, solution.lower_bound)
    if bound > solution.makespan:
        reason = f"nothing is faster than {bound} ns, yet {solution.method} has {claim.makespan} ns"
        said = Statement(method=solution.method, finds=claim.scope, covers=claim.scope, claim=claim)
        raise contradiction(reason, profile, solution.budget, [said])
    return replace(solution, unrestricted_bound=bound)


def _started(method: CPSAT | MIP, profile: ChainProfile, budget: int) -> Claim:
    """The claim of an exact solver that starts from the persistent optimum."""
    try:
        known = _persistent_optimum(profile, budget, Discards(method.discards))
    except InvalidProfileError as reason:  # sizes beyond the dynamic program's arithmetic
        _log.info("%s without a start: %s", method, reason)
        return method(profile, budget)
    hint = known.claim.schedule if known.claim else None
    return _confronted(method, profile, budget, known, hint)


def _persistent_optimum(profile: ChainProfile, budget: int, discards: Discards) -> Statement:
    """What the persistent dynamic program says, replayed by the referee.

    Raises:
        InvalidProfileError: The sizes overflow exact 64-bit arithmetic.
        CertificateError: It is false.
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
        return Statement(method=str(method), finds=persistent, covers=persistent, required=required)
    return Statement(method=str(method), finds=persistent, covers=claim.scope, claim=claim)


def _confronted(
    method: CPSAT | MIP,
    profile: ChainProfile,
    budget: int,
    known: Statement,
    hint: Schedule | None,
) -> Claim:
    """The claim of an exact solver, which what is `known` does not contradict.

    Raises:
        CertificateError: One of the two is wrong.
    """
    finds = Scope(Family.SINGLE_SWEEP, Discards(method.discards))
    try:
        claim = method(profile, budget, hint=hint)
    except InfeasibleBudgetError as error:
        refusal = Statement(method=str(method), finds=finds, covers=finds, required=error.required)
        confront(profile, budget, (known, refusal))
        raise
    certify(profile, claim, budget=budget, method=str(method), solve_seconds=0.0)
    said = Statement(method=str(method), finds=finds, covers=claim.scope, claim=claim)
    confront(profile, budget, (known, said))
    return claim


def _keep_all_peak(profile: ChainProfile) -> int:
    return simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
