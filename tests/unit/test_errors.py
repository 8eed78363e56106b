"""Errors as values: they cross process borders with their numbers."""

from __future__ import annotations

import pickle

import pytest

from chainstay import (
    CertificateError,
    ChainProfile,
    ChainstayError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
    Stage,
)

CHAIN = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))


@pytest.mark.parametrize(
    "error",
    [
        InfeasibleBudgetError(budget=3, required=7, stages=2, family="persistent"),
        InvalidScheduleError("no", index=1, ops=("Fa0", "B1")),
        SolverLimitError("out of time", best_bound=12),
        CertificateError("no", profile=CHAIN, budget=3, statements=("dp",), report="{}"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_pickling_keeps_everything(error: ChainstayError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_a_family_of_all_schedules_needs_no_name() -> None:
    error = InfeasibleBudgetError(budget=300, required=2**31, stages=2, family="all")
    assert str(error).startswith("no schedule of this 2-stage chain fits in 300 bytes; the least")
    assert "budget is 2.00 GiB (2147483648 bytes). Raise the budget" in str(error)


def test_a_budget_that_was_meant_as_a_share_is_told() -> None:
    error = InfeasibleBudgetError(budget=60, required=2**31, stages=2, family="all")
    assert "(2147483648 bytes). A share of plain training is written '60%'. Raise" in str(error)
