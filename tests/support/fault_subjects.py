"""Small models of every kind of plan, each beside a plain twin, for tests that break things.

A subject trains by one kind of plan: recomputing (of an exported graph, of a chain as it is, of
blocks), of several states at once, of branches that meet, offloading, and both at once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch
from torch import nn

import chainstay
from chainstay.baselines.join import keep_all_join
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting.fitted import Fitted
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.fitting.strategies.joins import planned_join
from chainstay.planning.join import peak_of_join, solve_measured_join
from chainstay.profiles import Link
from chainstay.runtime import PlannedChain, measure
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.execute.items import movable_chain
from chainstay.runtime.transfer import PlannedTransfers
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from combined_support import least_plan, with_random_transfers
from join_models import Perceptrons
from runtime_support import random_persistent
from training_conditions import RECOMPUTING, SHARES, SUBJECTS, Sample, ShareOf
from zoo import loss_of

__all__ = ["MAKERS", "Subject", "subject"]

_FAST: Final = Link.from_bytes_per_second(4_000_000_000, latency_ns=2_000, duplex="full")


@dataclass(frozen=True)
class Subject:
    """A model that trains by a plan.

    Attributes:
        name: For people.
        plain: An equal model without a plan.
        planned: The model; of chains that were planned by hand, what stands in its place.
        sample: How both are called.
        smaller: Another call, with fewer rows; ``None`` where the plan is for one shape only.
        initial: Both models' state at first.
    """

    name: str
    plain: nn.Module
    planned: nn.Module
    sample: Sample
    smaller: Sample | None
    initial: Mapping[str, torch.Tensor]

    @property
    def engine(self) -> CopyingEngine | None:
        """What copies, where anything is offloaded."""
        executor: object = (
            self.planned._executor
            if isinstance(self.planned, PlannedChain)
            else getattr(fitted_of(self.planned).plans[-1], "executor", None)
        )
        transfers = executor.transfers if isinstance(executor, Executor) else None
        engine = None if transfers is None else transfers.engine
        assert engine is None or isinstance(engine, CopyingEngine)
        return engine

    def close(self) -> None:
        """Stop what runs beside it."""
        if isinstance(self.planned, PlannedChain):
            self.planned.close()
        else:
            chainstay.unfit(self.planned)


def fitted_of(model: nn.Module) -> Fitted:
    """What stands in for its forward."""
    there = model.chainstay
    assert isinstance(there, Fitted)
    return there


class DenseBlock(nn.Module):
    """Layers that read all outputs so far: the state between two of them is a tuple."""

    def __init__(self, width: int = 4, layers: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(width * (1 + number)),
                nn.ReLU(),
                nn.Conv2d(width * (1 + number), width, 3, padding=1),
                nn.Dropout(0.2),
            )
            for number in range(layers)
        )
        self.head = nn.Linear(width * (1 + layers), 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        features = [self.enter(image)]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        scores: torch.Tensor = self.head(torch.cat(features, 1).mean((2, 3)))
        return scores


def _halved(sample: Sample) -> Sample:
    """The first half of the rows of every argument that has as many as the first."""
    rows = sample.args[0].shape[0]

    def half(value: Any) -> Any:
        is_batched = isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == rows
        return value[: rows // 2] if is_batched else value

    return Sample(tuple(map(half, sample.args)), sample.kwargs)


def _of(
    name: str, model: nn.Module, sample: Sample, plan: Callable[[nn.Module], nn.Module]
) -> Subject:
    plain = copy.deepcopy(model)
    initial = {key: value.clone() for key, value in plain.state_dict().items()}
    planned = plan(model)
    smaller = None if isinstance(planned, PlannedChain) else _halved(sample)
    return Subject(name, plain, planned, sample, smaller, initial)


def _recomputing(name: str, share: str, **settings: Any) -> Subject:
    model, sample = SUBJECTS[name][0]().train(), SUBJECTS[name][1]
    title = f"{name} by blocks" if settings else name
    return _of(title, model, sample, lambda module: _fit(module, sample, share, **settings))


def _fit(model: nn.Module, sample: Sample, share: str, **settings: Any) -> nn.Module:
    return chainstay.fit(
        model,
        sample.args,
        sample.kwargs,
        budget=RECOMPUTING,
        method=ShareOf(SHARES[share]),
        repeats=1,
        progress=False,
        **settings,
    )


def _dense() -> Subject:
    sample = Sample((torch.linspace(-3, 5, 4 * 3 * 64).sin().reshape(4, 3, 8, 8),))
    return _of("dense", DenseBlock(), sample, lambda module: _fit(module, sample, "least"))


def _join() -> Subject:
    """Two towers in the least memory, planned as a join for sure."""
    left = torch.linspace(-2, 2, 32 * 16).reshape(32, 16)
    sample = Sample((left, left.flip(0).contiguous()))
    return _of("two towers", Perceptrons(16, 2), sample, lambda module: _joined(module, sample))


def _joined(model: nn.Module, sample: Sample) -> nn.Module:
    settings = PlannerSettings(loss=loss_of, repeats=1, progress=False)
    captured = measure_model(model, sample.args, sample.kwargs, settings)
    assert captured.attempt is not None, "it has branches"
    measured = captured.attempt.measured()
    budget = peak_of_join(measured, keep_all_join(measured.account.by_kind())) // 4
    try:
        plan = solve_measured_join(measured, budget)
    except InfeasibleBudgetError as error:
        plan = solve_measured_join(measured, error.required)
    profile = measured.account.by_kind()
    captured.fitted.use(planned_join(measured, plan, profile))
    captured.fitted.install(model)
    return model


def _chain() -> tuple[nn.Sequential, Sample]:
    """Dropout, BatchNorm and changes in place; stages that save as much as they make."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(16, 16), nn.Sequential(nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2))]
    wave = torch.linspace(-4, 3, 64 * 16).sin().reshape(64, 16)
    return nn.Sequential(*layers, nn.Linear(16, 4)), Sample((wave,))


