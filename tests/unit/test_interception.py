"""Blocks of a model as stages, while its own forward goes on calling them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.extraction import InterceptedChain, intercept
from chainstay.runtime.extraction.driving import OnCall, drive
from chainstay.runtime.states import State


class Block(nn.Module):
    """Takes a mask as keyword; returns its output in a tuple, as blocks often do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, mask: torch.Tensor, scale: float) -> tuple[Any, None]:
        return torch.dropout(self.linear(x).relu(), 0.5, self.training) * mask * scale, None


class Stack(nn.Module):
    """Blocks between two layers; decides by values, so that it cannot be exported."""

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


X = torch.randn(3, 4)


def gradients(model: nn.Module, forward: nn.Module | InterceptedChain) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(5)
    forward(X).square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    return [each for each in found if each is not None]


def test_the_blocks_are_the_stages() -> None:
    model = Stack()
    before = torch.get_rng_state()
    chain = intercept(model, (X,))
    assert torch.equal(torch.get_rng_state(), before)
    assert [stage.name for stage in chain.stages] == ["blocks.0", "blocks.1", "blocks.2"]
    assert [len(boundary) for boundary in chain.boundaries] == [1, 1, 1, 1]
    assert chain.boundary_bytes(1) == 48
    assert "blocks.1" in str(chain)
    assert chain.table().row_count == 3


def test_a_block_that_changes_its_input_runs_again_on_a_clone() -> None:
    layers = [nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    chain = intercept(nn.Sequential(*layers), (X,))
    assert [stage.name for stage in chain.stages] == ["0", "1", "2", "3", "4"]
    assert [stage.changes_input for stage in chain.stages] == [False, True, False, False, False]
    state = (X.clone(),)
    (output,) = chain.stages[1](state, ())
    assert torch.equal(output, X.relu())
    assert torch.equal(state[0], X)


class Frozen(nn.Module):
    """Counts in a tensor that its caller gives; has no gradient."""

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count += 1
        return x


def test_what_changes_other_tensors_is_no_stage() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.counts = nn.Linear(4, 4), nn.ModuleList(Frozen() for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = torch.zeros(())
            hidden = self.first(x)
            for each in self.counts:
                hidden = each(hidden, count) * count
            return torch.as_tensor(hidden)

    with pytest.raises(UnsupportedModelError, match="no blocks of Counting form a chain"):
        intercept(Counting(), (X,))


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
    chain = intercept(Tall(), (X,))
    names = [stage.name for stage in chain.stages]
    assert names == [f"pairs.{outer}.{inner}" for outer in range(3) for inner in range(2)]
    assert chain.starts == (0,)


def test_what_the_model_does_between_blocks_parts_segments() -> None:
    chain = intercept(Stack(changes_in_place=True), (X,))
    assert chain.starts == (0, 1, 2)
    assert [*chain.segments()] == [range(1), range(1, 2), range(2, 3)]
    assert [chain.segment_of(index) for index in range(3)] == [0, 1, 2]
    model = Stack(changes_in_place=True)
    assert all(map(torch.equal, gradients(model, model), gradients(model, intercept(model, (X,)))))


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


def test_what_the_model_makes_beside_blocks_parts_segments() -> None:
    model = Beside()
    chain = intercept(model, (X,))
    assert chain.starts == (0, 2)
    assert all(map(torch.equal, gradients(model, model), gradients(model, chain)))


def test_running_them_as_stages_is_running_the_model() -> None:
    model = Stack()
    chain = intercept(model, (X,))
    expected, found = gradients(model, model), gradients(model, chain)
    assert all(map(torch.equal, expected, found))
    assert len(expected) == len(found) == 10


def test_hooks_of_blocks_run_once() -> None:
    model, seen = Stack(), list[str]()
    chain = intercept(model, (X,))
    model.blocks[1].register_forward_hook(lambda *_: seen.append("forward"))
    model.blocks[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    gradients(model, chain)
    assert seen == ["forward", "backward"]


def test_a_stage_runs_again_on_a_detached_state() -> None:
    model = Stack().eval()
    chain = intercept(model, (X,))
    states: list[tuple[torch.Tensor, ...]] = []
    again: list[tuple[torch.Tensor, ...]] = []

    def first_run(index: int, call: OnCall, state: State, shared: State) -> tuple[Any, State]:
        result = call()
        states.append(chain.stages[index].next_state(result, state))
        again.append(chain.stages[index](tuple(each.detach() for each in state), shared))
        return result, states[-1]

    with drive(chain.stages, chain.starts, first_run):
        model(X)
    assert len(states) == 3
    assert all(torch.equal(*pair) for pair in zip(*map(_flat, (states, again)), strict=True))


def _flat(states: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    return [tensor for state in states for tensor in state]


def test_nothing_stays_intercepted_even_after_an_error() -> None:
    model = Stack()
    chain = intercept(model, (X,))
    with pytest.raises(RuntimeError, match="shapes"):
        chain(torch.ones(3, 5))
    assert all(module._compiled_call_impl is None for module in model.modules())
    assert all(map(torch.equal, gradients(model, model), gradients(model, chain)))


def test_what_is_not_like_the_sample_is_refused() -> None:
    model = Stack()
    chain = intercept(model, (X,))
    with pytest.raises(PlanMismatchError, match=r"blocks\.0 gets or returns 3.0, the plan"):
        chain(X, 3.0)
    with pytest.raises(PlanMismatchError, match=r"returns a tensor, the plan is for 2.0"):
        chain(X, torch.ones(4))
    model.changes_in_place = True
    with pytest.raises(PlanMismatchError, match="neither what the block before returned"):
        chain(X)
    model.blocks = nn.ModuleList(reversed(list(model.blocks)))
    with pytest.raises(PlanMismatchError, match=r"the model calls blocks\.2 out of turn"):
        chain(X)


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="no blocks of Linear form a chain"):
        intercept(nn.Linear(4, 4), (X,))
