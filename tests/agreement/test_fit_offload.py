"""``fit`` with transfers: any model trains within its budget, bit for bit."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
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
from chainstay.problems.offload import OffloadSolution
from chainstay.runtime import trace_memory
from chainstay.runtime.execute.alternatives import Alternative
from offload_support import perceptron_case
from runtime_support import train
from zoo import build, loss_of


@pytest.mark.parametrize(
    ("family", "share", "recompute"),
    [
        ("GPT-2", 0.4, False),
        ("GPT-2", 0.5, True),
        ("U-Net", 0.4, False),
        ("U-Net", 0.6, True),
        ("ResNet-50", 0.7, True),
        ("DenseNet-121", 0.7, True),
    ],
)
def test_extracted_models(family: str, share: float, *, recompute: bool) -> None:
    """Shared tensors, as a U-Net's, stay on the device, and a plan counts them."""
    threads = set(threading.enumerate())
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
        left += [
            parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
        ]
        left += [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
        return [*left, torch.get_rng_state()]

    def step() -> None:
        output = model(*args, **kwargs)
        loss_of(output).backward()

    initial = copy.deepcopy(model.state_dict())
    expected = three_steps()
    model.load_state_dict(initial)
    settings: dict[str, Any] = {"loss": loss_of, "repeats": 1}
    if recompute:
        settings["link"] = Link.from_bytes_per_second(200_000_000, latency_ns=1_000)
        settings["granularity"] = 10
    else:
        settings |= {"offload": True, "recompute": False, "method": "heuristics"}
    try:
        fit(model, args, kwargs, budget=share, **settings)
    except InfeasibleBudgetError as error:
        fit(model, args, kwargs, budget=error.required, **settings)
    assert all(map(torch.equal, three_steps(), expected))
    step()
    # Labels are shifted in front of the chain; it counts what it reads, not what they were.
    given = sum(tensor.nbytes for tensor in args)
    peak = trace_memory(step, "cpu").peak_bytes + given
    solution = model.chainstay.solution
    assert peak <= solution.peak_bytes <= solution.budget
    if not recompute:
        assert isinstance(solution, OffloadSolution)
        assert 0.9 * solution.peak_bytes <= peak
        assert "activations move" in str(model.chainstay)
    unfit(model)
    assert set(threading.enumerate()) <= threads


def fitted(model: nn.Module, batch: torch.Tensor, **settings: Any) -> Any:
    keywords = {"budget": 0.6, "offload": True, "recompute": False, "repeats": 1, **settings}
    return fit(model, (batch,), **keywords)


@pytest.mark.long
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


@pytest.mark.long
def test_plans_of_one_model_share_their_host_memory() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    fitted(model, case.batch, loss=case.loss, budget="20KiB", host_budget="18KiB")
    first = model.chainstay.plans[0].executor.transfers.engine.pool
    assert first.allocated_bytes > 0, "the rehearsal has pinned it"
    for batch in (case.batch, case.batch[:15]) * 2:
        case.loss(model(batch)).backward()
    pools = [plan.executor.transfers.engine.pool for plan in model.chainstay.plans]
    assert len(pools) == 2
    assert 0 < pools[0].allocated_bytes == pools[1].allocated_bytes <= 18 * 1024
    unfit(model)
    assert pools[0].allocated_bytes == 0


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


@pytest.mark.long
def test_a_model_that_is_dropped_takes_its_plan_along() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    threads = set(threading.enumerate())
    fitted(model, case.batch, loss=case.loss, budget="20KiB")
    case.loss(model(case.batch)).backward()
    pool = weakref.ref(model.chainstay.plans[0].executor.transfers.engine.pool)
    assert set(threading.enumerate()) > threads
    del model
    gc.collect()
    assert pool() is None
    assert set(threading.enumerate()) <= threads


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
        ({"offload": False}, ValueError, "recompute is False and offload is False, so that nothi"),
        ({"offload": None}, ValueError, "a cpu model has no link to the host but one passed"),
        ({"offload": False, "recompute": True, "host_budget": 1}, ValueError, "are for offload"),
        ({"offload": None, "host_budget": 1}, ValueError, "a cpu model has no link to the host"),
        ({"link": 12}, ValueError, "link is 12, must be a Link"),
        ({"host_budget": "much"}, InvalidBudgetError, "host_budget is 'much'|'much'"),
        ({"host_budget": -1}, InvalidBudgetError, "host_budget is -1; write whole bytes"),
        ({"host_budget": True}, InvalidBudgetError, "host_budget is True; write whole bytes"),
        (
            {"by": "blocks"},
            UnsupportedModelError,
            r"by blocks \(as asked for\)",
        ),
        (
            {"budget": 1},
            InfeasibleBudgetError,
            r"the least feasible budget is .* That is \d+% of plain training",
        ),
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


def ways(model: Any) -> dict[str, Alternative]:
    return {way.name: way for way in model.chainstay.alternatives}


@pytest.mark.parametrize("bandwidth", [10**5, 3 * 10**8, 10**12])
def test_the_fastest_of_four_ways_is_chosen(bandwidth: int) -> None:
    """Slow links are of no use, fast ones of all where stages take longer than giving orders."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)) for _ in "123456")
    model: Any = nn.Sequential(*blocks)
    batch, link = torch.randn(1024, 256), Link.from_bytes_per_second(bandwidth)
    loss = perceptron_case().loss
    fitted(model, batch, loss=loss, link=link, offload=None, recompute=True, budget=0.65)
    found = ways(model)
    assert list(found) == ["keep all", "recompute", "offload", "combined"]
    (chosen,) = (way for way in found.values() if way.is_chosen)
    times = [way.makespan for way in found.values() if way.makespan is not None]
    assert chosen.makespan == min(times) == model.chainstay.solution.makespan
    assert found["keep all"].makespan is None
    assert found["keep all"].remark == "does not fit"
    plain = model.chainstay.plans[0].plain_time
    for way in found.values():
        if way.makespan is not None and way.makespan > chosen.makespan:
            assert way.remark == f"{float(way.makespan) / plain - 1:.1%} slower than plain"
    assert found["recompute"].host_bytes == 0
    assert found["offload"].host_bytes > 0
    table = str(model.chainstay)
    assert all(name in table for name in found)
    assert f"*  {chosen.name}" in table
    assert bandwidth > 10**5 or chosen.host_bytes == 0
    assert bandwidth < 10**12 or chosen.host_bytes > 0
    loss(model(batch)).backward()
    unfit(model)


def test_nothing_is_faster_than_keeping_all() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    fitted(model, case.batch, loss=case.loss, offload=None, recompute=True, budget="1GiB")
    found = ways(model)
    assert found["keep all"].is_chosen
    assert {way.remark for way in found.values()} == {"nothing is faster", "not needed"}


def test_without_a_link_nothing_moves_on_a_cpu() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    fitted(model, case.batch, loss=case.loss, offload=None, recompute=True, budget=0.7)
    found = ways(model)
    assert found["recompute"].is_chosen
    assert found["offload"].remark == found["combined"].remark
    assert "no link to the host but one passed as link=" in found["offload"].remark
    assert "offload" not in str(model.chainstay), "what is not tried is not shown"
    unfit(model)
    fitted(model, case.batch, loss=case.loss, recompute=False, budget=0.7)
    assert ways(model)["recompute"].remark == "recompute is False"
    unfit(model)


@pytest.mark.long
def test_the_host_budget_holds_for_all_ways() -> None:
    case = perceptron_case()
    model: Any = copy.deepcopy(case.model)
    link = Link.from_bytes_per_second(10**12)
    fitted(
        model, case.batch, loss=case.loss, link=link, offload=None, recompute=True, budget=0.6,
        host_budget="6KiB",
    )  # fmt: skip
    assert all(way.host_bytes <= 6 * 1024 for way in ways(model).values())
    expected = train(copy.deepcopy(case.model), case.batch, case.loss)
    assert train(model, case.batch, case.loss).differences(expected) == []
    unfit(model)
