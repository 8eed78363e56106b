"""Networks on graphs: how many edges are left is decided by values in the arguments."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from chainstay import fit
from chainstay.runtime.capture.dynamo import MOST_GRAPHS_BY_VALUES

NODES, EDGES, WIDTH = 30, 80, 16


class Convolutions(nn.Module):
    """Graph convolutions that leave out edges from a node to itself, each for its own use."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        return edges[:, edges[0] != edges[1]]

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            source, target = self.left(edges, x)
            messages = layer(x)[source].tanh() / edges.shape[1]
            x = x + torch.zeros_like(x).index_add(0, target, messages)
        return x


class ByPlaces(Convolutions):
    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        (places,) = (edges[0] != edges[1]).nonzero(as_tuple=True)
        return edges.index_select(1, places)


class WithoutRepetitions(Convolutions):
    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        unique: tuple[torch.Tensor, ...] = edges.unique(dim=1, return_counts=True)
        found, counts = unique
        return found[:, counts < 3]


class AskingWhatIsLeft(Convolutions):
    """It asks for the value of what it has asked for the size of."""

    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        is_down = (edges[0] > edges[1])[torch.arange(EDGES) < 1]
        return edges.flip(0) if is_down else edges


class BySelectedNodes(Convolutions):
    """It selects numbers that gradients go to, too."""

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        is_read = torch.zeros(NODES, dtype=torch.bool).scatter(0, edges[0], value=True)
        return super().forward(x, edges) + x[is_read].mean()


class ByActivations(Convolutions):
    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return edges[:, x.detach().sum(1)[edges[0]] > -1000]


class AfterAChange(Convolutions):
    """It asks of memory that it has changed through a view."""

    def left(self, edges: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        edges[0].clamp_(min=1)
        return super().left(edges, x)


def drawn(seed: int, loops: int) -> torch.Tensor:
    """Return edges of which so many are from a node to itself."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(NODES - 1, (EDGES,), generator=generator)
    return torch.stack([source, source + (torch.arange(EDGES) >= loops)])


def trained(model: nn.Module, x: torch.Tensor, edges: torch.Tensor) -> list[torch.Tensor]:
    """Return the loss of a step and all gradients, that of `x` among them."""
    model.zero_grad()
    x = x.detach().requires_grad_(x.requires_grad)
    loss = model(x, edges).square().mean()
    loss.backward()
    gradients = [tensor.grad for tensor in (x, *model.parameters())]
    return [loss.detach(), *(gradient for gradient in gradients if gradient is not None)]


def pair(kind: type[nn.Module], budget: float) -> tuple[nn.Module, nn.Module]:
    """Return a model and one that is planned."""
    torch.manual_seed(0)
    plain = kind()
    return plain, fit(copy.deepcopy(plain), budget=budget, repeats=1)


@pytest.mark.parametrize("kind", [Convolutions, ByPlaces, WithoutRepetitions])
def test_another_size_is_another_graph(kind: type[nn.Module]) -> None:
    plain, planned = pair(kind, 0.8)
    x = torch.randn(NODES, WIDTH)
    for seed, loops in ((0, 3), (1, 3), (2, 8), (3, 0), (0, 3), (2, 8)):
        edges = drawn(seed, loops)
        assert all(map(torch.equal, trained(planned, x, edges), trained(plain, x, edges)))
    told: Any = planned.chainstay
    assert "by blocks" not in str(told)


@pytest.mark.long
def test_the_value_of_what_is_left_is_another_question() -> None:
    plain, planned = pair(AskingWhatIsLeft, 0.8)
    x = torch.randn(NODES, WIDTH)
    for edges in (drawn(0, 0), drawn(0, 0).flip(0), drawn(0, 0)):
        assert all(map(torch.equal, trained(planned, x, edges), trained(plain, x, edges)))


def test_a_graph_serves_all_calls_in_which_as_much_is_left() -> None:
    _, planned = pair(Convolutions, 0.8)
    for seed, loops in ((0, 3), (1, 3), (2, 8), (3, 3), (4, 8)):
        trained(planned, torch.randn(NODES, WIDTH), drawn(seed, loops))
    told: Any = planned.chainstay
    assert len(told.plans) == 2


@pytest.mark.parametrize(
    ("kind", "has_gradient", "is_graph"),
    [
        (BySelectedNodes, False, True),
        (BySelectedNodes, True, True),
        (ByActivations, False, False),
        (AfterAChange, False, False),
    ],
)
def test_what_cannot_be_looked_up_goes_by_blocks(
    kind: type[nn.Module], *, has_gradient: bool, is_graph: bool
) -> None:
    plain, planned = pair(kind, 1.0)
    x = torch.randn(NODES, WIDTH, requires_grad=has_gradient)
    for seed, loops in ((0, 3), (2, 8), (0, 3)):
        edges, others = drawn(seed, loops), drawn(seed, loops)
        assert all(map(torch.equal, trained(planned, x, edges), trained(plain, x, others)))
        assert torch.equal(edges, others)
    told: Any = planned.chainstay
    assert ("by blocks" not in str(told)) == is_graph


@pytest.mark.long
def test_where_each_call_has_another_size_the_network_goes_by_blocks() -> None:
    """Each size is another plan, and there may be as many as calls."""
    plain, planned = pair(Convolutions, 1.0)
    x = torch.randn(NODES, WIDTH)
    for loops in range(MOST_GRAPHS_BY_VALUES + 3):
        edges = drawn(loops, loops)
        assert all(map(torch.equal, trained(planned, x, edges), trained(plain, x, edges)))
    told: Any = planned.chainstay
    assert "by blocks" in str(told)
    assert "differ from call to call" in str(told)
