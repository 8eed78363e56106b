"""Assertions for forwards. pytest rewrites those of test modules, here they stay as written."""

from __future__ import annotations

import torch


def require_numbers(x: torch.Tensor) -> None:
    assert (x == x).all(), "not a number"  # noqa: PLR0124  # it is the question


def require_no_nan(x: torch.Tensor) -> None:
    assert not torch.isnan(x).any(), "not a number"


def require_no_nan_in_silence(x: torch.Tensor) -> None:
    assert not x.isnan().any()


def halved_if_large(x: torch.Tensor, most: float | torch.Tensor) -> torch.Tensor:
    """Catch an assertion of its own."""
    try:
        assert x.sum() < most, "too large"
    except AssertionError:
        x = x * 0.5
    return x
