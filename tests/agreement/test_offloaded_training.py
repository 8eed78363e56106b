"""Training with offloading: bit for bit what plain training gives, within the budget."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn

from chainstay.runtime import trace_memory
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from live_tensors import leave_out_other_tests, tensors_alive
from offload_support import BUGS, FAST, Case, gpt_case, perceptron_case, resnet_case

CASES = [resnet_case, gpt_case]


@pytest.mark.parametrize("tenths", range(10))
@pytest.mark.parametrize("make", CASES)
def test_equal_bit_for_bit_and_within_the_budget(make: Callable[[], Case], tenths: int) -> None:
    case = make()
    chain = case.offloaded(tenths)
    assert case.trained(chain).differences(case.trained(case.model)) == []
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    engine = CopyingEngine(FAST)
    unpoisoned = case.offloaded(tenths, engine)
    case.step(unpoisoned)
    trace = trace_memory(lambda: case.step(unpoisoned), "cpu")
    sent = engine.pool.allocated_bytes
    unpoisoned.close()
    assert trace.peak_bytes + case.batch.nbytes <= case.budget(tenths)
    assert abs(trace.end_bytes) <= 4, "a step leaves its loss behind, at most"
    plain = case.measured.offload_profile.peak_bytes
    assert sent >= plain - case.budget(tenths), "what is missing is on the host"


@pytest.mark.parametrize("make", [*CASES, perceptron_case])
def test_the_least_budget_is_used_up(make: Callable[[], Case]) -> None:
    """The prediction is no loose bound."""
    case = make()
    with_engine = case.offloaded(0, CopyingEngine(FAST))
    case.step(with_engine)
    trace = trace_memory(lambda: case.step(with_engine), "cpu")
    with_engine.close()
    assert 0.9 * case.budget(0) <= trace.peak_bytes + case.batch.nbytes <= case.budget(0)


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("make", [*CASES, perceptron_case])
def test_seeded_bugs_are_caught(make: Callable[[], Case], bug: Callable[[], CopyingEngine]) -> None:
    case = make()
    engine = bug()
    chain = case.offloaded(0, engine)
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    case.step(chain)
    chain.close()
    assert any(p.grad is not None and p.grad.isnan().any() for p in case.model.parameters())


@pytest.mark.long
def test_two_hundred_steps_leave_nothing() -> None:
    leave_out_other_tests()
    case = perceptron_case()
    engine = CopyingEngine(FAST, poison=True)
    chain = case.offloaded(0, engine)
    losses = [case.step(chain) for _ in range(2)]

    def census() -> tuple[int, int, int, int]:
        return (
            tensors_alive(),
            threading.active_count(),
            engine.pool.allocated_bytes,
            engine.pool.used_bytes,
        )

    before = census()
    for _ in range(200):
        losses[0] = case.step(chain)
    assert census() == before
    assert before[2] > 0
    assert before[3] == 0
    chain.close()
    assert engine.pool.allocated_bytes == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("chainstay")]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]


def plain_gradients(case: Case, function: Callable[[nn.Module], object]) -> list[torch.Tensor]:
    case.model.zero_grad()
    function(case.model)
    return gradients(case.model)


def accumulate(case: Case, model: nn.Module) -> None:
    """Both forwards before both backwards."""
    values = [case.loss(model(case.batch)) for _ in range(2)]
    for value in values:
        value.backward()


def backward_twice(case: Case, model: nn.Module) -> None:
    value = case.loss(model(case.batch))
    value.backward(retain_graph=True)
    value.backward()


def gradient_of_gradient(case: Case, model: nn.Module) -> None:
    value = case.loss(model(case.batch))
    firsts = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
    sum(first.square().sum() for first in firsts).backward()  # type: ignore[union-attr]


def partly(case: Case, model: nn.Module) -> None:
    """The gradient of an upper stage alone, then everything's."""
    value = case.loss(model(case.batch))
    upper = list(model.parameters())[-1]
    (upper.grad,) = torch.autograd.grad(value, [upper], retain_graph=True)
    value.backward()


@pytest.mark.parametrize("use", [accumulate, backward_twice, gradient_of_gradient, partly])
def test_other_ways_to_use_autograd(use: Callable[[Case, nn.Module], None]) -> None:
    case = perceptron_case()
    expected = plain_gradients(case, lambda model: use(case, model))
    engine = CopyingEngine(FAST, poison=True)
    chain = case.offloaded(0, engine)
    case.model.zero_grad()
    use(case, chain)
    assert all(map(torch.equal, gradients(case.model), expected))
    assert engine.pool.used_bytes == 0
    chain.close()
