"""Errors as values: they cross process borders with their numbers."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import chainstay
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


def test_a_share_of_plain_training_is_of_the_budget_that_is_known_in_the_end() -> None:
    error = InfeasibleBudgetError(
        budget=300, required=2**31, stages=2, family="all", plain=2**32, reason="stage 1 needs most"
    )
    assert "That is 50% of plain training; stage 1 needs most. Raise the budget, or" in str(error)
    known = error.known(300, 3 * 2**30)
    assert "That is 75% of plain training; stage 1 needs most." in str(known)
    assert str(known.beside(2**33)) == str(known)
    assert "That is 25% of plain training. Raise" in str(
        InfeasibleBudgetError(budget=300, required=2**30, stages=2, family="all").beside(2**32)
    )


def test_a_refusal_has_no_cause_inside_of_chainstay() -> None:
    with pytest.raises(chainstay.UnsupportedModelError) as refusal:
        chainstay.fit(
            nn.Sequential(nn.Linear(4, 4)), (torch.ones(2, 4),), budget="100%", loss=lambda x: x
        )
    assert refusal.value.__suppress_context__
