"""Predicted peak against measured peak: never too low, and close."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from models import gpt2, resnet50
from runtime_support import some_schedules
from torch import nn
from torch.nn import functional

from chainstay.runtime import MeasuredChain, measure, trace_memory
from chainstay.validation.simulate import simulate

SCHEDULES = ("keep all", "2 segments", "5 segments", "random 0", "random 1", "drop everything")


@dataclass(frozen=True)
class Case:
    model: nn.Sequential
    batch: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]
    measured: MeasuredChain


def make_case(
    model: nn.Sequential, batch: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
) -> Case:
    measured = measure(model, batch, loss=loss, repeats=1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return Case(model, batch, loss, measured)


@cache
def resnet_case() -> Case:
    torch.manual_seed(0)
    images, classes = torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,))
    return make_case(resnet50(), images, lambda scores: functional.cross_entropy(scores, classes))


@cache
def gpt_case() -> Case:
    return _gpt(width=192, vocabulary=1000, batch=4, dropout=0.0)


@cache
def gpt_case_with_dropout() -> Case:
    return _gpt(width=192, vocabulary=1000, batch=4)


@cache
def gpt_case_of_large_output() -> Case:
    return _gpt(width=96, vocabulary=50257, batch=2)


def _gpt(width: int, vocabulary: int, batch: int, dropout: float = 0.1) -> Case:
    torch.manual_seed(0)
    tokens = torch.randint(0, vocabulary, (batch, 64))
    following = torch.randint(0, vocabulary, (batch * 64,))
    return make_case(
        gpt2(width=width, vocabulary=vocabulary, context=64, dropout=dropout),
        tokens,
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
    )


def measured_peak(case: Case, name: str) -> tuple[int, int]:
    """Predicted and measured peak of a whole step in bytes, the batch included."""
    schedule = some_schedules(len(case.measured.profile))[name]
    planned = case.measured.planned(schedule)

    def step() -> None:
        case.loss(planned(case.batch)).backward()  # type: ignore[no-untyped-call]

    step()
    trace = trace_memory(step, "cpu")
    assert trace.end_bytes == 0, "a step leaves nothing behind"
    predicted = simulate(case.measured.profile, schedule).peak_bytes
    return predicted, trace.peak_bytes + case.batch.nbytes


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("make", [resnet_case, gpt_case, gpt_case_of_large_output])
def test_prediction_covers_the_peak_within_a_tenth(make: Callable[[], Case], name: str) -> None:
    predicted, measured = measured_peak(make(), name)
    assert measured <= predicted <= 1.1 * measured


@pytest.mark.parametrize("name", SCHEDULES)
def test_prediction_exceeds_the_peak_by_at_most_one_overhead(name: str) -> None:
    """A profile has one forward overhead for ``Fn``, ``Fc`` and ``Fa``: that of the worst.

    Attention with dropout on the CPU allocates nearly as much in passing, which ``Fn``
    needs on top of its output, as it saves, which ``Fa`` has in its saved bytes already.
    """
    case = gpt_case_with_dropout()
    predicted, measured = measured_peak(case, name)
    overhead = max(stage.forward_overhead_bytes for stage in case.measured.profile.stages)
    assert measured <= predicted <= 1.1 * measured + overhead


def test_schedules_really_need_different_memory() -> None:
    peaks = {name: measured_peak(gpt_case(), name)[1] for name in SCHEDULES}
    assert peaks["drop everything"] < peaks["2 segments"] < 0.7 * peaks["keep all"]
