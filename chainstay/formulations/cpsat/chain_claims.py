"""Claims of `CPSAT` for chains: solve, decode, say how sure the answer is."""

from __future__ import annotations

from chainstay.formulations.claim_builder import ClaimBuilder, unproved
from chainstay.formulations.cpsat.chain import build
from chainstay.formulations.cpsat.ortools_backend import solve
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim


def claim(
    profile: ChainProfile, budget: int, settings: SolverSettings, hint: Schedule | None
) -> Claim:
    """Return what `CPSAT.__call__` promises, for these settings."""
    discards, limits = Discards(settings.discards), settings.limits
    program = build(profile, budget, discards=discards)
    question = ClaimBuilder(
        profile=profile,
        budget=budget,
        discards=discards,
        method=str(settings),
        hint=hint,
        has_start=hint is not None and program.start_from(hint, limits),
    )
    outcome = solve(program.model, limits)
    if outcome.status is TerminationStatus.INFEASIBLE:
        raise question.nothing_fits(lambda: minimum_budget(profile, discards, limits=limits))
    found = None
    if outcome.values is not None:
        # The solver's own count, so that the simulator's replay checks the decoding, too.
        found = program.decode(outcome), program.makespan(outcome.objective)
    lower_bound = max(profile.least_time, program.makespan(outcome.bound or 0))
    return question.claim(outcome.status, found, lower_bound)


def minimum_budget(
    profile: ChainProfile,
    discards: Discards = Discards.TABLE1,
    *,
    limits: Limits = Limits(time_s=60.0),  # noqa: B008  # immutable
) -> int:
    """Return the least budget, in bytes, within which the program has a schedule.

    Args:
        profile: The chain.
        discards: Which operations may remove data.
        limits: Limits of the solver.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    program = build(profile, None, discards=discards)
    outcome = solve(program.model, limits)
    least = outcome.objective * program.size_unit
    if outcome.status is not TerminationStatus.OPTIMAL:
        known = "not known" if outcome.values is None else f"at most {least} bytes"
        raise unproved(profile, known, limits)
    return least
