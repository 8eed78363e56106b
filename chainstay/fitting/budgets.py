"""Budgets in all their forms, and the bytes that each means for a measured model."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from torch import nn

from chainstay.errors import InvalidBudgetError
from chainstay.planning.questions import plain_peak
from chainstay.profiles import ChainProfile, Stage
from chainstay.runtime.devices.device_memory import free_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.solve import budget_bytes
from chainstay.solve.budgets import parse_budget
from chainstay.units import parse_percentage

Budget = int | str | float | Fraction | None

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
    if isinstance(budget, float | Fraction):
        return int(Fraction(budget) * plain_peak(measured))
    return parse_budget(budget, lambda: plain_peak(measured))


def share_of(budget: Budget) -> Fraction | None:
    """Return which share of plain training a budget is; ``None`` if it is none."""
    if isinstance(budget, str):
        return parse_percentage(budget)
    return Fraction(budget) if isinstance(budget, float | Fraction) else None


def require_budget(budget: object) -> None:
    """Refuse what is no budget for any profile, before anything is measured."""
    if isinstance(budget, float | Fraction):
        if not 0 < budget <= 1:
            raise InvalidBudgetError(
                f"budget is {budget!r}; a number with a fraction is a share of plain training, "
                "above 0 and up to 1 (write whole bytes or '8GiB' otherwise)"
            )
    elif budget is not None:
        budget_bytes(_ANY_PROFILE, budget)  # type: ignore[arg-type]  # it looks for itself
