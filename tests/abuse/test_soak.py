"""Fifty steps of what `benchmarks/soak.py` does a thousand of."""

from __future__ import annotations

import pytest
import torch

from benchmarks.soak import growth, soak
from fault_subjects import MAKERS, subject


@pytest.mark.parametrize("name", ["dense", "two towers", "offloaded", "combined"])
@pytest.mark.long
def test_nothing_grows(name: str) -> None:
    assert name in MAKERS
    assert growth(soak(subject(name), 50)) == []


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
    (found,) = growth(soak(there, 20))
    assert found.startswith("tensors grew from")
