"""Claims of `MIP` for offloading: solve, decode, say how sure the answer is."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Final

from chainstay.errors import InvalidProfileError, SolverLimitError
from chainstay.formulations import highs_backend as backends
from chainstay.formulations.highs_backend import HighsResult
from chainstay.formulations.offload import formulation as offload
from chainstay.formulations.offload import interruptible
from chainstay.formulations.pyomo_types import Model, pyo
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.problems.offload import OffloadClaim, OffloadProblem, transfer_contradiction_error
from chainstay.solution import Family
from chainstay.timetable import Time, Transfers, exact

_GAP: Final = 0.5
"""Units of the objective, where it is whole, below which nothing is left to find."""
_FLUID_GAP: Final = 1e-6
"""Units of other objectives: vertices of these models differ by more than this."""
_RELATIVE_ERROR: Final = 1e-7
"""Share of a bound of HiGHS, which computes in floats, that is taken off before it is trusted."""
_LARGEST_BELIEVED: Final = 10**5
"""Units of an amount up to which proofs are trusted; with millions beside ones they were wrong."""


def claim(
    problem: OffloadProblem,
    settings: SolverSettings,
    *,
    known: OffloadClaim | None = None,
    least: Time = 0,
) -> OffloadClaim:
    """Return the fastest schedule that the problem's model has.

    Args:
        problem: Feasible; if its transfers are not integral, over a half-duplex link without
            latency.
        settings: The settings.
        known: An answer to return if time runs out with nothing faster.
        least: A makespan that no answer is below.

    Returns:
        The claim, proved in whole units for integral transfers and to a millionth of a unit for
        others. Where amounts are so large that HiGHS is not trusted, nothing is proved.

    Raises:
        SolverLimitError: Time ran out with nothing to show, nothing fits on the host, or the
            solver's numbers are no fractions of a moderate denominator.
        BackendError: The solver is missing or failed.
        CertificateError: The solver says that nothing fits.
        InvalidProfileError: Other transfers than integral ones over another link.
    """
    if problem.transfers is not Transfers.INTEGRAL and problem.link.is_full_duplex:
        raise InvalidProfileError(
            f"{problem.transfers} transfers are solved over half-duplex links, not over "
            f"{problem.link}; use duplex='half', or transfers='integral', which allows all links"
        )
    solve = _integral if problem.transfers is Transfers.INTEGRAL else _fluid
    found, bound = solve(problem, settings.limits, None if known is None else known.makespan)
    bound = max(least, bound)
    if found is None and known is not None:
        found = replace(known, lower_bound=0, family=Family.ALL)
    if found is None:
        raise SolverLimitError(
            f"{settings} found no schedule of this {len(problem.profile)}-stage chain in time; "
            "raise time_limit_s, or use method='cpsat' or 'auto'",
            best_bound=math.ceil(bound),
        )
    return replace(found, lower_bound=max(found.lower_bound, min(bound, found.makespan)))


def _solved(problem: OffloadProblem, model: Model, limits: Limits, gap: float) -> HighsResult:
    """Solve a model, which has an answer.

    Raises:
        SolverLimitError: Nothing fits on a limited host.
        CertificateError: The solver says that nothing fits.
    """
    outcome = backends.solve(model, limits, gap=gap)
    if outcome.status is TerminationStatus.INFEASIBLE:
        if problem.link.capacity is not None:
            raise SolverLimitError("the MIP: nothing fits with so little room on the host")
        raise transfer_contradiction_error("the MIP says that nothing fits", problem, {"mip": None})
    return outcome


def _integral(
    problem: OffloadProblem, limits: Limits, makespan: Time | None
) -> tuple[OffloadClaim | None, Time]:
    """Return the answer and bound for whole transfers."""
    formulation = offload.build(problem, known=makespan)
    outcome = _solved(problem, formulation.model, limits, _GAP)
    unit = Fraction(formulation.unit, problem.link.ticks)
    is_trusted = _is_within_accuracy(problem, formulation.unit) and math.isfinite(outcome.bound)
    units = math.ceil(outcome.bound - _bound_error(outcome)) if is_trusted else 0
    if not outcome.has_values:
        return None, exact(unit * units)
    found = exact(unit * round(pyo.value(formulation.model.makespan)))
    is_proved = outcome.status is TerminationStatus.OPTIMAL and is_trusted
    schedule = formulation.decode()
    bound = found if is_proved else exact(unit * units)
    return (
        OffloadClaim(schedule=schedule, makespan=found, lower_bound=bound, family=Family.ALL),
        bound,
    )


def _fluid(
    problem: OffloadProblem, limits: Limits, makespan: Time | None
) -> tuple[OffloadClaim | None, Time]:
    """Return the answer and bound for transfers that may be interrupted, or move parts."""
    parts = problem.transfers is Transfers.FRACTIONAL
    formulation = interruptible.build(problem, parts=parts, known=makespan)
    outcome = _solved(problem, formulation.model, limits, _FLUID_GAP)
    unit, least = Fraction(formulation.unit, problem.link.ticks), problem.profile.least_time
    is_trusted = _is_within_accuracy(problem, formulation.unit) and math.isfinite(outcome.bound)
    idle = max(0.0, outcome.bound - _bound_error(outcome)) if is_trusted else 0.0
    bound = least + Fraction(idle) * unit
    timetable = formulation.decode() if outcome.has_values else None
    if timetable is None:
        return None, bound
    found = exact(Fraction(timetable.starts[-1] + problem.profile.backward_times[0]))
    is_close = abs(float((found - least) / unit) - pyo.value(formulation.model.idle)) < 1e-3
    is_proved = outcome.status is TerminationStatus.OPTIMAL and is_close and is_trusted
    return (
        OffloadClaim(
            schedule=timetable.program(),
            makespan=found,
            lower_bound=found if is_proved else min(bound, found),
            family=Family.ALL,
            timetable=timetable,
        ),
        bound,
    )


def _is_within_accuracy(problem: OffloadProblem, unit: int) -> bool:
    """Return whether HiGHS's proofs about amounts of this size are trusted."""
    profile, link = problem.profile, problem.link
    sizes = (*profile.activations, *profile.gradients)
    times = (*profile.forward_times, *profile.backward_times)
    amounts = (*map(link.transfer_ticks, sizes), *(time * link.ticks for time in times))
    return max(amounts, default=0) <= unit * _LARGEST_BELIEVED


def _bound_error(outcome: HighsResult) -> float:
    """Return by how much the bound of a result may be off."""
    return _RELATIVE_ERROR * max(1.0, abs(outcome.bound))
