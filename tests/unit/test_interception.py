"""Blocks of a model as stages, while its own forward goes on calling them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.blocks.entrances import close_entrances
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.measures.blocks.block_costs import find_blocks
from torch_release import IS_TORCH_2_6

X = torch.randn(3, 4)
fit = partial(chainstay.fit, by="blocks", budget="100%", repeats=1, progress=False)


class Block(nn.Module):
    """Takes a mask as keyword; returns its output in a tuple, as blocks often do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float) -> tuple[Any, None]:
        return torch.dropout(self.linear(x).relu(), 0.5, self.training) * mask * scale, None


class Stack(nn.Module):
    """Blocks between two layers; decides by values, so that it has no full graph."""

    def __init__(self, *, changes_in_place: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(4, 2)
        self.changes_in_place = changes_in_place

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        hidden = self.first(x) if x.sum() > 0 else -self.first(x)
        mask = torch.ones(4)
        for block in self.blocks:
            (hidden, _) = block(hidden, mask=mask, scale=scale)
            if self.changes_in_place:
                hidden += 1
        result: torch.Tensor = self.last(hidden)
        return result


def intercept(model: nn.Module) -> BlockChain:
    """Its blocks, as `chainstay.fit` finds them; the model is left as it was."""
    device = torch.device("cpu")
    host = Host(Call.of(model, (X,)), device)
    try:
        return find_blocks(host, BlockGraphs(type(model).__name__, device)).chain
    finally:
        close_entrances(model)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(5)
    model(X).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [gradient.clone() for gradient in found if gradient is not None]


def test_the_blocks_are_the_stages() -> None:
    model = Stack()
    before = torch.get_rng_state()
    chain = intercept(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert [stage.name for stage in chain.stages] == ["blocks.0", "blocks.1", "blocks.2"]
    assert [len(boundary) for boundary in chain.boundaries] == [1, 1, 1, 1]
    assert all("forward" not in vars(module) for module in model.modules())


class Counted(nn.Module):
    """Counts in a tensor that its caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count += 1
        result: torch.Tensor = self.linear(x).tanh() * count.clone()
        return result


class Counting(nn.Module):
    """A tensor of the model's own is changed by each block, and read behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList(Counted() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.zeros(())
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden, count) * count.clone()
        return torch.as_tensor(hidden)


def test_what_changes_other_tensors_does_so_once() -> None:
    require_equal(Counting())


class Tall(nn.Module):
    """Pairs of blocks, in a list of pairs; beside a list of experts, of which one is called."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(3)
        )
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for pair in self.pairs:
            x = pair(x)
        result: torch.Tensor = self.experts[3](x)
        return result


def test_the_innermost_lists_with_most_parameters_are_taken() -> None:
    chain = intercept(Tall())
    names = [stage.name for stage in chain.stages]
    assert names == [f"pairs.{outer}.{inner}" for outer in range(3) for inner in range(2)]
    assert chain.starts == (0,)


class Encoder(nn.Module):
    """A list with a first layer of another class, as in front of an encoder of sound."""

    def __init__(self) -> None:
        super().__init__()
        first, others = nn.Bilinear(4, 4, 4), (nn.Linear(4, 4) for _ in range(3))
        self.convolutions = nn.ModuleList([first, *others])
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.convolutions[0](x, x)
        for convolution in self.convolutions[1:]:
            hidden = convolution(hidden)
        hidden = hidden.clone()
        for layer in self.layers:
            hidden = layer(hidden)
        return torch.as_tensor(hidden)


def test_of_a_list_of_several_classes_what_is_in_a_chain_with_most_of_it_is_taken() -> None:
    chain = intercept(Encoder())
    names = [stage.name for stage in chain.stages]
    assert names == [*(f"convolutions.{i}" for i in range(4)), "layers.0", "layers.1"]
    assert chain.starts == (0, 4)
    require_equal(Encoder())


def require_equal(model: nn.Module) -> None:
    """Training by blocks is training."""
    expected = gradients(model)
    fit(model, (X,))
    assert all(map(torch.equal, expected, gradients(model)))
    chainstay.unfit(model)
    assert all("forward" not in vars(module) for module in model.modules())


def test_what_the_model_does_between_blocks_parts_segments() -> None:
    model = Stack(changes_in_place=True)
    chain = intercept(model)
    assert chain.starts == (0, 1, 2)
    assert [*chain.segments()] == [range(1), range(1, 2), range(2, 3)]
    assert [chain.segment_of(index) for index in range(3)] == [0, 1, 2]
    require_equal(model)


class Mixing(nn.Module):
    """A block, and what is beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.linear(x).tanh() * beside
        return mixed


class Beside(nn.Module):
    """Every block takes what the first layer made; the last one something made since, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Mixing() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        start = self.first(x)
        hidden = self.blocks[1](self.blocks[0](start, start), start)
        result: torch.Tensor = self.blocks[2](hidden, self.other(x))
        return result


@pytest.mark.skipif(
    IS_TORCH_2_6, reason="on torch 2.6, what the first block makes outlives the forward"
)
def test_what_the_model_makes_beside_blocks_parts_segments() -> None:
    model = Beside()
    assert intercept(model).starts == (0, 2)
    require_equal(model)


def test_running_them_as_stages_is_running_the_model() -> None:
    require_equal(Stack())


def test_hooks_of_blocks_run_once() -> None:
    model, seen = Stack(), list[str]()
    fit(model, (X,))
    model.blocks[1].register_forward_hook(lambda *_: seen.append("forward"))
    model.blocks[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    gradients(model)
    assert seen == ["forward", "backward"]


def test_an_error_leaves_blocks_as_they_were() -> None:
    model = Stack()
    expected = gradients(model)
    fit(model, (X,))
    with pytest.raises(RuntimeError, match="shape"):
        model(torch.ones(3, 5))
    assert all(map(torch.equal, expected, gradients(model)))


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no blocks of Linear form a chain"):
        intercept(nn.Linear(4, 4))
