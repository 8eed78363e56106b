"""Nothing grows over fifty steps, or over CHAINSTAY_SOAK_STEPS of the environment."""

from __future__ import annotations

import os

import pytest
import torch

from census import growth, soak
from fault_subjects import MAKERS, subject

_STEPS = int(os.environ.get("CHAINSTAY_SOAK_STEPS", "50"))


@pytest.mark.parametrize("name", ["dense", "two towers", "offloaded", "combined"])
@pytest.mark.long
def test_nothing_grows(name: str) -> None:
    assert name in MAKERS
    assert growth(soak(subject(name), _STEPS), _STEPS) == []


@pytest.mark.long
def test_what_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[torch.Tensor] = []
    there = subject("combined")
    forward = type(there.planned).forward

    def keeping(self: object, batch: torch.Tensor) -> torch.Tensor:
        kept.append(torch.zeros(3))
        output: torch.Tensor = forward(self, batch)
        return output

    monkeypatch.setattr(type(there.planned), "forward", keeping)
    (found,) = growth(soak(there, 20), 20)
    assert found.startswith("tensors grew from")
