"""Planned training equals plain training bit for bit, whatever the schedule."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.runtime import MeasuredChain, measure
from chainstay.schedule import Schedule
from models import gpt2, resnet50
from runtime_support import StepRecord, some_schedules, train

SCHEDULES = (
    "keep all",
    "2 segments",
    "5 segments",
    "random 0",
    "random 1",
    "drop everything",
    "inputs gone",
)


@dataclass(frozen=True)
class Case:
    """A model, a batch, and what plain training makes of them."""

    model: nn.Sequential
    batch: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]
    measured: MeasuredChain
    expected: StepRecord


def make_case(
    model: nn.Sequential,
    batch: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor],
    steps: int = 3,
) -> Case:
    measured = measure(model, batch, loss=loss, repeats=1)
    expected = train(copy.deepcopy(model), batch, loss, steps)
    return Case(model, batch, loss, measured, expected)


@cache
def resnet_case() -> Case:
    torch.manual_seed(0)
    images, classes = torch.randn(2, 3, 48, 48), torch.randint(0, 1000, (2,))
    return make_case(
        resnet50(width=16), images, lambda scores: functional.cross_entropy(scores, classes)
    )


@cache
def gpt_case() -> Case:
    torch.manual_seed(0)
    tokens, following = torch.randint(0, 500, (2, 24)), torch.randint(0, 500, (48,))
    return make_case(
        gpt2(blocks=5, width=96, vocabulary=500, context=32),
        tokens,
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
    )


def train_planned(case: Case, schedule: Schedule, steps: int = 3) -> StepRecord:
    """Train a copy, so that each schedule starts from the same model."""
    planned = copy.deepcopy(case.measured.planned(schedule))
    return train(planned, case.batch, case.loss, steps)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("make", [resnet_case, gpt_case])
def test_three_steps_are_equal(make: Callable[[], Case], name: str) -> None:
    case = make()
    schedule = some_schedules(len(case.measured.profile))[name]
    assert train_planned(case, schedule).differences(case.expected) == []


@pytest.mark.long
def test_one_step_of_full_width_gpt2_is_equal() -> None:
    torch.manual_seed(0)
    tokens, following = torch.randint(0, 1000, (1, 8)), torch.randint(0, 1000, (8,))
    case = make_case(
        gpt2(blocks=4, vocabulary=1000),
        tokens,
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
        steps=1,
    )
    schedule = some_schedules(len(case.measured.profile))["random 1"]
    assert train_planned(case, schedule, steps=1).differences(case.expected) == []


def test_training_without_recomputing_random_numbers_or_buffers_would_differ() -> None:
    """The comparison is sharp: with other random numbers it finds differences."""
    case = gpt_case()
    torch.manual_seed(8)
    other = train(copy.deepcopy(case.model), case.batch.flip(0), case.loss)
    assert other.differences(case.expected)
