"""From a constraint program to a claim: solve, read, say how sure the answer is."""

from __future__ import annotations

from chainstay.formulations.answers import Question, unproved
from chainstay.formulations.cpsat.binding import solve
from chainstay.formulations.cpsat.chain import ChainProgram, build
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.settings import Limits, Verdict
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

__all__ = ["claim", "minimum_budget"]


def claim(profile: ChainProfile, budget: int, method: CPSAT, hint: Schedule | None) -> Claim:
    """What `CPSAT.__call__` promises."""
    discards = Discards(method.discards)
    limits = Limits(time_s=method.time_limit_s, threads=method.workers, seed=method.seed)
    program = build(profile, budget, discards=discards)
    question = Question(
        profile=profile,
        budget=budget,
        discards=discards,
        method=str(method),
        hint=hint,
        has_start=hint is not None and program.start_from(hint, limits),
    )
    outcome = solve(program.model, limits)
    if outcome.verdict is Verdict.INFEASIBLE:
        raise question.nothing_fits(lambda: minimum_budget(profile, discards, limits=limits))
    found = None
    if outcome.values is not None:
        # The solver's own count, so that the referee's replay checks the decoding, too.
        found = program.decode(outcome), _makespan(program, outcome.objective)
    lower_bound = max(profile.least_time, _makespan(program, outcome.bound or 0))
    return question.claim(outcome.verdict, found, lower_bound)


def minimum_budget(
    profile: ChainProfile,
    discards: Discards = Discards.TABLE1,
    *,
    limits: Limits = Limits(time_s=60.0),  # noqa: B008 - immutable
) -> int:
    """The least budget, in bytes, within which the program has a schedule.

    Args:
        profile: The chain.
        discards: Which operations may remove data.
        limits: For the solver.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    program = build(profile, None, discards=discards)
    outcome = solve(program.model, limits)
    least = outcome.objective * program.size_unit
    if outcome.verdict is not Verdict.OPTIMAL:
        known = "not known" if outcome.values is None else f"at most {least} bytes"
        raise unproved(profile, known, limits)
    return least


def _makespan(program: ChainProgram, objective: int) -> int:
    """The makespan in ns that an objective in units of forward time stands for."""
    stages = program.moments.profile.stages
    return sum(stage.backward_time for stage in stages) + program.time_unit * objective
