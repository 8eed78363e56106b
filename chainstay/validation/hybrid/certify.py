"""Replay a claim about recomputation with offloading and turn it into a certified solution."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.problems.hybrid import HybridClaim, HybridProblem, HybridSolution
from chainstay.problems.offload import transfer_contradiction_error
from chainstay.schedule import Discards
from chainstay.solution import Family
from chainstay.timetable import Time, Timetable, Transfers
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.simulate import simulate_hybrid


def replay_hybrid(problem: HybridProblem, claim: HybridClaim) -> TransferReplay:
    """Simulate the schedule of a claim under the problem's transfers.

    Raises:
        InvalidScheduleError: The schedule is invalid, or exceeds the budget.
    """
    if problem.transfers is Transfers.INTEGRAL:
        return simulate_hybrid(
            problem.profile, claim.schedule, budget=problem.budget, link=problem.link
        )
    makespan = fractional_makespan(
        problem.profile, claim.schedule, budget=problem.budget, link=problem.link
    )
    return TransferReplay(makespan=makespan, peak_bytes=problem.budget, timetable=Timetable((), ()))


def certify_hybrid(
    problem: HybridProblem, claim: HybridClaim, *, bound: Time, method: str, solve_seconds: float
) -> HybridSolution:
    """Simulate `claim` and return it as a solution.

    Args:
        problem: The problem that was solved.
        claim: The schedule and bounds that a solver returned.
        bound: A lower bound on all schedules from elsewhere, in ns.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, takes longer than
            claimed, or less than a bound.
    """
    try:
        replayed = replay_hybrid(problem, claim)
    except InvalidScheduleError as invalid:
        raise transfer_contradiction_error(
            f"{method}: {invalid}", problem, {method: claim}
        ) from invalid
    bound = max(bound, claim.unrestricted_bound)
    if claim.family is Family.ALL:
        bound = max(bound, claim.lower_bound)
    lower_bound = max(claim.lower_bound, bound)
    refusal = ""
    if replayed.makespan > claim.makespan:
        refusal = f"the schedule takes {replayed.makespan}, the solver claimed {claim.makespan}"
    elif replayed.makespan < lower_bound:
        refusal = f"the schedule takes {replayed.makespan}, less than the bound of {lower_bound}"
    if refusal:
        raise transfer_contradiction_error(f"{method}: {refusal}", problem, {method: claim})
    return HybridSolution(
        schedule=claim.schedule,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
        budget=problem.budget,
        lower_bound=lower_bound,
        unrestricted_bound=bound,
        family=claim.family,
        discards=Discards.FREE,
        method=method,
        solve_seconds=solve_seconds,
        link=problem.link,
        transfers=problem.transfers,
        timetable=replayed.timetable,
        host_bytes=replayed.host_bytes,
        fractional_makespan=claim.fractional_makespan,
        fractional_bound=claim.fractional_bound,
        alternatives=claim.alternatives,
    )
