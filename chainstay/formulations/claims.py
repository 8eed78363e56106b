"""From a formulation to a claim: solve, check in integers, say how sure the answer is."""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic
from typing import Final

from chainstay.formulations import backends
from chainstay.formulations.answers import Question, makespan_of, unproved
from chainstay.formulations.backends import Outcome
from chainstay.formulations.chain import ChainFormulation, build
from chainstay.formulations.mip import MIP
from chainstay.formulations.scaling import size_divisor
from chainstay.formulations.settings import Limits, Verdict
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

__all__ = ["claim", "minimum_budget"]

_GAP: Final = 0.5
"""Of a unit, below which nothing is left to find: objectives are whole units. The other
half is kept for the solver's rounding."""
_RELATIVE_ERROR: Final = 1e-9
"""Of a bound that a solver reports, taken off before the bound is rounded up."""
_MEMORY_ERROR: Final = 2.0**-20
"""Of a bound on memory, in units and relative, within which it proves nothing."""


def claim(profile: ChainProfile, budget: int, method: MIP, hint: Schedule | None) -> Claim:
    """What `MIP.__call__` promises."""
    discards = Discards(method.discards)
    limits = Limits(time_s=method.time_limit_s, threads=method.threads, seed=method.seed)
    formulation = build(profile, budget, discards=discards)
    question = Question(
        profile=profile,
        budget=budget,
        discards=discards,
        method=str(method),
        hint=hint,
        has_start=hint is not None and formulation.encode(hint),
    )
    outcome = _solve(formulation, limits, hint if question.has_start else None)
    if outcome.verdict is Verdict.INFEASIBLE:
        raise question.nothing_fits(lambda: minimum_budget(profile, discards, limits=limits))
    found = None
    if outcome.has_values:
        schedule = formulation.decode()
        found = schedule, makespan_of(profile, schedule)
    return question.claim(outcome.verdict, found, _lower_bound(formulation, outcome.bound))


def minimum_budget(
    profile: ChainProfile,
    discards: Discards | str = Discards.TABLE1,
    *,
    limits: Limits = Limits(time_s=60.0),  # noqa: B008 - immutable
) -> int:
    """The least budget, in bytes, within which the model has a schedule.

    The size of a schedule found is counted in whole bytes. That nothing needs less follows
    from the solver's bound where its rounding errors are small beside the divisor of all
    sizes, and else from the model of the next smaller budget, which has no schedule.

    Args:
        profile: The chain.
        discards: Which operations may remove data.
        limits: For the solver.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    deadline = monotonic() + limits.time_s
    formulation = build(profile, None, discards=discards)
    outcome = backends.solve(formulation.model, limits, gap=_GAP * formulation.memory_step)
    if not outcome.has_values:
        raise unproved(profile, "not known", limits)
    least = formulation.peak_bytes()
    if outcome.verdict is not Verdict.OPTIMAL:
        raise unproved(profile, f"at most {least} bytes", limits)
    step = size_divisor(profile)
    is_proved = _least_memory(formulation, outcome.bound) > least - step
    while least and not is_proved:
        below = build(profile, least - step, discards=discards)
        below.model.forward_time.set_value(0)  # any schedule will do
        outcome = _solve(below, replace(limits, time_s=deadline - monotonic()), None)
        if outcome.verdict is Verdict.LIMIT:
            raise unproved(profile, f"at most {least} bytes", limits)
        is_proved = not outcome.has_values
        least = least if is_proved else below.peak_bytes()
    return least


def _least_memory(formulation: ChainFormulation, bound: float) -> float:
    """Bytes that no schedule can do without, by a solver's bound less its rounding errors."""
    return (bound - _MEMORY_ERROR * max(1.0, abs(bound))) * formulation.phases.unit


def _solve(formulation: ChainFormulation, limits: Limits, start: Schedule | None) -> Outcome:
    """Solve until the answer keeps the budget in integers, too, or time is out.

    From `start`, a schedule that the model contains, if there is one.

    HiGHS works with tolerances: with sizes of many digits it may accept an overrun of a
    few bytes. Such a choice is forbidden by name and the search goes on.
    """
    deadline = monotonic() + limits.time_s
    while limits.time_s > 0:
        has_start = start is not None and formulation.encode(start)
        outcome = backends.solve(formulation.model, limits, gap=_GAP, warm_start=has_start)
        if not outcome.has_values or not formulation.forbid_overruns():
            return outcome
        limits = replace(limits, time_s=deadline - monotonic())
    return Outcome(verdict=Verdict.LIMIT, has_values=False, bound=-math.inf)


def _lower_bound(formulation: ChainFormulation, bound: float) -> int:
    """A solver's bound as a makespan in ns: rounding errors off, then up to whole units."""
    profile, unit = formulation.phases.profile, formulation.time_unit
    if not math.isfinite(bound):
        return profile.least_time
    units = math.ceil(bound - _RELATIVE_ERROR * max(1.0, abs(bound)))
    backward = sum(stage.backward_time for stage in profile.stages)
    return max(profile.least_time, backward + unit * units)
