"""Where models are cut, and where not: models that all but invite a cut that would break them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from captured_graphs import chain_of, observed
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.extract import extract
from chainstay.runtime.capture.trials.model_forward import unbound_forward


class Peaks(nn.Module):
    """An operator with two outputs, which together are the least that crosses any place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(4, 16)
        self.weight = nn.Parameter(torch.linspace(-1, 1, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, places = self.first(x).topk(4, dim=-1)
        wide: torch.Tensor = self.second(values).relu()
        return wide * self.weight[places].sum(-1, keepdim=True)


class Reading(nn.Module):
    """A buffer is read, and changed where the place between is crossed by one small tensor."""

    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(16, 4), nn.Linear(4, 16), nn.Linear(16, 16)
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        narrow = (self.first(x) * self.scale).relu()
        wide = self.second(narrow).relu()
        self.scale.add_(1)
        total: torch.Tensor = self.third(wide * self.scale).relu()
        return total


class Normalizing(nn.Module):
    """Likewise, by an operator that does not say so: normalization reads and changes statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 4), nn.Linear(4, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.norm.running_mean
        assert mean is not None
        narrow = (self.first(x) * mean.mean()).relu()
        total: torch.Tensor = self.norm(self.second(narrow).relu()).relu()
        return functional.gelu(total)


class Twice(nn.Module):
    """A batch goes twice through one network, whose norms count both."""

    def __init__(self) -> None:
        super().__init__()
        layers = [(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Tanh()) for _ in range(3)]
        self.tower = nn.Sequential(*[module for layer in layers for module in layer])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        again: torch.Tensor = self.tower(self.tower(x))
        return again


def require_repeatable(chain: GraphChain, inputs: Sequence[Any]) -> None:
    """When all have run, each stage runs again to the same state: what it changes is put back."""
    state, shared = chain.begin(inputs)
    runs = []
    for stage in chain.stages:
        changed = [shared[position] for position in stage.effects.written]
        runs.append((stage, state, changed, [value.clone() for value in changed]))
        state = tuple(value.detach().clone() for value in stage(state, shared))
    after = [*(given for _, given, *_ in runs[1:]), state]
    for (stage, given, changed, before), expected in zip(runs, after, strict=True):
        for tensor, old in zip(changed, before, strict=True):
            tensor.copy_(old)
        assert all(map(torch.equal, stage(given, shared), expected)), stage.name


@pytest.mark.parametrize("make", [Peaks, Reading, Normalizing, Twice])
def test_stages_run_again_to_the_same_state(make: type[nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(32, 16)
    chain, inputs = chain_of(model, x)
    assert len(chain.stages) > 1
    require_repeatable(chain, inputs)


def test_a_network_that_runs_twice_is_cut_within() -> None:
    chain, _ = chain_of(Twice(), torch.randn(32, 16))
    assert len(chain.stages) >= 6, [stage.name for stage in chain.stages]


def perceptron(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.Tanh()]
    return nn.Sequential(*layers)


def test_saved_bytes_by_hand() -> None:
    """A layer saves its input, which is the state before it, and a tanh what it makes."""
    chain = extract(perceptron([3, 5, 7, 2]), (torch.randn(10, 3),))
    assert [stage.name for stage in chain.stages] == ["0+1", "2+3", "4", "5"]
    assert [stage.saved_bytes for stage in chain.stages] == [200, 280, 0, 80]


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_no_more_stages_than_asked_for(most: int) -> None:
    """Of neighbours, those are joined that save least together, the state before them included."""
    chain = extract(perceptron([3, 5, 7, 2, 9]), (torch.randn(10, 3),), granularity=most)
    saved = {1: [920], 2: [560, 360], 3: [480, 80, 360], 4: [200, 280, 80, 360]}
    assert [stage.saved_bytes for stage in chain.stages] == saved[most]


class Counting(nn.Module):
    """Blocks, and the number of calls, which every forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for block in self.blocks:
            x = block(x)
        return x * self.calls


def test_stages_are_named_by_paths_in_the_model() -> None:
    """TorchDynamo finds modules elsewhere where a forward changes attributes of the model."""
    chain = extract(Counting(), (torch.ones(2, 8),))
    names = [stage.name for stage in chain.stages]
    assert names[:2] == ["blocks.0", "blocks.1.0"]


class BothAtOnce(nn.Module):
    """A block of two branches beside its input, as Cohere's: three terms are summed at its end.

    No backward reads what its normalization is given, and the cut there is behind the cast.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.float32)
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        scaled = (x - mean) * variance.rsqrt()
        total: torch.Tensor = x + self.left(scaled).tanh() + self.right(scaled).tanh()
        return total


def test_blocks_end_where_little_crosses() -> None:
    """Their last stage goes on into the next block: its end, not its begin, is the border."""
    blocks = nn.ModuleList(BothAtOnce() for _ in range(4))
    model = nn.Sequential(*blocks)
    x = torch.ones(2, 32, requires_grad=True)
    seen, _ = observed(unbound_forward(model), model, x)
    chain = cut_into_chain(seen, "fine", repeated_blocks(model))
    sizes = [sum(value.storage_bytes for value in state) for state in chain.boundaries]
    inner = chain.borders[2:-1]  # what the first block is given is the caller's, and counts nothing
    assert [sizes[border] for border in inner] == [min(sizes)] * 2