def _offloaded() -> Subject:
    model, sample = _chain()
    settings: dict[str, Any] = {"offload": True, "recompute": False, "link": _FAST, "repeats": 1}

    def plan(module: nn.Module) -> nn.Module:
        try:
            chainstay.fit(module, sample.args, budget=1, progress=False, **settings)
        except InfeasibleBudgetError as error:
            return chainstay.fit(
                module, sample.args, budget=error.required, progress=False, **settings
            )
        raise AssertionError("nothing fits in one byte")

    return _of("offloaded", model, sample, plan)


def _combined() -> Subject:
    """By a program list that recomputes and offloads for sure."""
    model, sample = _chain()

    def plan(module: nn.Module) -> nn.Module:
        assert isinstance(module, nn.Sequential)
        measured = measure(module, *sample.args, loss=loss_of, repeats=1)
        persistent = random_persistent(len(measured.profile), 4, keep=0.5)
        schedule = with_random_transfers(persistent, 4, share=0.8)
        profile = movable_chain(measured.profile_for(schedule))
        _, least = least_plan(schedule, profile)
        assert least.moved, "it offloads"
        transfers = PlannedTransfers(schedule, least, CopyingEngine(_FAST, poison=True))
        return PlannedChain(measured, schedule, transfers)

    return _of("combined", model, sample, plan)


MAKERS: Final[Mapping[str, Callable[[], Subject]]] = {
    "convolutional": lambda: _recomputing("convolutional", "least"),
    "transformer": lambda: _recomputing("transformer", "60 %"),
    "transformer by blocks": lambda: _recomputing("transformer", "least", by="blocks"),
    "layered": lambda: _recomputing("layered", "least"),
    "dense": _dense,
    "two towers": _join,
    "offloaded": _offloaded,
    "combined": _combined,
}
"""ResNet-like with BatchNorm, GPT-like with dropout in two ways, a chain as it is, DenseNet-like
with states of several tensors, a join, and two that use the host's memory."""


@cache
def subject(name: str) -> Subject:
    """The subject, made once, always with the same weights."""
    torch.manual_seed(0)
    return MAKERS[name]()
