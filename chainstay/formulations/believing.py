"""Which of HiGHS's proofs are believed: it computes in floats."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chainstay.formulations.backends import Outcome

__all__ = ["are_moderate", "error_of"]

_RELATIVE_ERROR: Final = 1e-7
"""Of a bound, taken off before it is believed."""
_LARGEST_BELIEVED: Final = 10**5
"""Units of an amount. With amounts of millions beside ones, HiGHS has proved too high a bound."""


def are_moderate(amounts: Iterable[int], unit: int) -> bool:
    """Whether proofs about `amounts` of so many of a model's units are to be believed."""
    return max(amounts, default=0) <= unit * _LARGEST_BELIEVED


def error_of(outcome: Outcome) -> float:
    """How far a bound may be off."""
    return _RELATIVE_ERROR * max(1.0, abs(outcome.bound))
