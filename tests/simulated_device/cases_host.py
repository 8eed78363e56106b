"""Tensors that are on the host although the model trains on an accelerator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch
from simulated_device.networks import Case, Residual, differences, record, step
from simulated_device.place import first, second, twice
from torch import nn

import chainstay
from chainstay.runtime import trace_memory

WIDTH: Final = 32
LINK: Final = chainstay.Link(bandwidth=1, latency=10_000)


class Layers(nn.Module):
    """Repeated blocks on the device; subclasses say what they do with what is on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Residual(WIDTH) for _ in range(5))
        self.to(first())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().__call__(x)
        return out


class MovesItsInput(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(first())
        for layer in self.layers:
            x = layer(x)
        return x


class CarriesAStateOnTheHost(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x[0, 0]
        x = x.to(first())
        for layer in self.layers:
            state = torch.tanh(state + torch.rand(WIDTH))
            x = layer(x) + state.to(first())
        return x


class HasParametersOnTheHost(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entry(x).to(first())
        for layer in self.layers:
            x = layer(x)
        return x


class TrainsAStateOnTheHost(Layers):
    """Its backward goes on in autograd's threads for the host and the device at once."""

    def __init__(self) -> None:
        super().__init__()
        self.state = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, state = x.to(first()), self.state * 1
        for layer in self.layers:
            state = torch.tanh(state + torch.rand(WIDTH))
            x = layer(x) + state.to(first())
        return x


class DecidesByAValue(MovesItsInput):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(-x if x.sum() > 0 else x)


class LeavesLayersOut(Layers):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(first())
        for layer in self.layers:
            if torch.rand(()) > 0.2:
                x = layer(x)
        return x


def of_square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@pytest.mark.parametrize("share", [0.75, 0.5])
@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (MovesItsInput, "graph"),
        (CarriesAStateOnTheHost, "graph"),
        (HasParametersOnTheHost, "graph"),
        (TrainsAStateOnTheHost, "blocks"),
        (DecidesByAValue, "blocks"),
        (LeavesLayersOut, "blocks"),
    ],
)
def test_what_is_on_the_host_stays_there(kind: Callable[[], Layers], by: str, share: float) -> None:
    torch.manual_seed(0)
    case = Case(kind(), torch.randn(16, 24, WIDTH), of_square)
    expected = record(case)
    options = {"loss": case.loss, "link": LINK, "repeats": 1, "progress": False}
    chainstay.fit(case.model, (case.batch,), budget=share, **options)  # type: ignore[arg-type]
    assert differences(record(case), expected) == []
    trace = trace_memory(lambda: step(case), first())
    solution: chainstay.Solution = case.model.chainstay.solution  # type: ignore[union-attr,assignment]
    assert trace.peak_bytes <= solution.peak_bytes
    assert ("by blocks" in str(case.model.chainstay)) is (by == "blocks")


def test_a_block_that_is_given_a_tensor_on_the_host_is_no_stage() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Residual(WIDTH)

        def forward(self, x: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.block(x) + shift.to(x.device)
            return out

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Shifted() for _ in range(3))
            self.to(first())
            self.shift = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.to(first())
            for layer in self.layers:
                x = layer(x, self.shift * 2)
            return x

    batch = torch.randn(4, 8, WIDTH)
    with pytest.raises(chainstay.UnsupportedModelError, match="is given a tensor on cpu, and the"):
        chainstay.fit(Model(), (batch,), budget=0.6, by="blocks", progress=False)


@twice
def test_several_accelerators_are_refused() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(4, 4, device=first())
            self.two = nn.Linear(4, 4, device=second())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.two(self.one(x).to(self.two.weight.device))
            return out

    with pytest.raises(chainstay.UnsupportedModelError, match=r":0 and .*:1; move them to one"):
        chainstay.fit(Model(), (torch.ones(2, 4, device=first()),), budget=0.6, progress=False)
