"""Claims of `CPSAT` for recomputing and offloading."""

from __future__ import annotations

from dataclasses import replace

from chainstay.formulations.cpsat.hybrid import build
from chainstay.formulations.cpsat.hybrid_codec import decode, start_from
from chainstay.formulations.cpsat.hybrid_incremental import (
    Incumbent,
    WarmStart,
    solve_incrementally,
)
from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.cpsat.ortools_backend import solve
from chainstay.formulations.settings import SolverSettings, TerminationStatus
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.timetable import Time, exact

__all__ = ["claim"]


def claim(
    problem: HybridProblem,
    settings: SolverSettings,
    *,
    known: WarmStart | None = None,
    least: Time = 0,
) -> HybridClaim:
    """Return the fastest schedule that CP-SAT finds, and what it proves.

    Args:
        problem: Feasible; its transfers are integral.
        settings: The settings; the time limit is for all models together.
        known: A schedule to start from.
        least: A makespan that no answer is below.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest model.
        BackendError: OR-Tools is missing, or CP-SAT failed.
        InvalidProfileError: The sizes add up to more than 2**53.
    """

    def solved(incumbent: Incumbent, model_size: ModelSize, seconds: float) -> bool:
        program = build(problem, model_size, known=incumbent.makespan, least=incumbent.bound)
        if known is not None:
            start_from(program, known.schedule, known.timetable)
        limits = replace(settings.limits, time_s=seconds)
        outcome = solve(program.model, limits)
        if outcome.values is not None:
            incumbent.add_schedule(
                decode(program, outcome), exact(program.to_time(outcome.objective))
            )
        if outcome.status is TerminationStatus.INFEASIBLE:
            incumbent.add_bound(model_size, incumbent.makespan)
        elif outcome.bound is not None:
            incumbent.add_bound(model_size, exact(program.bound(outcome.bound)))
        return outcome.status is not TerminationStatus.LIMIT

    return solve_incrementally(problem, settings, solved, known=known, least=least)
