"""Integer programs of joins for CP-SAT, in exact integers."""

from __future__ import annotations

from chainstay.formulations.cpsat import ortools_backend
from chainstay.formulations.join.integer_program import IntegerProgram, Key, SolverAnswer
from chainstay.formulations.settings import Limits


def cpsat_model(
    program: IntegerProgram,
) -> tuple[ortools_backend.Model, dict[Key, ortools_backend.Literal]]:
    """Return the program for CP-SAT, and its variables.

    Raises:
        BackendError: OR-Tools is missing.
    """
    model = ortools_backend.new_model()
    variables = {key: model.new_bool_var(str(key)) for key in program.variables}
    limit = program.limit
    memory = limit
    if limit is None:
        largest = max(row.total.most for row in program.rows if row.is_memory)
        memory = model.new_int_var(0, largest, "memory_limit")
    for row in program.rows:
        body = sum(n * variables[key] for key, n in row.total.terms.items())
        bound = memory if row.is_memory else 0
        model.add(body + row.total.constant <= bound)
    if limit is None:
        model.minimize(memory)
    else:
        cost = sum(n * variables[key] for key, n in program.objective.terms.items())
        model.minimize(cost + program.objective.constant)
    return model, variables


def solve_by_cpsat(program: IntegerProgram, limits: Limits) -> SolverAnswer:
    """Solve a program in exact integers.

    Raises:
        BackendError: OR-Tools is missing, or CP-SAT failed.
    """
    model, variables = cpsat_model(program)
    outcome = ortools_backend.solve(model, limits)
    if outcome.values is None:
        return SolverAnswer(status=outcome.status, bound=outcome.bound or 0)
    on = frozenset(key for key, variable in variables.items() if outcome.is_on(variable))
    return SolverAnswer(
        status=outcome.status,
        on=on,
        objective=program.cost(on.__contains__),
        bound=outcome.bound or 0,
    )
