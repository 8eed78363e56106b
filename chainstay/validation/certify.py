"""Replay a solver's claim and turn it into a certified solution; only its bound is trusted."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.problems import ChainProblem, JoinProblem
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.solution import Claim, Solution
from chainstay.timetable import Time
from chainstay.validation.replay import replay


def certify(
    problem: ChainProblem | JoinProblem, claim: Claim, *, method: str, solve_seconds: float = 0.0
) -> Solution:
    """Replay `claim` about a chain or a join in the simulator and return it as a solution.

    Args:
        problem: The problem that was solved.
        claim: The schedule and bound that a solver returned.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, has another makespan
            than claimed, or is faster than its own lower bound.
    """
    try:
        replayed = replay(problem, claim)
    except InvalidScheduleError as invalid:
        raise _refused(problem, claim, method, str(invalid)) from invalid
    if refusal := _difference(claim, replayed.makespan, replayed.peak_bytes, problem.budget):
        raise _refused(problem, claim, method, refusal)
    return Solution(
        schedule=claim.schedule,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
        budget=problem.budget,
        lower_bound=max(claim.lower_bound, problem.profile.least_time),
        family=claim.family,
        discards=claim.discards,
        method=method,
        solve_seconds=solve_seconds,
    )


def _difference(claim: Claim, makespan: Time, peak_bytes: int, budget: int) -> str:
    """Return how the replay contradicts `claim`, or an empty text if it does not."""
    if peak_bytes > budget:
        return (
            f"the schedule needs {peak_bytes} bytes, {peak_bytes - budget} more than the "
            f"budget of {budget}"
        )
    if makespan != claim.makespan:
        return f"the schedule takes {makespan} ns, the solver claimed {claim.makespan}"
    if makespan < claim.lower_bound:
        return (
            f"the schedule takes {makespan} ns, less than the claimed lower bound "
            f"of {claim.lower_bound}"
        )
    return ""


def _refused(
    problem: ChainProblem | JoinProblem, claim: Claim, method: str, refusal: str
) -> Exception:
    statement = MethodResult(
        method=method, schedule_scope=claim.scope, bound_scope=claim.scope, claim=claim
    )
    return contradiction_error(f"{method}: {refusal}", problem, [statement])
