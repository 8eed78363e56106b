"""Solve a problem with recomputation and offloading: choose a method, run it, certify it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, cast

from chainstay.dp import DP
from chainstay.dp.hybrid import hybrid_bound
from chainstay.errors import UnknownMethodError
from chainstay.formulations import CPSAT, MIP
from chainstay.problems.arguments import require_kind
from chainstay.problems.hybrid import HybridClaim, HybridMethod, HybridProblem, HybridSolution
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Discards
from chainstay.solve.budgets import Budget, budget_bytes
from chainstay.solve.common import (
    MEASURED_PROFILE,
    claim_within_host_limit,
    limited_link,
    resolve,
)
from chainstay.solve.hybrid_auto import AutoHybrid
from chainstay.solve.hybrid_exact import IntegerProgramHybrid
from chainstay.solve.hybrid_pofo import Pofo
from chainstay.timetable import Transfers
from chainstay.validation.certify import certify_hybrid
from chainstay.validation.replay import replay_transfers

__all__ = ["AutoHybrid", "IntegerProgramHybrid", "Pofo", "certify_with_bound", "solve_hybrid"]


def solve_hybrid(  # noqa: PLR0913  # all by name
    profile: ChainProfile,
    budget: Budget,
    *,
    link: Link,
    method: HybridMethod | DP | MIP | CPSAT | str = "auto",
    transfers: Transfers | str = Transfers.INTEGRAL,
    host_budget: int | str | None = None,
) -> HybridSolution:
    """Return the fastest schedule found in a memory budget that recomputes and offloads.

    Args:
        profile: Costs of the chain; it has no skips.
        budget: Bytes on the device for the network's input, activations, saved tensors,
            gradients of activations and overheads: an int, text such as ``"8GiB"``, or a share
            of what plain training needs, ``"50%"`` or ``0.5``.
        link: The link to the host.
        method: ``"auto"``: the best of keeping all, recomputing only, offloading only, and
            both, improved by a constraint program on short chains; ``"dp"`` (or `DP` with its
            slots): both, by [POFO]; ``"cpsat"`` (or `CPSAT`): every schedule of a short chain, for
            integral transfers; ``"mip"`` (or `MIP`, by its time limit, threads and seed): the
            same integer program, which only CP-SAT solves; or a callable of `HybridMethod`.
        transfers: ``"integral"`` (what runs on machines) or ``"fractional"`` ([POFO]'s model).
        host_budget: Bytes that may be on the host at any moment, or text such as ``"8GiB"``;
            ``None``: the link's own capacity.

    Returns:
        The schedule with its makespan (an exact int or Fraction), peak and times; a bound
        on all schedules; and what persistent plans that may move parts of items take at least.

    Raises:
        InvalidProfileError: `profile`, `link` or `transfers` are none, or do not go together;
            or there are so many slots that their tables would not fit in memory.
        InvalidBudgetError: `budget` or `host_budget` is not a number of bytes.
        UnknownMethodError: There is no such method, or not for these transfers.
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        HostBudgetError: No plan found needs so little host memory; ``error.required`` is
            enough.
        SolverLimitError: The method found nothing, although something fits.
        BackendError: The method's solver is not installed, or failed.
        CertificateError: The method's claim is false: a bug, with all that is needed to report
            it in ``error.report``.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=4, backward_time=8, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> solution = solve_hybrid(chain, 100, link=Link(bandwidth=3), method="dp")
        >>> str(solution.schedule), solution.makespan, solution.is_optimal
        ('Oa0 Fa0 Ob0 Fa1 Fa2 Fa3 B3 Pb0 B2 B1 Pa0 B0', 52, False)
        >>> solution = solve_hybrid(
        ...     chain, 100, link=Link(bandwidth=3), method="dp", host_budget=25
        ... )
        >>> solution.makespan, solution.host_bytes
        (52, 10)
    """
    require_kind(profile, ChainProfile, needed=MEASURED_PROFILE)
    limited = limited_link(link, host_budget)
    size = budget_bytes(profile, budget)
    problem = HybridProblem(profile, size, limited, cast("Transfers", transfers))
    solver = _resolve_method(method, problem.transfers)
    problem.require_feasible()

    def host_bytes(unlimited: HybridProblem) -> int:
        claim = AutoHybrid(exact_stages=0)(unlimited)
        return replay_transfers(unlimited, claim).host_bytes

    claim, seconds = claim_within_host_limit(solver, problem, HybridClaim, host_bytes)
    return certify_with_bound(problem, claim, method=str(solver), solve_seconds=seconds)


def certify_with_bound(
    problem: HybridProblem, claim: HybridClaim, *, method: str, solve_seconds: float = 0.0
) -> HybridSolution:
    """Return a claim as a solution, with the bound on all schedules.

    Raises:
        CertificateError: The claim is false.
    """
    bound = hybrid_bound(problem.profile, problem.budget, problem.link)
    return certify_hybrid(problem, claim, bound=bound, method=method, solve_seconds=solve_seconds)


_METHODS: Final[Mapping[Transfers, Mapping[str, HybridMethod]]] = MappingProxyType(
    {
        Transfers.INTEGRAL: {
            "auto": AutoHybrid(),
            "dp": Pofo(),
            "cpsat": IntegerProgramHybrid(CPSAT()),
            "mip": IntegerProgramHybrid(CPSAT()),
        },
        Transfers.FRACTIONAL: {"auto": AutoHybrid(), "dp": Pofo()},
    }
)


def _resolve_method(
    method: HybridMethod | DP | MIP | CPSAT | str, transfers: Transfers
) -> HybridMethod:
    """Return the method of that name or with these settings, or `method` itself."""
    if isinstance(method, DP):
        if method != DP(slots=method.slots):
            raise UnknownMethodError(
                f"method is {str(method)!r}; where data may move, DP takes slots only"
            )
        return Pofo(slots=method.slots)
    if isinstance(method, MIP | CPSAT):
        if method.discards != Discards.TABLE1:
            raise UnknownMethodError(
                f"discards is {str(method.discards)!r}; where data may move, all may be dropped "
                "at any time, so leave it out"
            )
        if transfers is not Transfers.INTEGRAL:
            raise UnknownMethodError(
                f"{type(method).__name__} is for integral transfers here, not {transfers} ones; "
                "use method='dp'"
            )
        if isinstance(method, MIP):
            method = CPSAT(
                time_limit_s=method.time_limit_s, workers=method.threads, seed=method.seed
            )
        return IntegerProgramHybrid(method)
    which, example = f"for {transfers} transfers ", "DP(slots=50)"
    return resolve(method, _METHODS[transfers], which=which, example=example, own=HybridMethod)
