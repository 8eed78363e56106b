"""Integer programs of joins as Pyomo models, for HiGHS or any other solver."""

from __future__ import annotations

import math
from dataclasses import replace
from time import monotonic
from typing import Final

from chainstay.errors import SolverLimitError
from chainstay.formulations import highs_backend as backends
from chainstay.formulations.join.integer_program import (
    IntegerProgram,
    LinearExpression,
    SolverAnswer,
)
from chainstay.formulations.pyomo_types import Expression, Model, pyo
from chainstay.formulations.settings import Limits, TerminationStatus

_GAP: Final = 0.5
"""Units below which nothing is left to find: objectives are whole. The rest is for rounding."""
_RELATIVE_ERROR: Final = 1e-9
_WIDEST_BITS: Final = 10
_WIDEST_MARGIN: Final = 2.0**-20
"""The largest share of the limit that is added to it: not to weaken the relaxation."""
_SOLVER_ERROR: Final = 2.0**-28
"""Scaled units added to the limit at least: a few times what HiGHS tolerates in a row."""


def pyomo_model(program: IntegerProgram) -> Model:
    """Return the program as a Pyomo model, one component per variable name and constraint name.

    Without a limit, ``model.memory_limit`` is minimised. Memory is in multiples of a power of
    two (`memory_scale`), in which every size is exact.
    """
    model = pyo.ConcreteModel(name="join")
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
            most = model.memory_limit if row.is_memory else 0
            rows.add(linear(row.total, scale if row.is_memory else 1) <= most)
        elif program.is_broken(row):
            rows.add(pyo.Constraint.Infeasible)
    if program.limit is None:
        model.goal = pyo.Objective(expr=model.memory_limit)
    else:
        model.goal = pyo.Objective(expr=linear(program.objective))
    return model


def memory_scale(program: IntegerProgram) -> int:
    """Return the power of two that brings memory down to the size of a solver's tolerances."""
    largest = program.limit or max(row.total.most for row in program.rows if row.is_memory)
    return int(2 ** max(0, largest.bit_length() - _WIDEST_BITS))


def solve_by_highs(program: IntegerProgram, limits: Limits) -> SolverAnswer:
    """Solve a program, and again as long as HiGHS' rounding makes a memory row too large.

    Raises:
        BackendError: highspy is missing, or HiGHS failed.
        SolverLimitError: Time ran out while rows were still too large.
    """
    if not program.variables:  # which HiGHS calls an error
        if any(map(program.is_broken, program.rows)):
            return SolverAnswer(status=TerminationStatus.INFEASIBLE)
        cost = program.cost(frozenset().__contains__)
        return SolverAnswer(
            status=TerminationStatus.OPTIMAL, on=frozenset(), objective=cost, bound=cost
        )
    deadline = monotonic() + limits.time_s
    while (left := deadline - monotonic()) > 0:
        model = pyomo_model(program)
        gap = _GAP if program.limit is not None else _GAP / memory_scale(program)
        outcome = backends.solve(model, replace(limits, time_s=left), gap=gap)
        if not outcome.has_values:
            return SolverAnswer(status=outcome.status, bound=_whole(outcome.bound))
        on = frozenset(
            key
            for key in program.variables
            if round(pyo.value(model.component(key[0])[key[1:]])) == 1
        )
        broken = list(program.overruns(on.__contains__))
        if not broken:
            objective = program.cost(on.__contains__)
            is_optimal = outcome.status is TerminationStatus.OPTIMAL
            bound = objective if is_optimal else min(_whole(outcome.bound), objective)
            return SolverAnswer(status=outcome.status, on=on, objective=objective, bound=bound)
        for row in broken:
            program.forbid(row, on.__contains__)
    raise SolverLimitError("HiGHS found nothing in time that keeps the budget to the byte")


def _whole(bound: float) -> int:
    """Return the least whole number that a float bound proves."""
    return 0 if bound == -math.inf else math.ceil(bound - _RELATIVE_ERROR * abs(bound) - 1e-6)
