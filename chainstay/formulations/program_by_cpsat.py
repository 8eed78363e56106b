"""Integer programs for CP-SAT, in exact integers."""

from __future__ import annotations

from chainstay.formulations import ortools_backend
from chainstay.formulations.integer_program import (
    IntegerProgram,
    Key,
    LinearExpression,
    Sense,
    SolverAnswer,
)
from chainstay.formulations.settings import Limits


def cpsat_model(
    program: IntegerProgram, start: frozenset[Key] | None
) -> tuple[ortools_backend.Model, dict[Key, ortools_backend.Literal]]:
    """Return the program for CP-SAT, and its variables and abbreviations.

    Args:
        program: The program.
        start: The variables that are 1 in a feasible point; no worse one is in the model.

    Raises:
        InvalidProfileError: Sizes or times add up to more than CP-SAT counts exactly.
        BackendError: OR-Tools is missing.
    """
    totals = [program.objective, *(row.total for row in program.rows)]
    ortools_backend.require_exact(max(max(total.most, -total.least) for total in totals))
    model = ortools_backend.new_model()
    variables = {
        key: model.new_bool_var(str(key)) for key in (*program.variables, *program.abbreviations)
    }

    def linear(total: LinearExpression) -> ortools_backend.Literal:
        chosen = [variables[key] for key in total.terms]
        return ortools_backend.weighted_sum(chosen, [*total.terms.values()]) + total.constant

    for key, expression in program.abbreviations.items():
        model.add(variables[key] == linear(expression))

    memory = program.limit
    if memory is None:
        memory = model.new_int_var(0, program.most_memory, "memory_limit")
    for row in program.rows:
        body = linear(row.abbreviated)
        most = memory if row.is_memory else 0
        model.add(body == 0 if row.sense is Sense.EQUAL else body <= most)
    goal = memory if program.limit is None else linear(program.objective)
    model.minimize(goal)
    if start is not None:
        for key, variable in variables.items():
            value = program.abbreviations.get(key, LinearExpression({key: 1}))
            model.add_hint(variable, value.at(start))
        model.add(goal <= program.cost(start))
    return model, variables


def solve_by_cpsat(
    program: IntegerProgram, limits: Limits, start: frozenset[Key] | None = None
) -> SolverAnswer:
    """Solve a program in exact integers, from the variables of `start` that are 1.

    Raises:
        InvalidProfileError: Sizes or times add up to more than CP-SAT counts exactly.
        BackendError: OR-Tools is missing, or CP-SAT failed.
    """
    model, variables = cpsat_model(program, start)
    outcome = ortools_backend.solve(model, limits)
    bound = program.least_cost if outcome.bound is None else outcome.bound
    if outcome.values is None:
        return SolverAnswer(status=outcome.status, bound=bound)
    on = frozenset(key for key in program.variables if outcome.is_on(variables[key]))
    objective = program.cost(on)
    return SolverAnswer(status=outcome.status, on=on, objective=objective, bound=bound)
