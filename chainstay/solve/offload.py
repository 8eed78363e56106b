"""Solve an offloading problem: choose a method, run it, certify its answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, cast

from chainstay.baselines.offload import OrderedNoWait, best_ordered
from chainstay.dp import DP
from chainstay.dp.offload import Algorithm1, Greedy, fractional_optimum, greedy_set, promising_sets
from chainstay.errors import BackendError, InvalidProfileError, SolverLimitError, UnknownMethodError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.cpsat import offload as cpsat
from chainstay.formulations.offload import claims as mip_claims
from chainstay.problems.arguments import require_kind
from chainstay.problems.offload import (
    OffloadClaim,
    OffloadMethod,
    OffloadProblem,
    OffloadSolution,
)
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Discards
from chainstay.solution import Family
from chainstay.solve.budgets import Budget, budget_bytes
from chainstay.solve.common import (
    IntegerProgramMethod,
    claim_within_host_limit,
    limited_link,
    resolve,
)
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Time, Transfers
from chainstay.validation.certify import certify_offload
from chainstay.validation.replay import replay_transfers

_log = logging.getLogger(__name__)


def solve_offload(  # noqa: PLR0913  # all by name
    profile: OffloadProfile,
    budget: Budget,
    *,
    link: Link,
    method: OffloadMethod | DP | MIP | CPSAT | str = "auto",
    transfers: Transfers | str = Transfers.INTEGRAL,
    host_budget: int | str | None = None,
) -> OffloadSolution:
    """Return the fastest schedule in a memory budget that offloads whole activations.

    Args:
        profile: Costs of the chain.
        budget: Bytes on the device for activations, gradients of activations and overheads:
            an int, text such as ``"8GiB"``, or a share of what plain training needs, ``"50%"``
            or ``0.5``.
        link: The link to the host.
        method: ``"auto"``, ``"heuristics"``, ``"greedy"``, ``"dp"``, ``"cpsat"``, ``"mip"``; the
            settings objects `DP`, `CPSAT` and `MIP`; or a callable of `OffloadMethod`.
        transfers: ``"integral"`` (what runs on machines), ``"interruptible"``, or
            ``"fractional"``.
        host_budget: Bytes that may be on the host at any moment, or text such as ``"8GiB"``;
            ``None``: the link's own capacity.

    Returns:
        The schedule with its makespan (an exact int or Fraction), peak, times, and how
        sure it is to be optimal among schedules of these transfers.

    Raises:
        InvalidProfileError: `profile`, `link` or `transfers` are none, or the method does not
            know such links or transfers.
        InvalidBudgetError: `budget` or `host_budget` is not a number of bytes.
        UnknownMethodError: There is no such method.
        InfeasibleBudgetError: Not one stage at a time fits; ``error.required`` is the least
            budget for which all of them do.
        HostBudgetError: No plan found needs so little host memory; ``error.required`` is
            enough.
        SolverLimitError: The method ran out of time or room with nothing to show.
        BackendError: The method's solver is not installed, or failed.
        CertificateError: The method's claim is false: a bug, with all that is needed to report
            it in ``error.report``.

    Example:
        >>> profile = OffloadProfile(activations=(2, 3, 4), gradients=(0, 0, 0),
        ...     forward_overheads=(0, 1), backward_overheads=(0, 0),
        ...     forward_times=(1, 2), backward_times=(2, 3))
        >>> solution = solve_offload(profile, 8, link=Link(bandwidth=2))
        >>> str(solution.schedule), solution.makespan, solution.peak_bytes, solution.is_optimal
        ('Oa0 Fa0 Fa1 B1 Pa0 B0', 9, 8, True)
    """
    needed = "an OffloadProfile; of a chain, pass OffloadProfile.from_chain(chain)"
    require_kind(profile, OffloadProfile, needed=needed)
    size = budget_bytes(profile, budget)
    limited = limited_link(link, host_budget)
    problem = OffloadProblem(profile, size, limited, cast("Transfers", transfers))
    solver = _resolve_method(method, problem.transfers)
    problem.require_feasible()

    def host_bytes(unlimited: OffloadProblem) -> int:
        return replay_transfers(unlimited, _heuristic_claim(unlimited)).host_bytes

    claim, seconds = claim_within_host_limit(solver, problem, OffloadClaim, host_bytes)
    bound = fractional_optimum(problem)
    return certify_offload(problem, claim, bound=bound, method=str(solver), solve_seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ActivationSetMethod:
    """A rule that chooses activations to move, run by ordered no-wait: what [BES20] evaluates.

    Attributes:
        name: Name of the rule, for people.
        sets: Function from a problem to sets of activations, of which the best is moved.
    """

    name: str
    sets: Callable[[OffloadProblem], list[frozenset[int]]]

    def __str__(self) -> str:
        return self.name

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        ordered = OrderedNoWait.from_problem(problem)
        best = best_ordered(ordered, self.sets(problem))
        plan = None if best is None else ordered.plan(best[1])
        if plan is None:
            raise SolverLimitError(
                f"{self} moves more than {problem.link.capacity} bytes of host memory have room "
                "for; use method='auto'"
            )
        return OffloadClaim(
            schedule=plan.schedule,
            makespan=plan.makespan,
            lower_bound=fractional_optimum(problem),
            family=Family.ALL,
        )


@dataclass(frozen=True, slots=True)
class IntegerProgramOffload(IntegerProgramMethod):
    """An `IntegerProgramMethod` that starts from the best of the heuristics, or of Algorithm 1."""

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the claim of the solver, alone or from a quick solution."""
        if not self.alone:
            try:
                known = _heuristic_claim(problem)
            except SolverLimitError as reason:  # the host has too little room for quick plans
                _log.info("%s without a start: %s", self, reason)
            else:
                return self.improve(problem, known)
        problem.require_feasible()
        return self._solve(problem, None, 0)

    def improve(self, problem: OffloadProblem, known: OffloadClaim) -> OffloadClaim:
        """Return a better claim than `known`, or `known` with a better bound."""
        replayed, least = replay_transfers(problem, known), fractional_optimum(problem)
        known = replace(known, makespan=replayed.makespan, timetable=replayed.timetable)
        if known.makespan == least:
            return replace(known, lower_bound=least, family=Family.ALL)
        claim = self._solve(problem, known, least)
        self.require_not_below(claim.lower_bound, problem, claim, known)
        return claim

    def _solve(
        self, problem: OffloadProblem, known: OffloadClaim | None, least: Time
    ) -> OffloadClaim:
        claim = cpsat.claim if isinstance(self.settings, CPSAT) else mip_claims.claim
        return claim(problem, self.settings, known=known, least=least)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoOffload:
    """Quick methods first, an exact solver after them where something is left to gain.

    Attributes:
        exact_stages: Longest chain that an exact solver is run on.
        time_limit_s: Time limit of the exact solver, in seconds.
    """

    exact_stages: int = 40
    time_limit_s: float = 10.0

    def __str__(self) -> str:
        return "auto"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the best claim of the quick methods and, on a short chain, an exact solver."""
        if problem.transfers is Transfers.FRACTIONAL:
            return Greedy()(problem)
        stages = len(problem.profile)
        try:
            claim = _heuristic_claim(problem)
        except SolverLimitError:
            if stages > self.exact_stages:
                raise
            return IntegerProgramOffload(CPSAT(time_limit_s=self.time_limit_s), alone=True)(problem)
        is_proved = claim.family is Family.ALL and claim.makespan == claim.lower_bound
        if is_proved or stages > self.exact_stages:
            return claim
        settings: MIP | CPSAT = CPSAT(time_limit_s=self.time_limit_s)
        if problem.transfers is Transfers.INTERRUPTIBLE:
            settings = MIP(time_limit_s=self.time_limit_s)
        try:
            return IntegerProgramOffload(settings).improve(problem, claim)
        except (BackendError, InvalidProfileError, SolverLimitError) as reason:
            _log.info("without %s: %s", settings, reason)
            return claim


_SHORT: Final = 16
"""Stages up to which Algorithm 1 without slots has few states."""


def _heuristic_claim(problem: OffloadProblem) -> OffloadClaim:
    """Return a good answer in at most about a second."""
    if problem.transfers is Transfers.INTEGRAL:
        return Heuristics()(problem)
    if problem.transfers is Transfers.FRACTIONAL:
        return Greedy()(problem)
    if len(problem.profile) <= _SHORT:
        return Algorithm1()(problem)
    return Algorithm1(slots=500)(problem)


_METHODS: Final[Mapping[Transfers, Mapping[str, OffloadMethod]]] = MappingProxyType(
    {
        Transfers.INTEGRAL: {
            "auto": AutoOffload(),
            "heuristics": Heuristics(),
            "greedy": _ActivationSetMethod(
                name="greedy", sets=lambda problem: [greedy_set(problem)]
            ),
            "dp": _ActivationSetMethod(name="dp, 500 slots", sets=promising_sets),
            "cpsat": IntegerProgramOffload(CPSAT()),
            "mip": IntegerProgramOffload(MIP()),
        },
        Transfers.INTERRUPTIBLE: {
            "auto": AutoOffload(),
            "dp": Algorithm1(),
            "mip": IntegerProgramOffload(MIP()),
        },
        Transfers.FRACTIONAL: {
            "auto": AutoOffload(),
            "greedy": Greedy(),
            "dp": Greedy(),
            "mip": IntegerProgramOffload(MIP()),
        },
    }
)


def _resolve_method(
    method: OffloadMethod | DP | MIP | CPSAT | str, transfers: Transfers
) -> OffloadMethod:
    """Return the method of that name or with these settings, or `method` itself."""
    if not isinstance(method, DP | MIP | CPSAT):
        which, example = f"for {transfers} transfers ", "CPSAT(time_limit_s=10)"
        return resolve(method, _METHODS[transfers], which=which, example=example, own=OffloadMethod)
    if method.discards != Discards.TABLE1:
        raise UnknownMethodError(
            f"discards is {str(method.discards)!r}, and offloading recomputes nothing; leave it out"
        )
    if isinstance(method, CPSAT) and transfers is not Transfers.INTEGRAL:
        raise UnknownMethodError(f"CPSAT is for integral transfers, not {transfers} ones; use MIP")
    if isinstance(method, MIP | CPSAT):
        return IntegerProgramOffload(method)
    if method.persistence != "strong":
        raise UnknownMethodError(
            f"persistence is {method.persistence!r}, and offloading recomputes nothing; leave it "
            "out"
        )
    if transfers is Transfers.FRACTIONAL:
        return Greedy()
    if transfers is Transfers.INTERRUPTIBLE:
        return Algorithm1(slots=method.slots)
    slots = method.slots or 500
    return _ActivationSetMethod(
        name=f"dp, {slots} slots", sets=lambda problem: promising_sets(problem, slots)
    )
