"""The accuracy of HiGHS, which computes in floats, and the proofs of it that are trusted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chainstay.formulations.highs_backend import HighsResult

__all__ = ["bound_error", "is_within_accuracy"]

_RELATIVE_ERROR: Final = 1e-7
"""Share of a bound that is taken off before it is trusted."""
_LARGEST_BELIEVED: Final = 10**5
"""Units of an amount up to which proofs are trusted; with millions beside ones they were wrong."""


def is_within_accuracy(amounts: Iterable[int], unit: int) -> bool:
    """Return whether proofs about `amounts` are trusted, when a model's unit is `unit` of them."""
    return max(amounts, default=0) <= unit * _LARGEST_BELIEVED


def bound_error(outcome: HighsResult) -> float:
    """Return by how much the bound of a result may be off."""
    return _RELATIVE_ERROR * max(1.0, abs(outcome.bound))
