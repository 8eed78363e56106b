"""Integer programs: both solvers say the same, exactly, of programs stated by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import pytest

from chainstay.errors import SolverLimitError
from chainstay.formulations import MIP
from chainstay.formulations.integer_program import (
    IntegerProgram,
    Key,
    LinearExpression,
    SolverAnswer,
)
from chainstay.formulations.join import claims
from chainstay.formulations.join.claims import claim_by_phases
from chainstay.formulations.program_by_cpsat import solve_by_cpsat
from chainstay.formulations.program_by_highs import pyomo_model, solve_by_highs
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles import JoinProfile

Solve: TypeAlias = Callable[..., SolverAnswer]

LIMITS = Limits(time_s=20)
SOLVERS = pytest.mark.parametrize("solve", [solve_by_highs, solve_by_cpsat])
PIB = 2**50


@SOLVERS
def test_memory_is_kept_to_the_byte(solve: Solve) -> None:
    """With both, memory is one byte over the limit of 4 PiB, which no float solver sees."""
    program = IntegerProgram(4 * PIB)
    large, small = program.binary("large"), program.binary("small")
    program.fits("memory", (4 * PIB - 10) * large + 11 * small)
    program.objective = 7 - 3 * large - small
    answer = solve(program, LIMITS)
    assert answer.status is TerminationStatus.OPTIMAL
    assert answer.on == frozenset[Key]({("large",)})
    assert (answer.objective, answer.bound) == (4, 4)
    assert not list(program.overruns(answer.on))


@SOLVERS
def test_what_is_left_out_may_be_what_makes_a_row_too_large(solve: Solve) -> None:
    """Of a negative size: the row is too large where it is off. Forbidden are such values only."""
    program = IntegerProgram(PIB)
    large, freed = program.binary("large"), program.binary("freed")
    program.fits("memory", (PIB + 1) * large - 1 * freed)
    program.objective = 9 - 5 * large + freed
    answer = solve(program, LIMITS)
    assert answer.on == frozenset[Key]({("large",), ("freed",)})
    assert answer.objective == 5


@SOLVERS
def test_programs_without_a_choice_are_answered(solve: Solve) -> None:
    least = IntegerProgram(None)
    least.fits("one", LinearExpression() + 7)
    least.fits("other", LinearExpression() + 9)
    assert solve(least, LIMITS) == SolverAnswer(
        status=TerminationStatus.OPTIMAL, on=frozenset(), objective=9, bound=9
    )
    bounded = IntegerProgram(9)
    bounded.fits("one", LinearExpression() + 9)
    bounded.objective = LinearExpression() + 4
    assert solve(bounded, LIMITS) == SolverAnswer(
        status=TerminationStatus.OPTIMAL, on=frozenset(), objective=4, bound=4
    )
    bounded.fits("other", LinearExpression() + 10)
    assert solve(bounded, LIMITS).status is TerminationStatus.INFEASIBLE


@SOLVERS
@pytest.mark.parametrize("is_memory", [False, True])
def test_a_row_of_constants_may_be_impossible(solve: Solve, *, is_memory: bool) -> None:
    program = IntegerProgram(5)
    program.objective = program.binary("any")
    if is_memory:
        program.fits("too_much", LinearExpression() + 6)
    else:
        program.at_most("never", 1, 0)
    answer = solve(program, LIMITS)
    assert (answer.status, answer.on) == (TerminationStatus.INFEASIBLE, None)
    assert len(pyomo_model(program).component(program.rows[0].name)) == 1


def test_without_time_nothing_is_said() -> None:
    program = IntegerProgram(5)
    program.objective = program.binary("any")
    answer = solve_by_highs(program, replace(LIMITS, time_s=0.0))
    assert (answer.status, answer.on, answer.bound) == (TerminationStatus.LIMIT, None, 0)


@SOLVERS
def test_an_abbreviation_means_what_it_stands_for(solve: Solve) -> None:
    """The other two are on where the sum of both is 1, in rows and in the start alike."""
    program = IntegerProgram(9)
    one, other = program.binary("one"), program.binary("other")
    either = program.abbreviation(("either",), lambda: one + other)
    assert program.abbreviation(("alone",), lambda: one) == one
    program.state("needed", [either >= 1])
    program.fits("memory", 9 * either)
    program.objective = program.expanded(5 * either + 2 * other)
    assert program.objective.terms == {("one",): 5, ("other",): 7}
    start = frozenset[Key]({("other",)})
    assert program.holds(start)
    answer = solve(program, LIMITS, start)
    assert (answer.on, answer.objective) == (frozenset[Key]({("one",)}), 5)


def test_nothing_fits_and_the_least_budget_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that proves that nothing fits, and runs out of time at the question what would."""

    def solve(program: IntegerProgram, limits: Limits) -> SolverAnswer:
        del limits
        late = program.limit is None
        return SolverAnswer(
            status=TerminationStatus.LIMIT if late else TerminationStatus.INFEASIBLE
        )

    monkeypatch.setattr(claims, "solve_by_highs", solve)
    join = JoinProfile.homogeneous((2, 1), forward_time=1, backward_time=1, turn_time=1)
    with pytest.raises(SolverLimitError, match="nothing fits in 2, and the least feasible budget"):
        claim_by_phases(MIP(), join, 2, keep=(False, False))
