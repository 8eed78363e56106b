"""Claims of `MIP` for chains: solve, check in integers, say how sure the answer is."""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic
from typing import Final

from chainstay.formulations import highs_backend as backends
from chainstay.formulations.chain.formulation import ChainFormulation, build
from chainstay.formulations.claim_builder import ClaimBuilder, unproved
from chainstay.formulations.highs_backend import HighsResult
from chainstay.formulations.memory_units import size_divisor
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

_GAP: Final = 0.5
"""Units of the objective below which nothing is left to find: objectives are whole units. The
other half of a unit is kept for the solver's rounding.
"""
_RELATIVE_ERROR: Final = 1e-9
"""Share of a bound that is taken off before the bound is rounded up."""
_MEMORY_ERROR: Final = 2.0**-20
"""Error of a bound on memory, in units and relative, within which it proves nothing."""


def claim(
    profile: ChainProfile, budget: int, settings: SolverSettings, hint: Schedule | None
) -> Claim:
    """Return what `MIP.__call__` promises, for these settings."""
    discards, limits = Discards(settings.discards), settings.limits
    formulation = build(profile, budget, discards=discards)
    question = ClaimBuilder(
        profile=profile,
        budget=budget,
        discards=discards,
        method=str(settings),
        hint=hint,
        has_start=hint is not None and formulation.encode(hint),
    )
    outcome = _solve(formulation, limits, hint if question.has_start else None)
    if outcome.status is TerminationStatus.INFEASIBLE:
        raise question.nothing_fits(lambda: minimum_budget(profile, discards, limits=limits))
    found = None
    if outcome.has_values:
        schedule = formulation.decode()
        found = schedule, time_of(profile, schedule)
    return question.claim(outcome.status, found, _lower_bound(formulation, outcome.bound))


def minimum_budget(
    profile: ChainProfile,
    discards: Discards | str = Discards.TABLE1,
    *,
    limits: Limits = Limits(time_s=60.0),  # noqa: B008  # immutable
) -> int:
    """Return the least budget, in bytes, within which the model has a schedule.

    The size of a schedule found is counted in whole bytes. That nothing needs less follows
    from the solver's bound where its rounding errors are small beside the divisor of all
    sizes, and else from the model of the next smaller budget, which has no schedule.

    Raises:
        SolverLimitError: Time ran out before the least budget was proved.
    """
    deadline = monotonic() + limits.time_s
    formulation = build(profile, None, discards=discards)
    outcome = backends.solve(formulation.model, limits, gap=_GAP * formulation.memory_step)
    if not outcome.has_values:
        raise unproved(profile, "not known", limits)
    least = formulation.peak_bytes()
    if outcome.status is not TerminationStatus.OPTIMAL:
        raise unproved(profile, f"at most {least} bytes", limits)
    step = size_divisor(profile)
    is_proved = _least_memory(formulation, outcome.bound) > least - step
    while least and not is_proved:
        below = build(profile, least - step, discards=discards)
        below.model.forward_time.set_value(0)  # any schedule will do
        outcome = _solve(below, replace(limits, time_s=deadline - monotonic()), None)
        if outcome.status is TerminationStatus.LIMIT:
            raise unproved(profile, f"at most {least} bytes", limits)
        is_proved = not outcome.has_values
        least = least if is_proved else below.peak_bytes()
    return least


def _least_memory(formulation: ChainFormulation, bound: float) -> float:
    """Return the bytes that no schedule can do without, by a bound less its rounding errors."""
    return (bound - _MEMORY_ERROR * max(1.0, abs(bound))) * formulation.phases.unit


def _solve(formulation: ChainFormulation, limits: Limits, start: Schedule | None) -> HighsResult:
    """Solve until the answer keeps the budget in integers, too, or time is out.

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
    return HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=-math.inf)


def _lower_bound(formulation: ChainFormulation, bound: float) -> int:
    """Return a solver's bound as a makespan in ns: rounding errors off, then up to whole units."""
    records, unit = formulation.phases.records, formulation.time_unit
    profile = records.profile
    if not math.isfinite(bound):
        return profile.least_time
    units = math.ceil(bound - _RELATIVE_ERROR * max(1.0, abs(bound)))
    return max(profile.least_time, records.least_backward_time + unit * units)
