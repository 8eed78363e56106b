"""Claims of `MIP` and `CPSAT` for chains: solve, decode, say how sure the answer is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from chainstay.errors import SolverLimitError
from chainstay.formulations.chain.claim_builder import ClaimBuilder
from chainstay.formulations.chain.formulation import build
from chainstay.formulations.integer_program import IntegerProgram, Key, SolverAnswer
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

Solve: TypeAlias = Callable[[IntegerProgram, Limits, frozenset[Key] | None], SolverAnswer]
"""`solve_by_highs` or `solve_by_cpsat`."""


def claim(
    profile: ChainProfile,
    budget: int,
    settings: SolverSettings,
    hint: Schedule | None,
    solve: Solve,
) -> Claim:
    """Return what `SolverSettings.__call__` promises, for these settings."""
    formulation = build(profile, budget, discards=settings.discards)
    start = None if hint is None else formulation.encode(hint)
    question = ClaimBuilder(
        profile=profile,
        budget=budget,
        discards=Discards(settings.discards),
        method=str(settings),
        hint=hint,
        has_start=start is not None,
    )
    answer = solve(formulation.program, settings.limits, start)
    if answer.status is TerminationStatus.INFEASIBLE:
        raise question.nothing_fits(lambda: minimum_budget(profile, settings, solve))
    found = None
    if answer.on is not None:
        # The program's own count, so that the simulator's replay checks the decoding, too.
        found = formulation.decode(answer.on), formulation.makespan(answer.objective)
    lower_bound = max(profile.least_time, formulation.makespan(answer.bound))
    return question.claim(answer.status, found, lower_bound)


def minimum_budget(profile: ChainProfile, settings: SolverSettings, solve: Solve) -> int:
    """Return the least budget, in bytes, within which the program has a schedule.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    formulation = build(profile, None, discards=settings.discards)
    answer = solve(formulation.program, settings.limits, None)
    least = answer.objective * formulation.phases.unit
    if answer.status is not TerminationStatus.OPTIMAL:
        known = "not known" if answer.on is None else f"at most {least} bytes"
        raise SolverLimitError(
            f"the least feasible budget of this {len(profile)}-stage chain is {known} after "
            f"{settings.time_limit_s:g} s. Raise time_limit_s, or use a dynamic program."
        )
    return least
