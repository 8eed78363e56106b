"""Models whose branches meet, fit for one core, and the plans that they train by in tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.baselines.join import keep_all_join
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.fitting.strategies.joins import planned_join
from chainstay.planning.join import peak_of_join, solve_measured_join
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.joins.measured_join import MeasuredJoin
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from sgd_steps import peak_of_step, three_steps
from zoo import FAMILIES, loss_of

__all__ = ["JOINS", "JoinCase", "Perceptrons", "Siamese", "case_of", "three_steps_of"]

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class Siamese(nn.Module):
    """Two inputs or three through one tower: a distance, or the triplet loss."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        first, second, *third = map(self.tower, inputs)
        if not third:
            return functional.mse_loss(first, second)
        return functional.triplet_margin_loss(first, second, *third)


class Perceptrons(nn.Module):
    """Two towers of their own and, once they are fused, a tail as long as they are."""

    def __init__(self, width: int = 32, depth: int = 4, *, shares_head: bool = False) -> None:
        super().__init__()
        self.left = self._layers(width, depth)
        self.right = self._layers(width, depth)
        self.head = nn.Linear(width, width) if shares_head else nn.Identity()
        self.tail = nn.Sequential(*self._layers(width, depth), nn.Linear(width, 1))

    def _layers(self, width: int, depth: int) -> nn.Sequential:
        layers = (
            (nn.Linear(width, 4 * width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        return nn.Sequential(*(module for layer in layers for module in layer))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        fused = self.head(self.left(left)) * self.head(self.right(right))
        result: torch.Tensor = self.tail(fused)
        return result


@dataclass(frozen=True)
class Unread:
    """Tensors that a model returns and `loss_of` does not find."""

    states: list[torch.Tensor]


class Remembering(nn.Module):
    """Two towers that return a state of every layer, too; with or without a tail."""

    def __init__(self, *, has_tail: bool, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        layers = Perceptrons(width, depth)
        self.left, self.right = layers.left, layers.right
        self.tail = layers.tail if has_tail else None

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[Any, ...]:
        states: list[torch.Tensor] = []
        ends = [self._run(self.left, left, states), self._run(self.right, right, states)]
        met = ends if self.tail is None else (self.tail(ends[0] * ends[1]), ends[1])
        return (*met, Unread(states))

    @staticmethod
    def _run(tower: nn.Sequential, x: torch.Tensor, states: list[torch.Tensor]) -> torch.Tensor:
        for layer in tower:
            x = layer(x)
            if isinstance(layer, nn.Dropout):
                states.append(x.sin().exp().tanh().mean(0))  # small, and its graph is not
        return x


def _resnet18() -> nn.Module:
    """torchvision's, with an eighth of the channels behind the stem."""
    resnet = pytest.importorskip("torchvision.models.resnet")

    class Narrow(resnet.ResNet):  # type: ignore[misc,name-defined]  # known only at run time
        def _make_layer(self, block: Any, planes: int, *args: Any, **options: Any) -> Any:
            return super()._make_layer(block, planes // 8, *args, **options)

    model: nn.Module = Narrow(resnet.BasicBlock, [2, 2, 2, 2], num_classes=16)
    model.fc = nn.Linear(64, 16)
    return model


def _siamese() -> tuple[nn.Module, Call]:
    return Siamese(_resnet18()), (tuple(torch.randn(2, 3, 48, 48) for _ in range(2)), {})


def _triplet() -> tuple[nn.Module, Call]:
    return Siamese(_resnet18()), (tuple(torch.randn(2, 3, 48, 48) for _ in range(3)), {})


def _clip() -> tuple[nn.Module, Call]:
    sample = FAMILIES["CLIP"]()
    return sample.model, (sample.args, sample.kwargs)


def _tailed() -> tuple[nn.Module, Call]:
    return Perceptrons(), ((torch.randn(64, 32), torch.randn(64, 32)), {})


def _two_towers() -> tuple[nn.Module, Call]:
    """Its outputs are those of the towers, too."""
    sample = FAMILIES["two towers"]()
    kwargs = {"query": torch.randn(96, 32), "item": torch.randn(96, 32), "weight": None}
    return sample.model, ((), kwargs)


def _unread(*, has_tail: bool) -> tuple[nn.Module, Call]:
    return Remembering(has_tail=has_tail), _tailed()[1]


JOINS: Mapping[str, Callable[[], tuple[nn.Module, Call]]] = {
    "Siamese ResNet-18": _siamese,
    "triplet ResNet-18": _triplet,
    "CLIP": _clip,
    "tail": _tailed,
    "two towers": _two_towers,
    "unread states": partial(_unread, has_tail=False),
    "unread states before a tail": partial(_unread, has_tail=True),
}


@dataclass(frozen=True)
class JoinCase:
    """A model, captured and measured as a join."""

    model: nn.Module
    call: Call
    captured: MeasuredModel
    measured: MeasuredJoin
    initial: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def keep_all_peak(self) -> int:
        return peak_of_join(self.measured, keep_all_join(self.measured.account.by_kind()))

    @property
    def least(self) -> int:
        with pytest.raises(InfeasibleBudgetError) as error:
            solve_measured_join(self.measured, 1)
        return error.value.required

    def solved(self, share: float) -> Solution:
        """The plan at a share of plain training's memory, or at the least that there is."""
        budget = max(1, int(share * self.keep_all_peak))
        try:
            return solve_measured_join(self.measured, budget)
        except InfeasibleBudgetError as error:
            return solve_measured_join(self.measured, error.required)

    @contextmanager
    def planned(self, plan: Solution | Schedule) -> Iterator[None]:
        """The model trains by `plan` inside, as if `fit` had found it."""
        solution = plan if isinstance(plan, Solution) else replace(self.solved(1.0), schedule=plan)
        profile = self.measured.account.by_kind()
        with self.captured.running(planned_join(self.measured, solution, profile)):
            yield

    def __call__(self) -> Any:
        args, kwargs = self.call
        return self.model(*args, **kwargs)

    def peak(self) -> int:
        """Of a whole step as the model is now, inputs included."""

        def step() -> None:
            output = self()  # held until the step ends, as in most training loops
            loss_of(output).backward()

        return peak_of_step(self.model, step, self.call)


@cache
def case_of(name: str) -> JoinCase:
    """Always with the same weights and the same sample."""
    torch.manual_seed(0)
    model, call = JOINS[name]()
    model.train()
    # Three branches make many states for the solver: fewer stages keep the tests quick.
    granularity: Granularity = 24 if len(call[0]) == 3 else "fine"
    settings = PlannerSettings(loss=loss_of, granularity=granularity, repeats=1, progress=False)
    captured = measure_model(model, *call, settings)
    assert captured.attempt is not None, "it has branches"
    measured = captured.attempt.measured()
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    return JoinCase(model, call, captured, measured, initial)


def three_steps_of(case: JoinCase) -> dict[str, torch.Tensor]:
    """What three steps leave behind."""
    return three_steps(case.model, lambda: loss_of(case()), case.initial)
