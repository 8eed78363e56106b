"""Replay a solver's claim and turn it into a certified solution; only its bound is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from chainstay.errors import InvalidScheduleError
from chainstay.problems import ChainProblem, JoinProblem, Problem
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.profiles import ChainProfile, Join
from chainstay.schedule import Schedule
from chainstay.solution import Claim, Solution
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.simulate import Replay, simulate

__all__ = ["certify", "certify_join"]


def certify(
    profile: ChainProfile, claim: Claim, *, budget: int, method: str, solve_seconds: float
) -> Solution:
    """Replay `claim` in the simulator and return it as a solution.

    Args:
        profile: The chain.
        claim: The schedule and bound that a solver returned.
        budget: Bytes that the schedule must fit in.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, has another makespan
            than claimed, or is faster than its own lower bound.
    """
    solution = _certified(
        ChainProblem(profile, budget),
        claim,
        partial(simulate, profile, discards=claim.discards),
        method,
    )
    return replace(solution, solve_seconds=solve_seconds)


def certify_join(  # noqa: PLR0913  # one solve has so many facts
    profile: Join,
    claim: Claim,
    *,
    keep: Sequence[bool],
    budget: int,
    method: str,
    solve_seconds: float,
) -> Solution:
    """Replay `claim` about a join in the simulator and return it as a solution.

    Args:
        profile: The join.
        claim: The schedule and bound that a solver returned.
        keep: For each branch, whether the gradient of its input stays until the end.
        budget: Bytes (slots of a `HomogeneousJoin`) that the schedule must fit in.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, has another makespan
            than claimed, or is faster than its own lower bound.
    """
    solution = _certified(
        JoinProblem(profile, budget, tuple(keep)),
        claim,
        partial(simulate_join, profile, keep=keep),
        method,
    )
    return replace(solution, solve_seconds=solve_seconds)


def _certified(
    problem: ChainProblem | JoinProblem,
    claim: Claim,
    replayed: Callable[[Schedule], Replay],
    method: str,
) -> Solution:
    try:
        replay = replayed(claim.schedule)
    except InvalidScheduleError as invalid:
        raise _refused(problem, claim, method, str(invalid)) from invalid
    if refusal := _difference(claim, replay.makespan, replay.peak_bytes, problem.budget):
        raise _refused(problem, claim, method, refusal)
    return Solution(
        schedule=claim.schedule,
        makespan=replay.makespan,
        peak_bytes=replay.peak_bytes,
        budget=problem.budget,
        lower_bound=max(claim.lower_bound, problem.profile.least_time),
        family=claim.family,
        discards=claim.discards,
        method=method,
        solve_seconds=0.0,
    )


def _difference(claim: Claim, makespan: int, peak_bytes: int, budget: int) -> str:
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


def _refused(problem: Problem, claim: Claim, method: str, refusal: str) -> Exception:
    statement = MethodResult(
        method=method, schedule_scope=claim.scope, bound_scope=claim.scope, claim=claim
    )
    return contradiction_error(f"{method}: {refusal}", problem, [statement])
