"""Graph networks: their adjacencies are sparse arguments or buffers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay import ChainstayError
from chainstay.runtime import trace_memory
from training_conditions import Sample, differences, recomputes, shown, trained

NODES = 200


class Convolution(nn.Module):
    """A layer that mixes the features of neighbours."""

    def __init__(self, adjacency: torch.Tensor | None) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(32, 128), nn.Linear(128, 32)
        self.register_buffer("adjacency", adjacency)

    def forward(self, x: torch.Tensor, adjacency: torch.Tensor | None = None) -> torch.Tensor:
        known = self.adjacency if adjacency is None else adjacency
        mixed = torch.sparse.mm(known, self.narrow(torch.relu(self.wide(x))))
        return x + torch.relu(mixed)


class GraphNetwork(nn.Module):
    """Layers that share one adjacency, an argument or a buffer."""

    def __init__(self, adjacency: torch.Tensor | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Convolution(adjacency) for _ in range(5))

    def forward(self, x: torch.Tensor, *given: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, *given)
        return x


def adjacency(share: float) -> torch.Tensor:
    return (torch.rand(NODES, NODES) < share).float() / (10 * share * NODES)


@pytest.mark.parametrize("is_argument", [True, False])
def test_plans_with_a_sparse_adjacency(*, is_argument: bool) -> None:
    torch.manual_seed(0)
    x, edges = torch.randn(NODES, 32), adjacency(0.05).to_sparse()
    plain = GraphNetwork(None if is_argument else edges)
    planned = copy.deepcopy(plain)
    args: tuple[Any, ...] = (x, edges) if is_argument else (x,)
    chainstay.fit(planned, args, budget="60%", repeats=1)
    assert recomputes(planned)
    assert differences(trained(planned, Sample(args)), trained(plain, Sample(args))) == []

    def step() -> None:
        planned(*args).square().mean().backward()

    entries = edges.indices().nbytes + edges.values().nbytes if is_argument else 0
    loss = x.nbytes  # of the square, which is no part of the plan
    peak = trace_memory(step, "cpu").peak_bytes + x.nbytes + entries - loss
    assert peak <= shown(planned).solution.peak_bytes


def test_another_adjacency_goes_by_the_same_plan() -> None:
    torch.manual_seed(0)
    x, plain = torch.randn(NODES, 32), GraphNetwork()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, budget="60%", repeats=1)
    for share in (0.05, 0.03, 0.05):
        args = (x, adjacency(share).to_sparse())
        assert differences(trained(planned, Sample(args)), trained(plain, Sample(args))) == []
    assert len(shown(planned).plans) == 1
    dense = (x, adjacency(0.05))
    with pytest.raises(RuntimeError):
        plain(x, adjacency(0.05)[:, :3])
    assert torch.equal(planned(*dense), plain(*dense))
    assert len(shown(planned).plans) == 2


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_rows_and_what_is_trained_are_refused_in_words() -> None:
    torch.manual_seed(0)
    x, model = torch.randn(NODES, 32), GraphNetwork()
    chainstay.fit(model, budget="60%", repeats=1)
    with pytest.raises(ChainstayError, match=r"to_sparse_coo\(\) changes"):
        model(x, adjacency(0.05).to_sparse_csr())
    with pytest.raises(ChainstayError, match="or one that is trained"):
        model(x, adjacency(0.05).to_sparse().requires_grad_())
