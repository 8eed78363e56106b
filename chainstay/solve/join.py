"""Solve a join: choose a method, run it, certify its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

from chainstay.baselines.join import keep_all_join
from chainstay.dp import DP
from chainstay.dp.join import claim_join
from chainstay.errors import UnknownMethodError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.join.claims import claim_by_phases
from chainstay.problems import JoinProblem
from chainstay.problems.arguments import require_kind
from chainstay.profiles import HomogeneousJoin, Join, JoinProfile, kept_gradients
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Solution
from chainstay.solve.budgets import Budget, budget_bytes
from chainstay.solve.common import resolve, timed_claim
from chainstay.validation.certify import certify
from chainstay.validation.join.simulate import simulate_join


class JoinMethod(Protocol):
    """A method that solves joins: your own callable, checked like ours.

    Raises:
        InfeasibleBudgetError: When called: no schedule of its family fits in the budget.
        SolverLimitError: When called: its limit was reached with nothing to show.
    """

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """Return a schedule of `profile` within `budget` that keeps these inputs' gradients."""
        ...


AnyJoinMethod: TypeAlias = DP | MIP | CPSAT | JoinMethod
"""Settings of one of our methods, or a callable of yours."""

_METHODS: Final[Mapping[str, AnyJoinMethod]] = MappingProxyType(
    {"auto": DP(), "cpsat": CPSAT(), "dp": DP(), "mip": MIP()}
)


def solve_join(
    profile: Join,
    budget: Budget,
    method: AnyJoinMethod | str = "dp",
    *,
    keep: Sequence[bool] | None = None,
) -> Solution:
    """Return the fastest schedule of a join within a memory budget, checked by the simulator.

    Args:
        profile: Costs of the join: a `JoinProfile`, or the unit-slot model of
            `JoinProfile.homogeneous`.
        budget: Bytes for inputs, activations, saved tensors and gradients of activations
            together: an int, text such as ``"8GiB"``, or a share of what plain training
            needs, ``"50%"`` or ``0.5``. In the unit-slot model, slots.
        method: ``"dp"`` (the default, also ``"auto"``), ``"mip"``, ``"cpsat"``, a settings
            object such as ``DP(slots=500)`` or ``MIP(time_limit_s=600)``, or any callable of
            the `JoinMethod` protocol.
        keep: For each branch, whether the gradient of its input stays in memory until the
            end, as it must where the input is computed from something that learns; the
            vector b of [BHPS20]. None: they are all dropped as soon as they are there.

    Returns:
        The schedule with its makespan, peak, and how sure it is to be optimal. The dynamic
        program is exact for the unit-slot model (among schedules that turn once, as the paper
        assumes), and among canonical persistent schedules otherwise.

    Raises:
        InvalidProfileError: `profile` is no join, `keep` does not fit it, or it is too large
            for the method.
        InvalidBudgetError: `budget` is not a positive number of bytes.
        UnknownMethodError: There is no such method for joins.
        InfeasibleBudgetError: No schedule of the method's family fits;
            ``error.required`` is the least budget for which one does.
        SolverLimitError: The method ran out of time with nothing to show.
        BackendError: The method's solver is not installed, or failed.
        CertificateError: The method's claim is false: a bug.

    Example:
        >>> join = JoinProfile.homogeneous((4, 10, 12), forward_time=1, backward_time=1,
        ...                                turn_time=1)
        >>> solution = solve_join(join, 9)
        >>> solution.makespan, solution.peak_bytes, solution.is_optimal
        (74, 9, True)
    """
    needed = "a JoinProfile; chains on their own are for solve_chain"
    require_kind(profile, HomogeneousJoin, JoinProfile, needed=needed)
    flags = kept_gradients(profile, keep)
    size = budget_bytes(profile, budget)
    solver = resolve(method, _METHODS, example="DP(slots=500)", own=JoinMethod)
    claim, seconds = timed_claim(
        lambda: join_claim(solver, profile, size, keep=flags), solver, Claim
    )
    problem = JoinProblem(profile, size, flags)
    return certify(problem, claim, method=str(solver), solve_seconds=seconds)


def join_claim(
    method: AnyJoinMethod, profile: Join, budget: int, *, keep: tuple[bool, ...]
) -> Claim:
    """Run `method` and return its claim, which is not certified yet.

    Raises:
        UnknownMethodError: The method has settings that joins do not know.
    """
    if isinstance(method, DP | MIP | CPSAT) and method.discards == Discards.FREE:
        raise UnknownMethodError(
            f"{method}: joins are solved with a tape's discards only; leave 'discards' out"
        )
    if isinstance(method, DP):
        if method.persistence != "strong":
            raise UnknownMethodError(
                f"persistence is {method.persistence!r}; joins have a program for 'strong' only"
            )
        claim = claim_join(profile, budget, keep=keep, slots=method.slots)
        return _claim_or_plain(claim, profile, budget, keep)
    if isinstance(method, MIP | CPSAT):
        return claim_by_phases(method, profile, budget, keep=keep)
    return method(profile, budget, keep=keep)


def _claim_or_plain(claim: Claim, profile: Join, budget: int, keep: tuple[bool, ...]) -> Claim:
    """Return `claim`, or plain training where that is faster: it may only just fit, unrounded."""
    if isinstance(profile, HomogeneousJoin) or claim.makespan == claim.lower_bound:
        return claim
    schedule = keep_all_join(profile)
    plain = simulate_join(profile, schedule, keep=keep)
    if plain.peak_bytes > budget or plain.makespan >= claim.makespan:
        return claim
    is_least = plain.makespan == profile.least_time
    return replace(
        claim,
        schedule=schedule,
        makespan=plain.makespan,
        lower_bound=plain.makespan if is_least else min(claim.lower_bound, plain.makespan),
        family=Family.ALL if is_least else claim.family,
    )
