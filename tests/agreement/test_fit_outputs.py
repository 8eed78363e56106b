"""Outputs and arguments that torch takes for leaves, such as dataclasses and distributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest
import torch
from torch import nn

import chainstay
from sgd_steps import peak_of_step
from twins import Call, batch, require_trains_equally, shown


@dataclass(frozen=True, slots=True)
class Scores:
    """What a model may return."""

    last: torch.Tensor
    hidden: list[torch.Tensor]
    name: str = "scores"


class Slotted:
    """The same in an object that has no ``__dict__``."""

    __slots__ = ("hidden", "last")

    def __init__(self, last: torch.Tensor, hidden: list[torch.Tensor]) -> None:
        self.last, self.hidden = last, hidden


class Listed(list[torch.Tensor]):
    """A list of a class of its own."""


class Residual(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.inner = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(x, self.inner(self.norm(x)))


class Returning(nn.Module):
    """A stack of blocks that returns what it makes in some object."""

    def __init__(self, returned: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.returned = returned

    def forward(self, x: torch.Tensor) -> Any:
        hidden = []
        for block in self.blocks:
            x = block(x)
            hidden.append(x)
        if self.returned == "a distribution":
            return torch.distributions.Normal(x, x.exp())
        if self.returned == "a list":
            return Listed((x.sin(), *hidden))
        if self.returned == "an object with slots":
            return Slotted(x.sin(), hidden)
        return Scores(x.sin(), hidden)


def loss_of(output: Any) -> torch.Tensor:
    """The loss, which reads each tensor of the output."""
    if isinstance(output, torch.distributions.Normal):
        return torch.square(output.log_prob(torch.ones(()))).mean()
    states = output if isinstance(output, Listed) else (output.last, *output.hidden)
    losses = [torch.square(state).mean() for state in states]
    return torch.stack(losses).sum()


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize(
    "returned", ["a dataclass", "a distribution", "a list", "an object with slots"]
)
def test_tensors_in_objects_count_as_outputs(returned: str, by: Literal["graph", "blocks"]) -> None:
    sample = batch(64, 32)

    def step(model: nn.Module, _: int = 0) -> torch.Tensor:
        output = model(sample)
        loss = loss_of(output)
        loss.backward()
        return loss.detach()

    fitted = require_trains_equally(
        lambda: Returning(returned), Call((sample,)), step, loss=loss_of, by=by
    )
    predicted = shown(fitted).solution.peak_bytes

    def once() -> None:
        step(fitted)

    measured = peak_of_step(fitted, once, sample)
    assert measured <= predicted <= 1.1 * measured


class Given(nn.Module):
    """The same, of a batch in an object."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = Returning("a dataclass").blocks

    def forward(self, given: torch.Tensor | Scores | Slotted) -> torch.Tensor:
        x = given if isinstance(given, torch.Tensor) else given.last
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_tensors_in_objects_count_as_inputs(by: Literal["graph", "blocks"]) -> None:
    x = batch(64, 32)
    predicted = []
    for given in (x, Scores(x, []), Slotted(x, [])):
        model = chainstay.fit(Given(), (given,), budget="100%", by=by, repeats=1)
        predicted.append(shown(model).solution.peak_bytes)
    assert len(set(predicted)) == 1, predicted


class Remembering(nn.Module):
    """Every block makes a state, too, which nobody goes back through, as for generating."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual() for _ in range(4))
        self.states = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> Scores:
        hidden = []
        for block, state in zip(self.blocks, self.states, strict=True):
            hidden.append(state(x).sin().exp().tanh().mean(0))  # small, and its graph is not
            x = block(x)
        return Scores(x.sin(), hidden)


def last_of(output: Scores) -> torch.Tensor:
    return torch.square(output.last).mean()


@pytest.mark.parametrize("budget", ["60%", "80%", "100%"])
def test_what_the_output_holds_of_the_graph_is_counted(
    budget: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The backward does not come by there, so all of that stays until the output is let go."""
    sample = batch(64, 32)
    model = chainstay.fit(Remembering(), (sample,), budget=budget, loss=last_of, repeats=1)
    assert "planning again" not in capsys.readouterr().err

    def step() -> None:
        output = model(sample)
        last_of(output).backward()

    predicted = shown(model).solution.peak_bytes
    measured = peak_of_step(model, step, sample)
    assert measured <= predicted <= 1.1 * measured
