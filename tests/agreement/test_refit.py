"""A model that is fitted again: what is known is used again, and only what still holds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from chainstay import InfeasibleBudgetError, fit, unfit
from chainstay.fitting import solved_plans
from chainstay.runtime.measures.measured import measure_subject
from sgd_steps import peak_of_step


class Scaled(nn.Module):
    """Layers with a number between them that may change from fit to fit."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.scale = 1.0

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden)) * self.scale
        return hidden


def mean_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def test_a_second_fit_measures_nothing_again_and_takes_the_numbers_of_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, sample = Scaled(), torch.randn(64, 32)
    fit(model, (sample,), budget="90%", loss=mean_square, progress=False, repeats=1)
    measured: list[object] = []

    def noted(*args: Any, **kwargs: Any) -> object:
        measured.append(args)
        return measure_subject(*args, **kwargs)

    monkeypatch.setattr(solved_plans, "measure_subject", noted)
    model.scale = 2.0
    fit(model, (sample,), budget="80%", loss=mean_square, progress=False, repeats=1)
    assert not measured
    planned = model(sample)
    assert torch.equal(planned, unfit(model)(sample))


class Attending(nn.Module):
    """Attention without dropout: its operators may draw random numbers, and do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 96) for _ in range(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            query, key, value = layer(hidden).chunk(3, dim=-1)
            hidden = nn.functional.scaled_dot_product_attention(query, key, value) + hidden
        return hidden


def test_a_second_fit_holds_no_random_states_that_the_first_found_nobody_draws(
    capsys: pytest.CaptureFixture[str],
) -> None:
    torch.manual_seed(0)
    model, sample = Attending(), torch.randn(2, 2, 16, 32)
    fit(model, (sample,), budget="100%", loss=mean_square, progress=False, repeats=1)
    with pytest.raises(InfeasibleBudgetError) as refusal:
        fit(model, (sample,), budget=1, loss=mean_square, progress=False, repeats=1)
    least = refusal.value.required
    fit(model, (sample,), budget=least, loss=mean_square, repeats=1)
    assert "planning again" not in capsys.readouterr().err

    def step() -> None:
        output = model(sample)
        mean_square(output).backward()

    assert peak_of_step(model, step, sample) <= least
