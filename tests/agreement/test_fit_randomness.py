"""Random numbers that are not torch's: by blocks and bit for bit, or refused."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.generators import OtherGenerators
from sgd_steps import differences, three_steps
from training_conditions import RECOMPUTING, keeps_in_part, recomputes

pytestmark = pytest.mark.usefixtures("equal_times")

DRAWS: dict[str, Callable[[], float]] = {
    "Python": random.random,
    "NumPy": lambda: float(np.random.random()),  # noqa: NPY002  # the global one is what is tried
}
_TOLD = r"(draws from Python's random|decides by .* of NumPy's).*\(test_fit_randomness\.py:\d+, in "


class Scaled(nn.Module):
    """A block that scales by a random number of its own."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layers(x)
        return x + self.draw() * made


class Chain(nn.Module):
    """Blocks in a list."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Scaled(draw) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def binomial(x: torch.Tensor) -> torch.Tensor:
    return torch.binomial(x.detach().abs().floor(), torch.full_like(x, 0.4))


SELDOM: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "poisson": (lambda x: torch.poisson(x.abs()), 0.0),
    "rrelu": (partial(nn.functional.rrelu, training=True), 1.0),
    "binomial": (binomial, 0.0),
}
"""Operators, and numbers for which they draw nothing from torch's generator."""


@pytest.mark.parametrize("stage_options", [True, False])
@pytest.mark.parametrize("name", SELDOM)
def test_what_draws_nothing_when_it_is_planned_may_draw_later(
    name: str, *, stage_options: bool
) -> None:
    torch.manual_seed(0)
    function, number = SELDOM[name]
    layers = [Applied(function), nn.Linear(64, 64, bias=False), Applied(function)]
    plain = nn.Sequential(*layers, nn.Linear(64, 8))
    planned, sample = copy.deepcopy(plain), torch.full((256, 64), number)
    chainstay.fit(
        planned,
        (sample,),
        budget="85%" if stage_options else "90%",
        stage_options=stage_options,
        repeats=1,
        progress=False,
    )
    assert keeps_in_part(planned) if stage_options else recomputes(planned)
    x, initial = torch.randn(256, 64) * 3, copy.deepcopy(plain.state_dict())
    one, other = (
        three_steps(model, partial(mean_square, model, x), initial) for model in (plain, planned)
    )
    assert differences(one, other) == []


def mean_square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(x)
    return found.square().mean()


def test_a_state_is_counted_where_nothing_is_drawn_yet() -> None:
    model = nn.Sequential(Applied(SELDOM["poisson"][0]), nn.Linear(64, 8))
    measured = chainstay.measure(model, torch.zeros(256, 64))
    drawing = [stage.random_bytes > 0 for stage in measured.account.stages]
    assert drawing[0]
    assert not drawing[-1]


class Applied(nn.Module):
    """Sines of what a function gives of the input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sin(self.function(x) * self.scale)


class Whole(nn.Module):
    """No blocks, and one number."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 16), nn.Linear(16, 16)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.leave(torch.tanh(self.enter(x)) * self.draw())
        return scores


def left_by_training(model: nn.Module, x: torch.Tensor) -> tuple[dict[str, torch.Tensor], object]:
    """What three steps leave behind, other generators included."""
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    found = three_steps(model, lambda: model(x).square().mean(), dict(model.state_dict()))
    return found, OtherGenerators.now()


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_blocks_that_run_again_see_the_same_numbers(draw: Callable[[], float]) -> None:
    x, model = torch.randn(32, 16), Chain(draw)
    plain = copy.deepcopy(model)
    before = OtherGenerators.now()
    chainstay.fit(model, (x,), budget=RECOMPUTING, loss=lambda y: y.square().mean(), repeats=1)
    assert OtherGenerators.now() == before, "fit leaves the generators as they were"
    assert recomputes(model) or keeps_in_part(model)
    expected, state = left_by_training(plain, x)
    found, other = left_by_training(model, x)
    assert differences(found, expected) == []
    assert other == state


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_numbers_are_not_made_constants(draw: Callable[[], float]) -> None:
    with pytest.raises(UnsupportedModelError, match=_TOLD):
        chainstay.fit(Whole(draw), (torch.randn(32, 16),), budget="100%", repeats=1, by="graph")


@pytest.mark.long
def test_the_first_fit_of_a_process_leaves_pythons_random_numbers() -> None:
    """What fit imports then may draw some, as rich does."""
    program = (
        "import random, torch, chainstay\n"
        "random.seed(0)\n"
        "before = random.getstate()\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))\n"
        "chainstay.fit(model, budget='100%', repeats=1)\n"
        "model(torch.zeros(4, 16)).sum().backward()\n"
        "assert random.getstate() == before\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
