"""Budgets in all their forms, and the bytes that each means for a measured model."""

from __future__ import annotations

from typing import Final

from torch import nn

from chainstay.planning.questions import plain_peak
from chainstay.profiles import ChainProfile, Stage
from chainstay.runtime.devices.device_memory import free_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.solve import budgets

Budget = budgets.Budget | None

_ANY_PROFILE: Final = ChainProfile(
    input_bytes=2**40, input_gradient_bytes=0, stages=(Stage(name="loss"),)
)
"""A profile by which budgets are refused that are none for any, before anything is measured."""


def bytes_of(budget: Budget, model: nn.Module | None, reserve: int, measured: Measurement) -> int:
    """Return the budget in bytes, rounded down.

    Args:
        budget: The budget, as for `chainstay.fit`.
        model: Whose device has memory free, if `budget` is ``None``.
        reserve: Bytes of that to leave.
        measured: The costs of plain training, if `budget` is a share of its memory.
    """
    if budget is None:
        assert model is not None, "only a model tells what is free"
        return free_bytes(model, reserve)
    return budgets.parse_budget(budget, lambda: plain_peak(measured))


def require_budget(budget: Budget) -> None:
    """Refuse what is no budget for any profile, before anything is measured."""
    if budget is not None:
        budgets.budget_bytes(_ANY_PROFILE, budget)
