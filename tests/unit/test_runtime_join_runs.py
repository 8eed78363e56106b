"""Joins run by their plans: what comes out, and what a step may not do in between."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import pytest
import torch
from torch import nn

from chainstay import fit, unfit
from chainstay.errors import PlanMismatchError
from chainstay.fitting.fitted import Fitted
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.fitting.strategies.joins import planned_join
from chainstay.planning.join import solve_measured_join
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.schedule import Schedule

WIDTH = 16
Pair = tuple[torch.Tensor, torch.Tensor]


def tower() -> nn.Sequential:
    layers = [(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)]
    return nn.Sequential(*(module for layer in layers for module in layer))


class Apart(nn.Module):
    """Branches that meet behind the model: there is no tail."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = tower(), tower()

    def forward(self, left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> Pair:
        return self.left(left * scale), self.right(right * scale)


class Meeting(Apart):
    """Branches that meet in a sum."""

    def forward(self, left: torch.Tensor, right: torch.Tensor, scale: torch.Tensor) -> Pair:
        one, other = super().forward(left, right, scale)
        met = torch.tanh(one * other)
        return met, met.exp()


def sample() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    left, right = (torch.randn(32, WIDTH, generator=draw).requires_grad_() for _ in range(2))
    return left, right, torch.rand(WIDTH, generator=draw)


def loss_of(output: Pair) -> torch.Tensor:
    return (output[0] - output[1]).square().sum()


@cache
def planned(kind: Callable[[], Apart]) -> tuple[MeasuredModel, PlannedGraph]:
    """Nothing of the branches is kept but their inputs."""
    torch.manual_seed(1)
    settings = PlannerSettings(loss=loss_of, repeats=1, progress=False)
    captured = measure_model(kind(), sample(), {}, settings)
    assert captured.attempt is not None
    measured = captured.attempt.measured()
    profile = measured.account.by_kind()
    stages = [range(len(branch)) for branch in profile.branches]
    words = [f"{j}:F{'n' if i else 'c'}{i}" for j, branch in enumerate(stages) for i in branch]
    words += str(Schedule.keep_all(len(profile.closing))).split()
    for j, branch in reversed(list(enumerate(stages))):
        words += [f"{j}:Fa{i}" for i in branch] + [f"{j}:B{i}" for i in reversed(branch)]
    plan = replace(solve_measured_join(measured, "100%"), schedule=Schedule.parse(" ".join(words)))
    found = planned_join(measured, plan, profile)
    assert any(found.executor.plan.before_backward), "some stage runs again"
    return captured, found


def forward(kind: Callable[[], Apart], inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    captured, by_plan = planned(kind)
    return loss_of(captured.forward(by_plan)(*inputs))


def fitted_of(model: nn.Module) -> Fitted:
    assert isinstance(model.chainstay, Fitted)
    return model.chainstay


KINDS = pytest.mark.parametrize("kind", [Apart, Meeting])


@KINDS
def test_training_by_a_plan_is_plain_training_bit_for_bit(kind: Callable[[], Apart]) -> None:
    model = planned(kind)[0].call.model

    def trained(run: Callable[[tuple[torch.Tensor, ...]], torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(2)
        model.zero_grad()
        inputs = sample()
        loss = run(inputs)
        loss.backward()
        reached = [*inputs[:2], *model.parameters()]
        gradients = [tensor.grad.clone() for tensor in reached if tensor.grad is not None]
        assert len(gradients) == len(reached)
        return [loss.detach(), torch.get_rng_state(), *gradients]

    plain = trained(lambda inputs: loss_of(model(*inputs)))
    by_plan = trained(partial(forward, kind))
    assert all(map(torch.equal, plain, by_plan))


@KINDS
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (0, r"(input of stage \S+|argument of the model) was changed in place .* change a clone"),
        (1, r"(input of stage \S+|argument of the model) was changed in place .* change a clone"),
        (2, r"args\[2\] was changed in place .* needs it again; change a clone"),
    ],
)
def test_what_runs_again_is_not_changed_in_between(
    kind: Callable[[], Apart], changed: int, reason: str
) -> None:
    inputs = sample()
    loss = forward(kind, inputs)
    with torch.no_grad():
        inputs[changed].add_(1)
    with pytest.raises(PlanMismatchError, match=reason):
        loss.backward()
    forward(kind, sample()).backward()  # the next step is not affected


def test_other_modes_than_the_measured_one_go_by_other_plans() -> None:
    captured, by_plan = planned(Meeting)
    model, forward_by_plan = captured.call.model, captured.forward(by_plan)
    plain = copy.deepcopy(model).eval()
    lower = torch.autocast("cpu", dtype=torch.bfloat16)
    model.eval()
    try:
        with lower:
            assert all(map(torch.equal, forward_by_plan(*sample()), plain(*sample())))
    finally:
        model.train()
    forward(Meeting, sample()).backward()


def test_fit_trains_branches_that_meet_in_the_loss_alone() -> None:
    """Without a tail, the loss of the user is all that there is behind the branches."""
    model = Apart()
    generous = fit(model, sample(), budget="92%", loss=loss_of, progress=False, repeats=1)
    ways = {way.name: way.makespan for way in fitted_of(generous).alternatives}
    assert ways["join"] is not None
    unfit(model)
