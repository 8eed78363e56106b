"""HiGHS behind one function: solve a Pyomo model, leave the values in it, say how sure.

The only importer of highspy. HiGHS is driven directly rather than through a Pyomo solver
class: those differ between Pyomo versions in how (and whether) they pass a start, return
the dual bound and keep silent. What is read from Pyomo is the linear form of its
constraints, which is stable public API. That nothing is feasible is believed only where HiGHS
says so without its presolve, too.

highspy up to 1.14 lives in one process with ortools, whichever comes first; 1.15 does not
(``pyproject.toml`` says why it is excluded).
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, TypeAlias

import numpy as np

from chainstay.errors import BackendError
from chainstay.formulations.pyomo_types import Expression, LinearForm, Model, linear_form, pyo
from chainstay.formulations.settings import Limits, TerminationStatus

_Binding: TypeAlias = Any
"""The module highspy, or an object from it: compiled, and typed in part."""

_FEASIBILITY_TOLERANCE: Final = 1e-9
"""HiGHS' default is 1e-6: of a memory row of 2**10 units, about a byte in a GiB."""
_LEAST_COEFFICIENT: Final = 1e-12
"""HiGHS takes smaller ones for 0. By default from 1e-9, which bytes in a PiB are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HighsResult:
    """The result of a solve.

    Attributes:
        status: How it ended.
        has_values: Whether the model's variables now hold a feasible point.
        bound: Proved lower bound on the objective, ``-inf`` when there is none.
    """

    status: TerminationStatus
    has_values: bool
    bound: float


def solve(model: Model, limits: Limits, *, gap: float, warm_start: bool = False) -> HighsResult:
    """Minimise `model` with HiGHS.

    Args:
        model: A linear model with one objective; its variables receive the best point.
        limits: Time, threads and seed.
        gap: Stop when objective and bound are this close; below the least difference
            between two objectives, it costs nothing.
        warm_start: Whether the variables' values are a feasible point to start from. No worse
            point is looked at, so its objective is the cutoff, too.

    Raises:
        BackendError: highspy is missing, or HiGHS failed.
    """
    highspy = _import_highspy()
    columns = list(model.component_data_objects(pyo.Var, active=True))
    highs = highspy.Highs()
    _set_options(highs, limits, gap)
    # HiGHS keeps its thread pool between solves and refuses another number of threads.
    highs.resetGlobalScheduler(True)  # noqa: FBT003  # a C++ signature, positional only
    _check(highspy, highs.passModel(_linear_program(highspy, model, columns)), "the model")
    start = [float(column.value) for column in columns] if warm_start else None
    began = monotonic()
    status = _run(highspy, highs, start)
    # HiGHS 1.14.0 called a model infeasible that has solutions, and found them without its
    # presolve. Undoing its presolve may leave a row a little above HiGHS' own tolerance.
    is_infeasible = highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible
    if is_infeasible or status == highspy.HighsStatus.kError:
        left = limits.time_s - (monotonic() - began)
        if left <= 0:
            return HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=-math.inf)
        highs.setOptionValue("presolve", "off")
        highs.setOptionValue("time_limit", left)
        highs.clearSolver()
        if _run(highspy, highs, start) == highspy.HighsStatus.kError:
            raise BackendError(
                "HiGHS cannot solve this within its tolerances: sizes of bytes beside sizes of "
                "TiB, most likely; use method='cpsat' or 'dp', or measure in coarser units"
            )
    return _outcome(highspy, highs, columns)


def _run(highspy: _Binding, highs: _Binding, start: list[float] | None) -> _Binding:
    """Solve from `start`, if there is one; return the status."""
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start
        _check(highspy, highs.setSolution(solution), "the start")
    return highs.run()


def _import_highspy() -> _Binding:
    try:
        return importlib.import_module("highspy")
    except ImportError as error:
        raise BackendError(
            f"solver 'highs' needs highspy, which cannot be imported ({error}); "
            'install it with: pip install "highspy>=1.10,<1.15"'
        ) from error


def _set_options(highs: _Binding, limits: Limits, gap: float) -> None:
    highs.silent()
    for name, value in (
        ("time_limit", float(limits.time_s)),
        ("threads", limits.threads),
        ("random_seed", limits.seed),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", gap),
        ("mip_feasibility_tolerance", _FEASIBILITY_TOLERANCE),
        ("primal_feasibility_tolerance", _FEASIBILITY_TOLERANCE),
        ("small_matrix_value", _LEAST_COEFFICIENT),
    ):
        highs.setOptionValue(name, value)


def _linear_program(highspy: _Binding, model: Model, columns: list[Expression]) -> _Binding:
    """Return the model as HiGHS' arrays, rows in the order of the Pyomo constraints."""
    position = {id(column): index for index, column in enumerate(columns)}
    (objective,) = model.component_data_objects(pyo.Objective, active=True)
    goal, rows = linear_form(objective.expr), list(_rows(model))
    kinds = highspy.HighsVarType
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(columns), len(rows)
    program.offset_ = goal.constant
    costs = np.zeros(len(columns))
    for coefficient, column in goal.terms:
        costs[position[id(column)]] = coefficient
    program.col_cost_ = costs
    program.col_lower_ = np.array([_number(column.lb, -math.inf) for column in columns])
    program.col_upper_ = np.array([_number(column.ub, math.inf) for column in columns])
    program.integrality_ = [
        kinds.kContinuous if column.is_continuous() else kinds.kInteger for column in columns
    ]
    program.row_lower_ = np.array([lower for _, lower, _ in rows])
    program.row_upper_ = np.array([upper for _, _, upper in rows])
    terms = [term for body, _, _ in rows for term in body.terms]
    matrix = program.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0] + [len(body.terms) for body, _, _ in rows]).astype(np.int32)
    matrix.index_ = np.array([position[id(column)] for _, column in terms], dtype=np.int32)
    matrix.value_ = np.array([coefficient for coefficient, _ in terms])
    return program


