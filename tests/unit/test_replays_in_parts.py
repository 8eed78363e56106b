"""Operators that read each other are run again apart where much of them is needed late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.runtime.devices.memory import trace_memory
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.options import generator
from chainstay.runtime.options.generator import groups_of
from chainstay.runtime.options.graph import StageGraph
from chainstay.runtime.options.option import OptionPart, admitted, option_of
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.stage.states import State
from stage_options_support import TwoReaders, traced

MEBIBYTE = 2**20
DROPPED = ("linear", "tanh", "relu", "exp", "getitem", "clone")
"""Operators of the networks here that are run again; sums and products are kept."""


def looked_at(model: nn.Module) -> tuple[StageGraph, tuple[State, Sequence[Any]], Selection]:
    """The model as one stage, its input, and the choice that drops what is large."""
    torch.manual_seed(0)
    _, _, ((graph, given),) = traced(model, torch.randn(64, 64, requires_grad=True))
    assert graph is not None
    again = frozenset(n for n, step in enumerate(graph.steps) if step.name in DROPPED)
    return graph, given, Selection(kept_bytes=0, replay_time=0, replayed=again)


def names_of(graph: StageGraph, selection: Selection) -> list[set[str]]:
    groups = groups_of(graph, selection)
    return [{graph.steps[operator].name for operator in group} for group in groups]


def peak_of_step(graph: StageGraph, given: tuple[State, Sequence[Any]], choice: Selection) -> int:
    part = OptionPart(option_of(graph, choice))

    def step() -> None:
        with torch.enable_grad():
            (output,) = part(*given)
        output.sum().backward()

    return trace_memory(step, "cpu").peak_bytes


def test_what_is_needed_late_is_made_again_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of tanh is there when its own backward runs, not before."""
    graph, given, choice = looked_at(TwoReaders())
    late, early = names_of(graph, choice)
    assert late == {"getitem", "tanh"}
    assert early == {"linear", "getitem", "exp"}
    with measuring(torch.device("cpu")):
        assert admitted(option_of(graph, choice), given), "what is needed late is asked for first"
        apart = peak_of_step(graph, given, choice)
        monkeypatch.setattr(generator, "_LEAST_SPARED", 2**40)
        assert names_of(graph, choice) == [late | early]
        together = peak_of_step(graph, given, choice)
    handed_on = given[0][0].nbytes
    assert together - apart == 2 * MEBIBYTE - handed_on


def test_what_is_small_is_made_again_at_once() -> None:
    model = TwoReaders()
    model.index = nn.Buffer(torch.arange(63))
    graph, _, choice = looked_at(model)
    assert len(names_of(graph, choice)) == 1


class OneGathering(TwoReaders):
    """Rows that are gathered once: no operator saves what two read."""

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.linear(x)[self.index]
        score = self.first(rows).sum(-1, keepdim=True)
        return (score.sigmoid() * rows.exp()).sum(0)


def test_where_as_much_would_be_handed_on_as_spared_all_is_made_again_at_once() -> None:
    graph, _, choice = looked_at(OneGathering())
    assert len(names_of(graph, choice)) == 1


def test_what_is_changed_in_place_is_made_again_at_once() -> None:
    """In the order of the forward: the change comes behind whoever reads what was there before."""

    def rectified(x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x.clone(), inplace=True)

    graph, given, choice = looked_at(TwoReaders(rectified))
    assert len(names_of(graph, choice)) == 1
    with measuring(torch.device("cpu")):
        assert admitted(option_of(graph, choice), given)


class TwoResults(TwoReaders):
    """Rows that are read for two results."""

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.linear(x)
        return self.first(rows[self.index]).sum(0), rows[self.index].exp().sum(0)


def test_results_are_handed_on_by_a_part_of_the_graph_that_is_gone() -> None:
    graph, given, choice = looked_at(TwoResults())
    assert names_of(graph, choice) == [{"getitem", "tanh"}, {"linear", "getitem", "exp"}]
    (weight,) = (leaf for leaf in given[1] if isinstance(leaf, nn.Parameter) and leaf.ndim == 2)
    gradients = []
    with measuring(torch.device("cpu")), torch.enable_grad():
        for part in (graph.stage, OptionPart(option_of(graph, choice))):
            output = part(*given)[0]
            gradients.append(torch.autograd.grad(output.sum(), weight)[0])
    assert torch.equal(*gradients)
