"""What `MIP` and `CPSAT` do alike for chains: settings, limits, hints, families."""

from __future__ import annotations

from typing import Any, TypeAlias

import pytest

from chainstay.errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family
from chainstay.validation.simulate import simulate
from formulation_support import BY_NAME, CHAIN, NO_TIME, PERIODIC

Formulation: TypeAlias = type[MIP] | type[CPSAT]

pytestmark = pytest.mark.parametrize("formulation", [MIP, CPSAT])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"discards": "none"}, "discards is 'none', must be one of 'table1', 'tape', 'free'"),
        ({"time_limit_s": 0}, "time_limit_s is 0, must be a positive number"),
        ({"time_limit_s": float("nan")}, "time_limit_s is nan"),
        ({"time_limit_s": float("inf")}, "time_limit_s is inf"),
        ({"time_limit_s": "60"}, "time_limit_s is '60'"),
        ({"time_limit_s": True}, "time_limit_s is True"),
        ({"seed": -1}, "seed is -1, must be an integer from 0 to 2147483647"),
        ({"seed": 2**31}, "seed is 2147483648"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_settings_that_do_not_exist_are_refused(
    formulation: Formulation, settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(UnknownMethodError, match=text):
        formulation(**settings)


def test_claim_says_optimal_with_equal_bound(formulation: Formulation) -> None:
    claim = formulation()(CHAIN, 28)
    assert claim.makespan == claim.lower_bound
    assert (claim.family, claim.discards) == (Family.ALL, Discards.TABLE1)
    assert simulate(CHAIN, claim.schedule).peak_bytes <= 28


@pytest.mark.parametrize("budget", [10**30, 10**400])
def test_a_budget_beyond_all_numbers_is_plenty(formulation: Formulation, budget: int) -> None:
    assert formulation()(CHAIN, budget).makespan == CHAIN.least_time


@pytest.mark.parametrize("budget", [32, 40])
def test_a_hint_does_not_change_the_optimum(formulation: Formulation, budget: int) -> None:
    optimum = formulation()(CHAIN, budget).makespan
    assert optimum < simulate(CHAIN, PERIODIC).makespan
    assert formulation()(CHAIN, budget, hint=PERIODIC).makespan == optimum


def test_no_time_with_a_hint_returns_one_as_good_with_a_true_bound(
    formulation: Formulation,
) -> None:
    optimum = formulation()(CHAIN, 32).makespan
    claim = formulation(time_limit_s=NO_TIME)(CHAIN, 32, hint=PERIODIC)
    assert CHAIN.least_time <= claim.lower_bound <= optimum <= claim.makespan
    assert claim.makespan <= simulate(CHAIN, PERIODIC).makespan


def test_no_time_without_a_hint_is_an_error_with_the_bound(formulation: Formulation) -> None:
    with pytest.raises(SolverLimitError, match="no schedule of this 6-stage chain in 28") as caught:
        formulation(time_limit_s=NO_TIME)(CHAIN, 28)
    assert caught.value.best_bound == CHAIN.least_time


def test_a_hint_for_another_chain_is_refused(formulation: Formulation) -> None:
    with pytest.raises(InvalidScheduleError, match="Fa6 of the hint names stage 6") as caught:
        formulation(time_limit_s=NO_TIME)(CHAIN, 28, hint=Schedule.keep_all(7))
    assert caught.value.index == 6


def test_infeasible_budgets_name_the_least_one(formulation: Formulation) -> None:
    with pytest.raises(InfeasibleBudgetError, match=r"^no schedule of this 6-stage") as caught:
        formulation()(CHAIN, 5)
    required = caught.value.required
    assert formulation()(CHAIN, required).makespan > 0
    with pytest.raises(InfeasibleBudgetError, match=f"{required} bytes"):
        formulation()(CHAIN, required - 1)


def test_large_gradients_restrict_the_family(formulation: Formulation) -> None:
    golden = BY_NAME["pub_deltafree_006@92"]
    assert formulation()(golden.profile, golden.budget).family is Family.SINGLE_SWEEP
    with pytest.raises(InfeasibleBudgetError, match="no single-sweep schedule"):
        formulation()(golden.profile, 1)


def test_same_seed_same_answer(formulation: Formulation) -> None:
    method = formulation(seed=7)
    assert len({str(method(CHAIN, 26).schedule) for _ in range(3)}) == 1