def _rows(model: Model) -> Iterator[tuple[LinearForm, float, float]]:
    """Yield body, lower and upper bound of every active constraint, constants on the right."""
    for constraint in model.component_data_objects(pyo.Constraint, active=True):
        body = linear_form(constraint.body)
        lower = _number(constraint.lb, -math.inf) - body.constant
        yield body, lower, _number(constraint.ub, math.inf) - body.constant


def _number(bound: float | None, otherwise: float) -> float:
    return otherwise if bound is None else float(bound)


def _check(highspy: _Binding, status: _Binding, what: str) -> None:
    if status == highspy.HighsStatus.kError:
        raise BackendError(f"HiGHS refused {what}; please report the profile and budget as a bug")


def _outcome(highspy: _Binding, highs: _Binding, columns: list[Expression]) -> HighsResult:
    """Return the result of a solve, and set the variables to its values."""
    ended, kinds = highs.getModelStatus(), highspy.HighsModelStatus
    statuses = {
        kinds.kOptimal: TerminationStatus.OPTIMAL,
        kinds.kInfeasible: TerminationStatus.INFEASIBLE,
        kinds.kTimeLimit: TerminationStatus.LIMIT,
    }
    if ended not in statuses:
        raise BackendError(
            f"HiGHS ended with {highs.modelStatusToString(ended)!r}, which no chain can cause; "
            "please report the profile and budget as a bug"
        )
    found = highs.getInfo()
    has_values = found.primal_solution_status == highspy.kSolutionStatusFeasible
    if has_values:
        for column, value in zip(columns, highs.getSolution().col_value, strict=True):
            column.set_value(value, skip_validation=True)
    bound = float(found.mip_dual_bound) if math.isfinite(found.mip_dual_bound) else -math.inf
    return HighsResult(status=statuses[ended], has_values=has_values, bound=bound)
