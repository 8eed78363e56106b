"""A plan is tried out before it is used; one that needs more than predicted is replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import chainstay
from chainstay import InfeasibleBudgetError
from chainstay.fitting import solved_plans
from chainstay.fitting.tried_plans import tried
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.measures.rehearsal import Rehearsal, rehearse_graph
from chainstay.runtime.stage.loss_stage import loss_stage
from chainstay.schedule import Schedule
from chainstay.solution import Family, Solution

X = torch.linspace(-2, 2, 256 * 16).reshape(256, 16)


def fitted(budget: float | str = "60%") -> Any:
    torch.manual_seed(0)
    layers = [(nn.Linear(16, 16), nn.Tanh(), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*(module for layer in layers for module in layer))
    return chainstay.fit(model, (X,), budget=budget, loss=torch.Tensor.mean, repeats=1)


def test_a_rehearsal_finds_what_was_predicted_and_leaves_no_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[tuple[int, Rehearsal]] = []

    def noted(planned: Any, *args: Any) -> Rehearsal:
        result = rehearse_graph(planned, *args)
        found.append((planned.solution.peak_bytes, result))
        return result

    monkeypatch.setattr(solved_plans, "rehearse_graph", noted)
    model = fitted()
    ((predicted, rehearsal),) = found
    assert 0.8 * predicted <= rehearsal.peak_bytes <= predicted
    assert rehearsal.operator == ""
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_loss_is_traced_once_to_be_measured_and_rehearsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced, rehearsed = [], []

    def noted(*args: Any) -> Any:
        traced.append(loss_stage(*args))
        return traced[-1]

    def seen(planned: Any, inputs: Any, loss: Any, limit: int) -> Rehearsal:
        rehearsed.append(loss)
        return rehearse_graph(planned, inputs, loss, limit)

    monkeypatch.setattr(solved_plans, "loss_stage", noted)
    monkeypatch.setattr(solved_plans, "rehearse_graph", seen)
    fitted()
    assert len(traced) == 1
    assert rehearsed == traced


def test_an_operator_beyond_the_limit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Rehearsal] = []

    def tight(planned: Any, inputs: Any, loss: Any, limit: int) -> Rehearsal:
        found.append(rehearse_graph(planned, inputs, loss, limit // 2))
        return rehearse_graph(planned, inputs, loss, limit)

    monkeypatch.setattr(solved_plans, "rehearse_graph", tight)
    fitted()
    assert found[0].operator.startswith("aten")


@pytest.mark.long
def test_a_plan_that_needs_more_is_replaced_by_a_tighter_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    generous = fitted().chainstay.solution
    needs: list[int] = []

    def more(planned: Any, *_: Any) -> Rehearsal:
        needs.append(planned.solution.peak_bytes)
        return Rehearsal(generous.budget + (2048 if len(needs) == 1 else 0), "aten.mm.default")

    monkeypatch.setattr(solved_plans, "rehearse_graph", more)
    solution = fitted().chainstay.solution
    assert len(needs) == 2
    assert solution.peak_bytes <= generous.budget - 2048
    assert "is exceeded first at aten.mm.default; planning again" in capfd.readouterr().err


@dataclass(frozen=True)
class Chain:
    solution: Solution
    profile: ClassVar[object] = object.__new__(ChainProfile)

    def close(self) -> None:
        pass


class Join(Chain):
    profile = object.__new__(JoinProfile)


@pytest.mark.parametrize(("second", "bounds"), [(Chain, (70, 60)), (Join, (0, 0))])
def test_a_bound_is_kept_for_a_tighter_plan_of_the_same_way(
    second: type[Chain], bounds: tuple[int, int]
) -> None:
    """Branches that are planned apart were measured apart: a chain's bound does not hold there."""

    def solved(budget: int) -> Any:
        is_first = budget == 100
        solution = Solution(
            schedule=Schedule.parse("Fc0 Fa1 B1 Fa0 B0"),
            makespan=80 if is_first or second is Chain else 50,
            peak_bytes=budget,
            budget=budget,
            lower_bound=70 if is_first else 0,
            unrestricted_bound=60 if is_first else 0,
            family=Family.ALL,
            method="dp",
            solve_seconds=0.0,
        )
        return (Chain if is_first else second)(solution)

    def more(planned: Any, _: int) -> Rehearsal:
        return Rehearsal(planned.solution.peak_bytes + 8, "aten.mm.default")

    planned = tried(100, solved, more, is_told=False).solution
    assert planned.budget == 100
    assert planned.peak_bytes == 92
    assert (planned.lower_bound, planned.unrestricted_bound) == bounds


def test_plain_training_may_need_all_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step needs a tenth more than predicted. In as many bytes, something is run again."""

    def more(planned: Any, *_: Any) -> Rehearsal:
        return Rehearsal(planned.solution.peak_bytes * 11 // 10, "aten.mm.default")

    monkeypatch.setattr(solved_plans, "rehearse_graph", more)
    plain = Schedule.keep_all(len(fitted("100%").chainstay.plans[-1].profile))
    assert [fitted(share).chainstay.solution.schedule for share in ("100%", 1.0)] == [plain] * 2
    needed = fitted("100%").chainstay.solution.peak_bytes
    assert fitted(needed).chainstay.solution.schedule != plain


@pytest.mark.usefixtures("equal_times")
def test_a_plan_that_always_needs_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = fitted().chainstay.solution.budget
    tried: list[int] = []

    def more(planned: Any, *_: Any) -> Rehearsal:
        tried.append(planned.solution.peak_bytes)
        return Rehearsal(budget + 64, "aten.mm.default")

    monkeypatch.setattr(solved_plans, "rehearse_graph", more)
    with pytest.raises(InfeasibleBudgetError) as refusal:
        fitted()
    assert (refusal.value.budget, refusal.value.required) == (budget, budget + 64)
    assert len(tried) == 5, "the first plan, three that are tighter, and that of the least budget"


@pytest.mark.long
def test_the_least_budget_that_is_named_has_been_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes 8 bytes more than predicted."""

    def more(planned: Any, *_: Any) -> Rehearsal:
        return Rehearsal(planned.solution.peak_bytes + 8, "aten.empty")

    monkeypatch.setattr(solved_plans, "rehearse_graph", more)
    with pytest.raises(InfeasibleBudgetError) as refusal:
        fitted(1)
    required = refusal.value.required
    assert required - 8 <= fitted(required).chainstay.solution.peak_bytes + 8 <= required
    with pytest.raises(InfeasibleBudgetError, match="needs most"):
        fitted(required - 8)
