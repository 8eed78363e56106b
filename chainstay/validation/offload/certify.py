"""Replay a claim about offloading and turn it into a certified solution."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.problems.offload import (
    OffloadClaim,
    OffloadProblem,
    OffloadSolution,
    transfer_contradiction_error,
)
from chainstay.solution import Family
from chainstay.timetable import Time, Transfers
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.offload.search import proposition3_bound
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.offload.simulate_timetable import simulate_timetable


def replay_offload(problem: OffloadProblem, claim: OffloadClaim) -> TransferReplay:
    """Simulate the schedule or the timetable of a claim under the problem's transfers.

    Raises:
        InvalidScheduleError: The schedule is invalid; or transfers are not integral, and there
            is no timetable or it is not that of the schedule.
    """
    if problem.transfers is Transfers.INTEGRAL:
        return simulate_offload(
            problem.profile, claim.schedule, budget=problem.budget, link=problem.link
        )
    if claim.timetable is None:
        raise InvalidScheduleError(f"{problem.transfers} transfers need a timetable")
    found = simulate_timetable(
        problem.profile, claim.timetable, link=problem.link, transfers=problem.transfers
    )
    if claim.timetable.program() != claim.schedule:
        raise InvalidScheduleError("the timetable is not that of the schedule")
    return found


def certify_offload(
    problem: OffloadProblem,
    claim: OffloadClaim,
    *,
    bound: Time = 0,
    method: str,
    solve_seconds: float,
) -> OffloadSolution:
    """Simulate `claim` and return it as a solution.

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
    try:
        replayed = replay_offload(problem, claim)
    except InvalidScheduleError as invalid:
        raise transfer_contradiction_error(
            f"{method}: {invalid}", problem, {method: claim}
        ) from invalid
    bound = max(
        bound,
        proposition3_bound(problem.profile, budget=problem.budget, link=problem.link),
        claim.lower_bound if claim.family is Family.ALL else 0,
    )
    if refusal := _difference(problem, claim, replayed, bound):
        raise transfer_contradiction_error(f"{method}: {refusal}", problem, {method: claim})
    return OffloadSolution(
        schedule=claim.schedule,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
        budget=problem.budget,
        lower_bound=max(claim.lower_bound, bound),
        unrestricted_bound=bound,
        family=claim.family,
        method=method,
        solve_seconds=solve_seconds,
        link=problem.link,
        transfers=problem.transfers,
        timetable=replayed.timetable,
        host_bytes=replayed.host_bytes,
    )


def _difference(
    problem: OffloadProblem, claim: OffloadClaim, replayed: TransferReplay, bound: Time
) -> str:
    """Return how the simulation contradicts `claim`, or an empty text if it does not."""
    if (excess := replayed.peak_bytes - problem.budget) > 0:
        return f"the schedule needs {excess} bytes more than the budget of {problem.budget}"
    # The simulator starts everything as early as it can, which a solver that ran out of time
    # may not have seen; a timetable says when.
    is_slower = replayed.makespan > claim.makespan
    if is_slower or (claim.timetable is not None and replayed.makespan < claim.makespan):
        return f"the schedule takes {replayed.makespan}, the solver claimed {claim.makespan}"
    if replayed.makespan < (bound := max(bound, claim.lower_bound)):
        return f"the schedule takes {replayed.makespan}, less than the lower bound of {bound}"
    return ""
