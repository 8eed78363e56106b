"""A loss that is not known counts as a cross-entropy of the largest output."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay.baselines.join import keep_all_join
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.planning.join import peak_of_join
from sgd_steps import peak_of_step
from twins import shown

CLASSES = 256
X, LABELS = torch.linspace(-3, 5, 64 * 64).sin().reshape(64, 64), torch.arange(64) % CLASSES


class Classifier(nn.Module):
    """Its scores are most of its memory."""

    def __init__(self, *, has_features: bool = False) -> None:
        super().__init__()
        self.has_features = has_features
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> object:
        for layer in self.layers:
            x = layer(x)
        scores = self.head(x)
        return {"features": x, "scores": scores} if self.has_features else scores


class TwoTowers(nn.Module):
    """Scores every row of one input with every row of the other."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 4, 4, 4, 4)  # small: the scores are most of its memory
        self.left, self.right = (
            nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths))) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.left(x) @ self.right(x).T
        return scores


def cross_entropy(output: object) -> torch.Tensor:
    scores = output["scores"] if isinstance(output, dict) else output
    assert isinstance(scores, torch.Tensor)
    return functional.cross_entropy(scores, LABELS)


def measured_peak(model: nn.Module, around: Callable[[], AbstractContextManager[object]]) -> int:
    """Of a step, without the labels: the model is not given them."""

    def step() -> None:
        with around():
            output = model(X)
            loss = cross_entropy(output)
        loss.backward()

    return peak_of_step(model, step, X)


def half() -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("has_features", [False, True])
def test_a_classifier_stays_in_its_budget(by: Any, *, has_features: bool) -> None:
    model = Classifier(has_features=has_features)
    chainstay.fit(model, budget="85%", by=by)
    cross_entropy(model(X)).backward()
    solution = shown(model).solution
    measured = measured_peak(model, nullcontext)
    assert measured <= solution.peak_bytes <= solution.budget
    assert solution.peak_bytes <= 1.05 * measured


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_scores_of_half_precision_are_computed_in_single(by: Any) -> None:
    model = Classifier()
    chainstay.fit(model, budget="100%", by=by)
    with half():
        loss = cross_entropy(model(X))
    loss.backward()
    solution = shown(model).solution
    measured = measured_peak(model, half)
    assert measured <= solution.peak_bytes
    assert solution.peak_bytes <= 1.1 * measured


def test_a_refusal_says_that_it_is_assumed() -> None:
    with pytest.raises(InfeasibleBudgetError, match="at cross_entropy, assumed without loss="):
        chainstay.fit(Classifier(), (X,), budget=1)


def test_towers_have_room_for_it() -> None:
    """Of all plans of the join, the one that keeps everything has the loss at its peak."""

    def peak(*, loss: Callable[[object], torch.Tensor] | None) -> int:
        settings = PlannerSettings(loss=loss, repeats=1, progress=False)
        captured = measure_model(TwoTowers(), (X,), {}, settings)
        assert captured.attempt is not None, "it has branches"
        join = captured.attempt.measured()
        return peak_of_join(join, keep_all_join(join.account.by_kind()))

    measured = peak(loss=cross_entropy)
    assert measured <= peak(loss=None) <= measured + 32


class Own(Classifier):
    """Returns its own loss, which is not taken for scores."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = super().forward(x)
        return {"loss": cross_entropy(scores), "scores": scores}  # type: ignore[dict-item]


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_model_with_a_loss_of_its_own_gets_no_room_for_another(by: Any) -> None:
    model = Own()
    chainstay.fit(model, budget="100%", by=by)
    model(X)["loss"].backward()

    def step() -> None:
        output = model(X)
        output["loss"].backward()

    measured = peak_of_step(model, step, X)
    assert measured <= shown(model).solution.peak_bytes <= 1.05 * measured
