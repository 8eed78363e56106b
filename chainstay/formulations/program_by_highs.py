"""Integer programs as Pyomo models, for HiGHS or any other solver.

HiGHS computes in floats: with sizes of many digits it may accept what exceeds the limit by a few
bytes, or call a limit the least that is not. So its answers are counted in integers, an overrun is
forbidden by name, and a least limit is believed once a smaller one is proved infeasible.
"""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic
from typing import Final

from chainstay.formulations import highs_backend as backends
from chainstay.formulations.integer_program import (
    IntegerProgram,
    Key,
    LinearExpression,
    Sense,
    SolverAnswer,
)
from chainstay.formulations.pyomo_types import Expression, Model, pyo
from chainstay.formulations.settings import Limits, TerminationStatus

_GAP: Final = 0.5
"""Units below which nothing is left to find: objectives are whole. The rest is for rounding."""
_RELATIVE_ERROR: Final = 1e-9
_MEMORY_ERROR: Final = 2.0**-20
"""Error of a bound on memory, in scaled units and relative, within which it proves nothing."""
_WIDEST_BITS: Final = 10
_WIDEST_MARGIN: Final = 2.0**-20
"""The largest share of the limit that is added to it: not to weaken the relaxation."""
_SOLVER_ERROR: Final = 2.0**-28
"""Scaled units added to the limit at least: a few times what HiGHS tolerates in a row."""


def pyomo_model(program: IntegerProgram) -> Model:
    """Return the program as a Pyomo model, one component per name of variables and of rows.

    Without a limit, ``model.memory_limit`` is minimised. Memory is in multiples of a power of
    two (`memory_scale`), in which every size is exact.
    """
    model = pyo.ConcreteModel(name="program")
    for name in dict.fromkeys(key[0] for key in program.variables):
        keys = [key[1:] for key in program.variables if key[0] == name]
        model.add_component(name, pyo.Var(keys, domain=pyo.Binary))
    scale = memory_scale(program)
    if program.limit is None:
        model.memory_limit = pyo.Var(domain=pyo.NonNegativeReals)
    else:  # sizes are whole, so a little above the limit nothing more fits
        margin = max(min(0.5, program.limit * _WIDEST_MARGIN), _SOLVER_ERROR * scale)
        limit = (program.limit + margin) / scale
        model.memory_limit = pyo.Param(initialize=limit, mutable=True)

    def linear(total: LinearExpression, unit: int = 1) -> Expression:
        terms = (n / unit * model.component(key[0])[key[1:]] for key, n in total.terms.items())
        return sum(terms) + total.constant / unit

    for name in dict.fromkeys(row.name for row in program.rows):
        model.add_component(name, pyo.ConstraintList())
    for row in program.rows:
        rows = model.component(row.name)
        if row.total.terms:
            body = linear(row.total, scale if row.is_memory else 1)
            most = model.memory_limit if row.is_memory else 0
            rows.add(body == 0 if row.sense is Sense.EQUAL else body <= most)
        elif program.is_broken(row, frozenset[Key]()):
            rows.add(pyo.Constraint.Infeasible)
    if program.limit is None:
        model.goal = pyo.Objective(expr=model.memory_limit)
    else:
        model.goal = pyo.Objective(expr=linear(program.objective))
    return model


def memory_scale(program: IntegerProgram) -> int:
    """Return the power of two that brings memory down to the size of a solver's tolerances.

    These are absolute: rows in plain bytes would be held to a millionth of a byte, and rows
    relative to the limit would leak a thousand bytes in a GiB.
    """
    largest = program.most_memory if program.limit is None else program.limit
    return int(2 ** max(0, largest.bit_length() - _WIDEST_BITS))


def solve_by_highs(
    program: IntegerProgram, limits: Limits, start: frozenset[Key] | None = None
) -> SolverAnswer:
    """Solve a program exactly, though HiGHS rounds.

    Args:
        program: The program; rows are added where HiGHS' rounding makes one of memory too large.
        limits: Limits of all solves together.
        start: The variables that are 1 in a feasible point; no worse one is looked at.

    Raises:
        BackendError: Pyomo or highspy is missing, or HiGHS failed.
    """
    deadline = monotonic() + limits.time_s
    answer = _solved(program, limits, start)
    if program.limit is not None or answer.status is not TerminationStatus.OPTIMAL:
        return answer
    while answer.bound < answer.objective:
        left = replace(limits, time_s=deadline - monotonic())
        below = _solved(program.feasibility(answer.objective - 1), left, None)
        if below.status is TerminationStatus.INFEASIBLE:
            return replace(answer, bound=answer.objective)
        if below.on is None:
            return replace(answer, status=TerminationStatus.LIMIT)
        answer = replace(answer, on=below.on, objective=program.cost(below.on))
    return answer


def _solved(program: IntegerProgram, limits: Limits, start: frozenset[Key] | None) -> SolverAnswer:
    """Solve a program, and again as long as HiGHS' rounding makes a row of memory too large."""
    if not program.variables:  # which HiGHS calls an error
        return _without_variables(program)
    deadline, left = monotonic() + limits.time_s, limits.time_s
    gap = _GAP if program.limit is not None else _GAP / memory_scale(program)
    while left > 0:
        model = pyomo_model(program)
        variables = {key: model.component(key[0])[key[1:]] for key in program.variables}
        if start is not None:
            for key, variable in variables.items():
                variable.set_value(int(key in start))
        limits = replace(limits, time_s=left)
        outcome = backends.solve(model, limits, gap=gap, warm_start=start is not None)
        bound = _whole(program, outcome.bound)
        if not outcome.has_values:
            return SolverAnswer(status=outcome.status, bound=bound)
        on = frozenset(key for key, variable in variables.items() if round(variable.value) == 1)
        broken = list(program.overruns(on))
        if not broken:
            objective = program.cost(on)
            is_proved = outcome.status is TerminationStatus.OPTIMAL and program.limit is not None
            bound = objective if is_proved else min(bound, objective)
            return SolverAnswer(status=outcome.status, on=on, objective=objective, bound=bound)
        for row in broken:
            program.forbid(row, on)
        left = deadline - monotonic()
    return SolverAnswer(status=TerminationStatus.LIMIT, bound=program.least_cost)


def _without_variables(program: IntegerProgram) -> SolverAnswer:
    on = frozenset[Key]()
    if not program.holds(on):
        return SolverAnswer(status=TerminationStatus.INFEASIBLE)
    cost = program.cost(on)
    return SolverAnswer(status=TerminationStatus.OPTIMAL, on=on, objective=cost, bound=cost)


def _whole(program: IntegerProgram, bound: float) -> int:
    """Return the least whole objective that a float bound proves."""
    if bound == -math.inf:
        return program.least_cost
    if program.limit is None:
        error = _MEMORY_ERROR * max(1.0, abs(bound))
        return max(0, math.ceil((bound - error) * memory_scale(program)))
    return math.ceil(bound - _RELATIVE_ERROR * abs(bound) - 1e-6)
