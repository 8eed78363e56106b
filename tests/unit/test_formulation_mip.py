"""The method `MIP`: settings, outcomes under limits, hints and families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chainstay.errors import (
    CertificateError,
    InfeasibleBudgetError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import MIP
from chainstay.formulations import highs_backend as backends
from chainstay.formulations.chain import claims
from chainstay.formulations.highs_backend import HighsResult
from chainstay.formulations.program_by_highs import solve_by_highs
from chainstay.formulations.pyomo_types import Model, pyo
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family
from formulation_support import CHAIN, NO_TIME, PERIODIC


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"solver": "gurobi"}, "solver is 'gurobi', must be one of: highs"),
        ({"threads": 0}, "threads is 0, must be a positive integer"),
        ({"threads": 1.5}, "threads is 1.5"),
    ],
)
def test_settings_that_do_not_exist_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UnknownMethodError, match=text):
        MIP(**settings)


def test_text_of_a_method() -> None:
    assert str(MIP()) == "mip (highs, 60 s, table1)"
    assert str(MIP(time_limit_s=0.5, discards="tape")) == "mip (highs, 0.5 s, tape)"
    assert MIP(discards="free").discards is Discards.FREE


def test_an_optimal_hint_is_kept_as_feasible() -> None:
    best = MIP()(CHAIN, 26)
    assert MIP()(CHAIN, 26, hint=best.schedule).makespan == best.makespan


def test_a_hint_outside_the_model_comes_back_when_there_is_nothing_better() -> None:
    two_sweeps = Schedule.parse("Fa0 Fa1 Fa2 Fa3 Fa4 Fa5 Fc0 B5 B4 B3 B2 B1 B0")
    claim = MIP(time_limit_s=NO_TIME)(CHAIN, 60, hint=two_sweeps)
    assert (claim.schedule, claim.makespan) == (two_sweeps, 112)
    assert claim.lower_bound <= 102


def test_least_budget_that_no_time_is_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SolverLimitError, match="6-stage chain is not known after 1e-09 s"):
        claims.minimum_budget(CHAIN, MIP(time_limit_s=NO_TIME), solve_by_highs)
    infeasible = HighsResult(status=TerminationStatus.INFEASIBLE, has_values=False, bound=0.0)
    late = HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=0.0)
    outcomes = iter([infeasible, late])
    monkeypatch.setattr(backends, "solve", lambda *_, **__: next(outcomes))
    with pytest.raises(SolverLimitError, match="nothing fits in 5 bytes, and the least"):
        MIP()(CHAIN, 5)


def test_a_solver_that_denies_its_start_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    infeasible = HighsResult(status=TerminationStatus.INFEASIBLE, has_values=False, bound=0.0)
    monkeypatch.setattr(backends, "solve", lambda *_, **__: infeasible)
    denial = r"mip .* says that nothing fits, and had accepted a schedule of 132 ns"
    with pytest.raises(CertificateError, match=denial):
        MIP()(CHAIN, 32, hint=PERIODIC)


@pytest.mark.parametrize("verdict", [TerminationStatus.LIMIT, TerminationStatus.OPTIMAL])
def test_a_bound_above_the_start_is_caught(
    verdict: TerminationStatus, monkeypatch: pytest.MonkeyPatch
) -> None:
    high = HighsResult(status=verdict, has_values=False, bound=10.0)
    monkeypatch.setattr(backends, "solve", lambda *_, **__: high)
    denial = "says that nothing is faster than 142 ns, and had accepted a schedule of 132 ns"
    with pytest.raises(CertificateError, match=denial):
        MIP()(CHAIN, 32, hint=PERIODIC)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [(7.0000000001, 7), (6.9, 7), (7.1, 8), (float("-inf"), 6), (-1e30, 6), (3.0, 6)],
)
def test_a_bound_is_rounded_up_to_whole_units_and_never_by_an_error(
    bound: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=bound)
    monkeypatch.setattr(backends, "solve", lambda *_, **__: late)
    with pytest.raises(SolverLimitError, match="no schedule") as caught:
        MIP()(CHAIN, 28)
    assert caught.value.best_bound == 6 * 7 + 10 * expected


@pytest.mark.parametrize("discards", Discards)
def test_saved_data_below_the_output_restricts_the_family(discards: Discards) -> None:
    stage = Stage(forward_time=1, output_bytes=3, saved_bytes=2, gradient_bytes=3)
    chain = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=(stage,) * 3)
    assert MIP(discards=discards)(chain, 20).family is Family.SINGLE_SWEEP


@pytest.mark.parametrize("discards", Discards)
def test_hungry_forwards_restrict_the_family_unless_a_tape_keeps_inputs(
    discards: Discards,
) -> None:
    stage = Stage(
        forward_time=1, output_bytes=3, saved_bytes=3, gradient_bytes=3, forward_overhead_bytes=4
    )
    chain = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=(stage,) * 3)
    expected = Family.ALL if discards is Discards.TAPE else Family.SINGLE_SWEEP
    assert MIP(discards=discards)(chain, 30).family is expected


@pytest.mark.parametrize("size", [2**40 + 1, 2**44, 2**46, 2**47])
def test_a_byte_too_little_that_nothing_can_change_is_infeasible(size: int) -> None:
    stage = Stage(backward_overhead_bytes=1)
    profile = ChainProfile(input_bytes=size, input_gradient_bytes=0, stages=(stage,))
    with pytest.raises(InfeasibleBudgetError) as caught:
        MIP()(profile, size)
    assert caught.value.required == size + 1
    assert str(MIP()(profile, size + 1).schedule) == "Fa0 B0"


def test_a_least_budget_that_would_have_been_enough_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    infeasible = HighsResult(status=TerminationStatus.INFEASIBLE, has_values=False, bound=0.0)
    monkeypatch.setattr(claims, "minimum_budget", lambda *_, **__: 28)
    monkeypatch.setattr(backends, "solve", lambda *_, **__: infeasible)
    with pytest.raises(CertificateError, match=r"nothing fits in 28 bytes, and has .* needs 28"):
        MIP()(CHAIN, 28)


def test_a_least_budget_is_looked_for_below_what_a_loose_bound_leaves_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer is keep-all, called optimal with a bound that proves nothing."""
    solve = backends.solve
    answers: list[TerminationStatus] = []

    def loose(model: Model, limits: Limits, **settings: Any) -> HighsResult:
        if not answers:
            for variable in model.component_data_objects(pyo.Var):
                variable.set_value(0)
            for variable in (*model.keep_all[5, :, :], *model.saved_stored.values()):
                variable.set_value(1)
            outcome = HighsResult(status=TerminationStatus.OPTIMAL, has_values=True, bound=0.0)
        else:
            outcome = solve(model, limits, **settings)
        answers.append(outcome.status)
        return outcome

    least = claims.minimum_budget(CHAIN, MIP(), solve_by_highs)
    monkeypatch.setattr(backends, "solve", loose)
    assert claims.minimum_budget(CHAIN, MIP(), solve_by_highs) == least
    assert answers[-1] is TerminationStatus.INFEASIBLE
    assert len(answers) > 2


def test_a_least_budget_that_time_ran_out_to_prove(monkeypatch: pytest.MonkeyPatch) -> None:
    solve, least = backends.solve, claims.minimum_budget(CHAIN, MIP(), solve_by_highs)
    late = HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=0.0)
    outcomes = iter([None, late])

    def slow(*given: Any, **settings: Any) -> HighsResult:
        return next(outcomes) or replace(solve(*given, **settings), bound=0.0)

    monkeypatch.setattr(backends, "solve", slow)
    with pytest.raises(SolverLimitError, match=f"is at most {least} bytes after 60 s"):
        claims.minimum_budget(CHAIN, MIP(), solve_by_highs)


def test_rules_other_than_table1_are_named_when_nothing_fits() -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"^no tape schedule of this 6-stage"):
        MIP(discards="tape")(CHAIN, 5)
