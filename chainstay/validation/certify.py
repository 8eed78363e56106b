"""From a solver's claim to a solution: replay it, and believe no number but the bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from chainstay.errors import InvalidScheduleError
from chainstay.evidence import Profile, Statement, contradiction
from chainstay.profiles import ChainProfile, Join
from chainstay.schedule import Schedule
from chainstay.solution import Claim, Solution
from chainstay.validation.join import simulate_join
from chainstay.validation.simulate import Replay, simulate

__all__ = ["certify", "certify_join"]


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
    solution = _certified(
        profile, claim, partial(simulate, profile, discards=claim.discards), budget, method
    )
    return replace(solution, solve_seconds=solve_seconds)


def certify_join(  # noqa: PLR0913 - one solve has so many facts
    profile: Join,
    claim: Claim,
    *,
    keep: Sequence[bool],
    budget: int,
    method: str,
    solve_seconds: float,
) -> Solution:
    """The same for a join, with the gradients of inputs that it is to keep.

    Raises:
        CertificateError: As `certify`.
    """
    solution = _certified(
        profile, claim, partial(simulate_join, profile, keep=keep), budget, method
    )
    return replace(solution, solve_seconds=solve_seconds)


def _certified(
    profile: ChainProfile | Join,
    claim: Claim,
    replayed: Callable[[Schedule], Replay],
    budget: int,
    method: str,
) -> Solution:
    try:
        replay = replayed(claim.schedule)
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
        solve_seconds=0.0,
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


def _refused(profile: Profile, claim: Claim, budget: int, method: str, refusal: str) -> Exception:
    statement = Statement(method=method, finds=claim.scope, covers=claim.scope, claim=claim)
    return contradiction(f"{method}: {refusal}", profile, budget, [statement])
