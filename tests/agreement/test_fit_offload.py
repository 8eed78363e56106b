"""``fit(..., offload=True)``: any model trains within its budget, bit for bit."""

from __future__ import annotations

import copy
import threading
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay import Link, fit, unfit
from chainstay.errors import (
    HostBudgetError,
    InfeasibleBudgetError,
    InvalidBudgetError,
    PlanMismatchError,
    UnsupportedModelError,
)
from chainstay.offloading import OffloadSolution
from chainstay.runtime import trace_memory
from offload_support import perceptron_case
from runtime_support import train
from zoo import build, loss_of


@pytest.mark.parametrize("share", [0.7, 0.4])
@pytest.mark.parametrize("family", ["GPT-2", "U-Net"])
def test_extracted_models(family: str, share: float) -> None:
    """A U-Net's skips stay on the device, and a plan counts them."""
    sample = build(family)
    model: Any = sample.model
    args, kwargs = sample.args, sample.kwargs

    def three_steps() -> list[torch.Tensor]:
        torch.manual_seed(5)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        left = []
        for _ in range(3):
            optimizer.zero_grad()
            value = loss_of(model(*args, **kwargs))
            value.backward()
            optimizer.step()
            left.append(value.detach())
        left += [each.grad.clone() for each in model.parameters() if each.grad is not None]
        left += [each.detach().clone() for each in (*model.parameters(), *model.buffers())]
        return [*left, torch.get_rng_state()]

    def step() -> None:
        output = model(*args, **kwargs)
        loss_of(output).backward()

    initial = copy.deepcopy(model.state_dict())
    expected = three_steps()
    model.load_state_dict(initial)
    settings: dict[str, Any] = {"loss": loss_of, "offload": True, "recompute": False, "repeats": 1}
    try:
        fit(model, args, kwargs, budget=share, method="heuristics", **settings)
    except InfeasibleBudgetError as error:
        fit(model, args, kwargs, budget=error.required, method="heuristics", **settings)
    assert all(map(torch.equal, three_steps(), expected))
    step()
    # Labels are shifted in front of the chain; it counts what it reads, not what they were.
    given = sum(each.nbytes for each in args)
    peak = trace_memory(step, "cpu").peak_bytes + given
    solution = model.chainstay.solution
    assert isinstance(solution, OffloadSolution)
    assert 0.9 * solution.peak_bytes <= peak <= solution.peak_bytes <= solution.budget
    assert "activations move" in str(model.chainstay)
    unfit(model)
    assert not [each for each in threading.enumerate() if each.name.startswith("chainstay")]


def fitted(model: nn.Module, batch: torch.Tensor, **settings: Any) -> Any:  # noqa: ANN401
    keywords = {"budget": 0.6, "offload": True, "recompute": False, "repeats": 1, **settings}
    return fit(model, (batch,), **keywords)


def test_sequential_copies_and_new_shapes() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    expected = train(copy.deepcopy(model), case.batch, case.loss)
    fitted(model, case.batch, loss=case.loss, budget="20KiB")
    twin = copy.deepcopy(model)
    assert train(twin, case.batch, case.loss).differences(expected) == []
    assert train(model, case.batch, case.loss).differences(expected) == []
    model(case.batch[:1]).sum().backward()
    assert len(model.chainstay.plans) == 2
    unfit(model)
    unfit(twin)


def test_taking_the_plan_away_between_forward_and_backward() -> None:
    case = perceptron_case()
    model = copy.deepcopy(case.model)
    slow = Link.from_bytes_per_second(4_000_000_000, latency_ns=1_000)
    fitted(model, case.batch, loss=case.loss, link=slow)
    value = case.loss(model(case.batch))
    unfit(model)
    with pytest.raises(PlanMismatchError, match="closed"):
        value.backward()
    case.loss(model(case.batch)).backward()


def test_host_budget_by_name() -> None:
    case = perceptron_case()
    model = copy.deepcopy(case.model)
    with pytest.raises(HostBudgetError, match=r"host_budget is 1\.00 KiB") as info:
        fitted(model, case.batch, loss=case.loss, host_budget="1KiB")
    assert not hasattr(model, "chainstay")
    fitted(model, case.batch, loss=case.loss, host_budget=2 * info.value.required)
    unfit(model)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"recompute": True}, ValueError, "not joined yet; set recompute=False"),
        ({"offload": False}, ValueError, "nothing can save memory"),
        ({"offload": False, "recompute": True, "host_budget": 1}, ValueError, "are for offload"),
        ({"link": 12}, ValueError, "link is 12, must be a Link"),
        ({"host_budget": "much"}, InvalidBudgetError, "host_budget is 'much'|'much'"),
        ({"host_budget": -1}, InvalidBudgetError, "host_budget is -1; write whole bytes"),
        ({"by": "blocks"}, UnsupportedModelError, "cannot be offloaded stage by stage: by is"),
        ({"budget": 1}, InfeasibleBudgetError, "the least feasible budget is"),
        ({"method": "revolve"}, chainstay.UnknownMethodError, "method is 'revolve'"),
    ],
)
def test_refusals_leave_the_model_alone(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    with pytest.raises(error, match=text):
        fitted(model, torch.zeros(4, 8), **settings)
    assert not hasattr(model, "chainstay")
