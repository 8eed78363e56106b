"""The whole way on real networks: measure, solve, train by the plan, compare."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay import Schedule, Solution, least_budget, simulate, solve_chain, solve_measured
from chainstay.runtime import MeasuredChain, measure, trace_memory
from models import gpt2, resnet50
from runtime_support import train

Loss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model, a batch, and the chain measured on them."""

    model: nn.Sequential
    batch: torch.Tensor
    loss: Loss
    measured: MeasuredChain

    def solution(self, share: float) -> Solution:
        """The optimum `share` of the way from the least budget to keep-all."""
        profile = self.measured.profile
        least = least_budget(profile)
        keep_all = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
        return solve_chain(profile, least + int(share * (keep_all - least)), method="dp")


@cache
def resnet_case() -> Case:
    torch.manual_seed(0)
    images, classes = torch.randn(4, 3, 64, 64), torch.randint(0, 1000, (4,))
    return _case(
        resnet50(width=16), images, lambda scores: functional.cross_entropy(scores, classes)
    )


@cache
def gpt_case() -> Case:
    torch.manual_seed(0)
    tokens, following = torch.randint(0, 8000, (1, 64)), torch.randint(0, 8000, (64,))
    return _case(
        gpt2(width=192, vocabulary=8000, context=64),
        tokens,
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
    )


def _case(model: nn.Sequential, batch: torch.Tensor, loss: Loss) -> Case:
    return Case(model, batch, loss, measure(model, batch, loss=loss, repeats=1))


CASES = pytest.mark.parametrize("make", [resnet_case, gpt_case])


@pytest.mark.long
@CASES
@pytest.mark.parametrize("share", [step / 9 for step in range(10)])
def test_training_stays_within_the_budget(make: Callable[[], Case], share: float) -> None:
    case = make()
    solution = case.solution(share)
    planned = case.measured.planned(solution)
    for parameter in case.model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        output = planned(case.batch)  # held until the step ends, as in most training loops
        case.loss(output).backward()

    measured = trace_memory(step, "cpu").peak_bytes + case.batch.nbytes
    assert measured <= solution.peak_bytes <= solution.budget
    assert solution.peak_bytes <= 1.1 * measured


@pytest.mark.long
@CASES
@pytest.mark.parametrize("share", [0.0, 0.5])
def test_optimal_plans_train_bit_for_bit(make: Callable[[], Case], share: float) -> None:
    case = make()
    plain = copy.deepcopy(case.model)
    mine = copy.deepcopy(case.model)
    measured = measure(mine, case.batch, loss=case.loss, repeats=1)
    planned = measured.planned(case.solution(share).schedule)
    expected = train(plain, case.batch, case.loss)
    assert train(planned, case.batch, case.loss).differences(expected) == []


@pytest.mark.long
def test_a_plan_that_keeps_stages_in_part_trains_bit_for_bit_within_its_budget() -> None:
    case = gpt_case()
    plain, mine = copy.deepcopy(case.model), copy.deepcopy(case.model)
    measured = measure(mine, case.batch, loss=case.loss, repeats=1)
    solution = solve_measured(measured, "70%")
    assert any(op.option for op in solution.schedule)
    planned = measured.planned(solution)
    expected = train(plain, case.batch, case.loss)
    assert train(planned, case.batch, case.loss).differences(expected) == []
    step = trace_memory(lambda: case.loss(planned(case.batch)).backward(), "cpu")
    assert step.peak_bytes + case.batch.nbytes <= solution.peak_bytes <= solution.budget
