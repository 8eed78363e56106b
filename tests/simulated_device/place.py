"""The kind of device that the cases run on: the simulated one, or a real one of the same tests."""

from __future__ import annotations

import os
from typing import Final

import pytest
import torch

__all__ = ["KIND", "first", "is_simulated", "second", "twice"]

KIND: Final = os.environ.get("CHAINSTAY_TEST_DEVICE", "sim")
is_simulated: Final = KIND == "sim"
twice = pytest.mark.skipif(
    not is_simulated and torch.accelerator.device_count() < 2, reason="needs two devices"
)


def first() -> torch.device:
    """Return the device of most cases, which is only known in a process of its own."""
    return torch.device(KIND, 0)


def second() -> torch.device:
    """Return another device."""
    return torch.device(KIND, 1)
