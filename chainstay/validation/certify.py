"""From a solver's claim to a solution: replay it, and believe no number but the bound."""

from __future__ import annotations

from chainstay.errors import InvalidScheduleError
from chainstay.evidence import Statement, contradiction
from chainstay.profiles import ChainProfile
from chainstay.solution import Claim, Solution
from chainstay.validation.simulate import simulate

__all__ = ["certify"]


def certify(
    profile: ChainProfile, claim: Claim, *, budget: int, method: str, solve_seconds: float
) -> Solution:
    """The solution that `claim` amounts to once the simulator has replayed it.

    Args:
        profile: The chain.
        claim: A solver's word.
        budget: Bytes that the schedule must fit in.
        method: Text of the solver and its settings.
        solve_seconds: Wall time of the solver.

    Raises:
        CertificateError: The schedule is invalid, exceeds the budget, has another makespan
            than claimed, or is faster than its own lower bound.
    """
    try:
        replay = simulate(profile, claim.schedule, discards=claim.discards)
    except InvalidScheduleError as invalid:
        raise _refused(profile, claim, budget, method, str(invalid)) from invalid
    if refusal := _difference(claim, replay.makespan, replay.peak_bytes, budget):
        raise _refused(profile, claim, budget, method, refusal)
    return Solution(
        schedule=claim.schedule,
        makespan=replay.makespan,
        peak_bytes=replay.peak_bytes,
        budget=budget,
        lower_bound=max(claim.lower_bound, profile.least_time),
        family=claim.family,
        discards=claim.discards,
        method=method,
        solve_seconds=solve_seconds,
    )


def _difference(claim: Claim, makespan: int, peak_bytes: int, budget: int) -> str:
    """What of `claim` the replay contradicts; empty if nothing."""
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
    profile: ChainProfile, claim: Claim, budget: int, method: str, refusal: str
) -> Exception:
    statement = Statement(method=method, finds=claim.scope, covers=claim.scope, claim=claim)
    return contradiction(f"{method}: {refusal}", profile, budget, [statement])
