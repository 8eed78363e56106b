"""OR-Tools behind one function: the only importer of ortools.

CP-SAT computes in 64-bit integers, so what it accepts holds to the byte.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from chainstay.errors import BackendError, InvalidProfileError
from chainstay.formulations.settings import Limits, TerminationStatus

Literal: TypeAlias = Any
"""A Boolean variable of CP-SAT or its negation."""
Model: TypeAlias = Any
"""A ``cp_model.CpModel``."""

LONGEST: Final = 2**45
"""Units of time of the longest horizon; sums of a few stay exact in CP-SAT's floats."""
_LARGEST: Final = 2**53
"""CP-SAT counts to 2**62, and reports what it counted as a float, exact up to this."""
_RELATIVE_ERROR: Final = 2.0**-50
"""Relative error of a bound, which CP-SAT counts in integers but reports as a float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CpSatResult:
    """The result of a solve.

    Attributes:
        status: How it ended.
        values: The value of every variable, by index; ``None`` when no feasible point was found.
        objective: The objective at `values`.
        bound: Proved lower bound on the objective, ``None`` when there is none.
    """

    status: TerminationStatus
    values: tuple[int, ...] | None = None
    objective: int = 0
    bound: int | None = None

    def is_on(self, literal: Literal) -> bool:
        """Return the value of a Boolean variable."""
        assert self.values is not None, "asked for the values of a solve that found none"
        return bool(self.values[literal.index])


def require_exact(total: int) -> None:
    """Refuse sizes or times of this sum, which CP-SAT could not count and report exactly.

    Raises:
        InvalidProfileError: It is 2**53 or more.
    """
    if total >= _LARGEST:
        raise InvalidProfileError(
            f"sizes or times add up to {total} units, and CP-SAT is exact up to 2**53; measure in "
            "coarser units, or use method='dp'"
        )


def new_model() -> Model:
    """Return an empty model.

    Raises:
        BackendError: OR-Tools is missing.
    """
    return _cp_model().CpModel()


def weighted_sum(variables: Sequence[Literal], weights: Sequence[int]) -> Any:
    """Return ``Σ weight · variable``, several times sooner than term by term."""
    return _cp_model().LinearExpr.weighted_sum(variables, weights)


def solve(model: Model, limits: Limits) -> CpSatResult:
    """Minimise `model` with CP-SAT.

    Args:
        model: A model with one objective.
        limits: Time, threads and seed.

    Raises:
        BackendError: OR-Tools is missing, or CP-SAT failed.
    """
    cp_model = _cp_model()
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = limits.time_s
    parameters.num_workers = limits.threads
    parameters.random_seed = limits.seed
    # CP-SAT 9.15 certified 57 on a chain whose optimum is 55 (google/or-tools#5293: a
    # presolve rule that looks for included constraints). Without that rule it is right.
    parameters.presolve_inclusion_work_limit = 0
    # Ctrl-C is Python's to report; CP-SAT would end its search and say nothing.
    parameters.catch_sigint_signal = False
    ended = solver.solve(model)
    statuses = {
        cp_model.OPTIMAL: TerminationStatus.OPTIMAL,
        cp_model.INFEASIBLE: TerminationStatus.INFEASIBLE,
        cp_model.FEASIBLE: TerminationStatus.LIMIT,
        cp_model.UNKNOWN: TerminationStatus.LIMIT,
    }
    if ended not in statuses:
        raise BackendError(
            f"CP-SAT ended with {solver.status_name(ended)!r} ({model.validate().strip()}), "
            "which no chain can cause; please report the profile and budget as a bug"
        )
    status, bound = statuses[ended], solver.best_objective_bound
    if ended not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        is_bound = status is TerminationStatus.LIMIT and math.isfinite(bound)
        return CpSatResult(status=status, bound=_rounded_up(bound) if is_bound else None)
    response = solver.response_proto
    return CpSatResult(
        status=status,
        values=tuple(response.solution),
        objective=round(solver.objective_value),
        bound=_rounded_up(bound),
    )


def _rounded_up(bound: float) -> int:
    """Return the least integer that `bound` proves, its last bits not trusted."""
    return math.ceil(bound - _RELATIVE_ERROR * abs(bound))


def _cp_model() -> Any:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError as error:
        raise BackendError(
            f"method 'cpsat' needs OR-Tools, which cannot be imported ({error}); "
            'install it with: pip install "ortools>=9.10"'
        ) from error
