"""From a claim about offloading to a solution: replay it, and believe no number but the bound."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.offloading import OffloadClaim, OffloadProblem, OffloadSolution, contradiction
from chainstay.solution import Family
from chainstay.timetable import Time, Transfers
from chainstay.validation.events import TransferReplay
from chainstay.validation.fluid import simulate_timetable
from chainstay.validation.transfer_search import proposition3_bound
from chainstay.validation.transfers import simulate_offload

__all__ = ["certify_offload", "replay"]


def replay(problem: OffloadProblem, claim: OffloadClaim) -> TransferReplay:
    """What the referee of the problem's transfers says of a claim.

    Raises:
        InvalidScheduleError: It is no schedule; or transfers are not integral, and there is no
            timetable or it is not that of the schedule.
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
    """The solution that `claim` amounts to once the referee has replayed it.

    Args:
        problem: What was asked.
        claim: A solver's word.
        bound: On all schedules, from elsewhere.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, takes another time than
            claimed, or less than a bound.
    """
    try:
        replayed = replay(problem, claim)
    except InvalidScheduleError as invalid:
        raise contradiction(f"{method}: {invalid}", problem, {method: claim}) from invalid
    bound = max(
        bound,
        proposition3_bound(problem.profile, budget=problem.budget, link=problem.link),
        claim.lower_bound if claim.family is Family.ALL else 0,
    )
    if refusal := _difference(problem, claim, replayed, bound):
        raise contradiction(f"{method}: {refusal}", problem, {method: claim})
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
        held_bytes=replayed.held_bytes,
    )


def _difference(
    problem: OffloadProblem, claim: OffloadClaim, replayed: TransferReplay, bound: Time
) -> str:
    """What of `claim` the replay contradicts; empty if nothing."""
    if (excess := replayed.peak_bytes - problem.budget) > 0:
        return f"the schedule needs {excess} bytes more than the budget of {problem.budget}"
    # A program list starts everything as early as it can, which a solver that ran out of time
    # may not have seen; a timetable says when.
    is_slower = replayed.makespan > claim.makespan
    if is_slower or (claim.timetable is not None and replayed.makespan < claim.makespan):
        return f"the schedule takes {replayed.makespan}, the solver claimed {claim.makespan}"
    if replayed.makespan < (bound := max(bound, claim.lower_bound)):
        return f"the schedule takes {replayed.makespan}, less than the lower bound of {bound}"
    return ""
