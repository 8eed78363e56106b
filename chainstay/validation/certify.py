"""Replay a solver's claim and turn it into a certified solution; only its bounds are trusted."""

from __future__ import annotations

from typing import Any

from chainstay.errors import InvalidScheduleError
from chainstay.problems import ChainProblem, HybridProblem, JoinProblem, OffloadProblem
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.problems.hybrid import HybridClaim, HybridSolution
from chainstay.problems.offload import OffloadClaim, OffloadSolution, transfer_contradiction_error
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Solution
from chainstay.timetable import Time
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.offload.search import proposition3_bound
from chainstay.validation.replay import replay, replay_transfers


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


def certify_offload(
    problem: OffloadProblem,
    claim: OffloadClaim,
    *,
    bound: Time = 0,
    method: str,
    solve_seconds: float,
) -> OffloadSolution:
    """Replay `claim` about offloading and return it as a solution.

    Args:
        problem: The problem that was solved.
        claim: The schedule and bound that a solver returned.
        bound: A lower bound on all schedules from elsewhere, in ns.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, takes another time than
            claimed, or less than a bound.
    """
    paper = proposition3_bound(problem.profile, budget=problem.budget, link=problem.link)
    return OffloadSolution(**_certified(problem, claim, max(bound, paper), method, solve_seconds))


def certify_hybrid(
    problem: HybridProblem, claim: HybridClaim, *, bound: Time, method: str, solve_seconds: float
) -> HybridSolution:
    """Replay `claim` about recomputing and offloading and return it as a solution.

    Arguments and errors are those of `certify_offload`.
    """
    bound = max(bound, claim.unrestricted_bound)
    return HybridSolution(
        **_certified(problem, claim, bound, method, solve_seconds),
        discards=Discards.FREE,
        fractional_makespan=claim.fractional_makespan,
        fractional_bound=claim.fractional_bound,
        alternatives=claim.alternatives,
    )


def _certified(
    problem: OffloadProblem | HybridProblem,
    claim: OffloadClaim,
    bound: Time,
    method: str,
    solve_seconds: float,
) -> dict[str, Any]:
    """Replay a claim about transfers and return the fields of an `OffloadSolution`."""
    try:
        replayed = replay_transfers(problem, claim)
    except InvalidScheduleError as invalid:
        raise transfer_contradiction_error(
            f"{method}: {invalid}", problem, {method: claim}
        ) from invalid
    if claim.family is Family.ALL:
        bound = max(bound, claim.lower_bound)
    lower_bound = max(claim.lower_bound, bound)
    if refusal := _transfers_difference(claim, replayed, problem.budget, lower_bound):
        raise transfer_contradiction_error(f"{method}: {refusal}", problem, {method: claim})
    return {
        "schedule": claim.schedule,
        "makespan": replayed.makespan,
        "peak_bytes": replayed.peak_bytes,
        "budget": problem.budget,
        "lower_bound": lower_bound,
        "unrestricted_bound": bound,
        "family": claim.family,
        "method": method,
        "solve_seconds": solve_seconds,
        "link": problem.link,
        "transfers": problem.transfers,
        "timetable": replayed.timetable,
        "host_bytes": replayed.host_bytes,
    }


def _transfers_difference(
    claim: OffloadClaim, replayed: TransferReplay, budget: int, lower_bound: Time
) -> str:
    """Return how the replay contradicts `claim`, or an empty text if it does not."""
    if (excess := replayed.peak_bytes - budget) > 0:
        return f"the schedule needs {excess} bytes more than the budget of {budget}"
    # The simulator starts everything as early as it can, which a solver that ran out of time
    # may not have seen; a timetable says when.
    is_slower = replayed.makespan > claim.makespan
    if is_slower or (claim.timetable is not None and replayed.makespan < claim.makespan):
        return f"the schedule takes {replayed.makespan}, the solver claimed {claim.makespan}"
    if replayed.makespan < lower_bound:
        return f"the schedule takes {replayed.makespan}, less than the lower bound of {lower_bound}"
    return ""
