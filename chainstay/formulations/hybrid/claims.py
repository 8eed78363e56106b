"""Claims of `MIP` for recomputing and offloading."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Final

from chainstay.formulations import highs_backend as backends
from chainstay.formulations.hybrid import formulation as hybrid
from chainstay.formulations.hybrid.incremental import Incumbent, WarmStart, solve_incrementally
from chainstay.formulations.hybrid.truncation import ModelSize, item_bytes, items_of
from chainstay.formulations.pyomo_types import pyo
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.formulations.tolerances import bound_error, is_within_accuracy
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.timetable import Time, exact

__all__ = ["claim"]

_GAP: Final = 0.5
"""Units of the objective below which nothing is left to find: objectives are whole units."""


def claim(
    problem: HybridProblem,
    settings: SolverSettings,
    *,
    known: WarmStart | None = None,
    least: Time = 0,
) -> HybridClaim:
    """Return the fastest schedule that the problem's models have, and what they prove.

    Args:
        problem: Feasible; its transfers are integral.
        settings: The settings; the time limit is for all models together.
        known: A schedule to return if nothing better is found; slower ones are not looked for.
        least: A makespan that no answer is below.

    Returns:
        The claim; where amounts are so large that HiGHS is not trusted, nothing is proved.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest model.
        BackendError: The solver is missing or failed.
    """

    def solved(incumbent: Incumbent, model_size: ModelSize, seconds: float) -> bool:
        limits = replace(settings.limits, time_s=seconds)
        return _solved(incumbent, model_size, limits)

    return solve_incrementally(problem, settings, solved, known=known, least=least)


def _solved(incumbent: Incumbent, model_size: ModelSize, limits: Limits) -> bool:
    """Solve one model for `incumbent`; return whether that came to an end that is trusted."""
    problem = incumbent.problem
    formulation = hybrid.build(problem, model_size, known=incumbent.makespan)
    outcome = backends.solve(formulation.model, limits, gap=_GAP)
    unit = Fraction(formulation.time_unit, problem.link.ticks)
    is_trusted = _is_within_accuracy(problem, formulation.time_unit)
    if outcome.status is TerminationStatus.INFEASIBLE:
        if is_trusted:
            incumbent.add_bound(model_size, incumbent.makespan)
        return is_trusted
    if outcome.has_values:
        makespan = exact(unit * round(pyo.value(formulation.model.makespan)))
        incumbent.add_schedule(formulation.decode(), makespan)
    if is_trusted and math.isfinite(outcome.bound):
        incumbent.add_bound(
            model_size, exact(unit * math.ceil(outcome.bound - bound_error(outcome)))
        )
    return is_trusted and outcome.status is not TerminationStatus.LIMIT


def _is_within_accuracy(problem: HybridProblem, unit: int) -> bool:
    """Return whether HiGHS's proofs about amounts of this size are trusted."""
    profile, link = problem.profile, problem.link
    sizes = [item_bytes(problem, item) for item in items_of(problem)]
    amounts = [link.transfer_ticks(size, k) for size in sizes for k in range(len(link.levels))]
    for stage in profile.stages:
        amounts += [stage.forward_time * link.ticks, stage.backward_time * link.ticks]
    return is_within_accuracy(amounts, unit)
