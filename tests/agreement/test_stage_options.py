"""Stages that keep less than autograd saves train bit for bit as plain ones."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional

import runtime_support  # noqa: F401  # one thread
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.devices.memory import trace_memory, trace_phases
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.measures.probe import StageProbe
from chainstay.runtime.options import generator
from chainstay.runtime.options.front import thinned
from chainstay.runtime.options.graph import trace_stage
from chainstay.runtime.options.option import OptionPart, option_of, selections_of, stage_options
from chainstay.runtime.stage.chain_stage import ChainStage
from models import gpt2, resnet50
from stage_options_support import STEPS, ModelOptions, fused, options_in, traced


class Tied(nn.Module):
    """Encoder layers before and behind norms, changes in place, the embedding read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                32,
                4,
                64,
                dropout=0.2,
                batch_first=True,
                norm_first=n % 2 == 0,
                activation="gelu" if n % 2 else "relu",
            )
            for n in range(2)
        )
        self.linear, self.rectified = nn.Linear(32, 32), nn.ReLU(inplace=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = self.rectified(self.linear(layer(x))) * 1.5
        scores: torch.Tensor = torch.log_softmax(x @ self.embedding.weight.t(), -1)
        return scores


class Convolutions(nn.Module):
    """BatchNorm, Dropout2d, and functions that change their input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(inner, outer, 3, padding=1),
                nn.BatchNorm2d(outer),
                nn.ReLU(inplace=True),
                nn.Dropout2d(0.1),
            )
            for inner, outer in ((3, 8), (8, 8), (8, 16))
        )
        self.swish, self.dropout = nn.Hardswish(inplace=True), nn.Dropout(0.3, inplace=True)
        self.norm, self.linear = nn.InstanceNorm2d(16, track_running_stats=True), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = self.swish(block(x) + 0.1).sigmoid_() * 2
        scores: torch.Tensor = self.linear(self.dropout(self.norm(x).mean((2, 3))))
        return scores


class NormByKeyword(nn.Module):
    """A norm whose running statistics are keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mean, self.variance = nn.Buffer(torch.zeros(8)), nn.Buffer(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = functional.batch_norm(
            self.linear(x), running_mean=self.mean, running_var=self.variance, training=True
        )
        return functional.gelu(made)


class Rotary(nn.Module):
    """Queries and keys turned by views, halves and concatenations; attention with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.gate, self.up, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)
        self.dropout = dropout

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] / torch.arange(1, 9)
        angles = torch.cat((angles, angles), -1)[:, : x.shape[-1]]
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat((-second, first), -1) * angles.sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).split(width, -1)
        q, k, v = (part.view(batch, length, 2, -1).transpose(1, 2) for part in (q, k, v))
        q, k = self.turned(q), self.turned(k)
        x = x + self.out(
            functional.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout, is_causal=True)
            .transpose(1, 2)
            .reshape(batch, length, width)
        )
        total: torch.Tensor = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return total


class Gathered(nn.Module):
    """Rows of one linear layer, read by a score, by dropout and a norm, and by what is summed."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.source = nn.Buffer(torch.tensor([0, 1, 2, 3, 0, 2]))
        self.target = nn.Buffer(torch.tensor([1, 1, 0, 3, 2, 0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.linear(x)
        pairs = functional.leaky_relu(rows[self.source] + rows[self.target], 0.2)
        noisy = self.norm(functional.dropout(rows * 2.0, 0.2))
        score = pairs.tanh().sum(-1, keepdim=True).softmax(0)
        given = (score * rows[self.source].exp()).to(rows.dtype)
        sums = torch.zeros_like(rows).index_add(0, self.target, given)
        return functional.gelu(sums + noisy)


class Changed(nn.Module):
    """Views of what is changed later, writes by index, numbers from shapes, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = nn.Buffer(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        half = y[:, :4]
        y = y.mul_(2.0)
        z = torch.tanh(half) + torch.sigmoid(y[:, 4:])
        w = torch.zeros_like(z)
        w[:, :2] = z[:, :2].exp()
        values, _ = (w + z).max(-1)
        self.calls.add_(1)
        noisy = z + torch.rand_like(z) * self.calls
        scaled: torch.Tensor = self.linear(torch.cat((noisy, w.cos()), -1)) * values[:, None]
        return functional.gelu(scaled)


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    return {
        "tied": (Tied(), (torch.randint(0, 50, (2, 12)),)),
        "convolutions": (Convolutions(), (torch.randn(4, 3, 8, 8),)),
        "norm by keyword": (NormByKeyword(), (torch.randn(6, 8),)),
        "rotary": (nn.Sequential(nn.Linear(32, 32), Rotary(0.0)), (torch.randn(2, 6, 32),)),
        "rotary dropout": (nn.Sequential(nn.Linear(32, 32), Rotary(0.2)), (torch.randn(2, 6, 32),)),
        "gathered": (Gathered(), (torch.randn(4, 8),)),
        "changed": (Changed(), (torch.randn(4, 8),)),
        "GPT-2": (
            gpt2(width=24, blocks=2, vocabulary=50, context=8),
            (torch.randint(0, 50, (2, 8)),),
        ),
        "ResNet-50": (resnet50(width=8), (torch.randn(2, 3, 32, 32),)),
    }


@dataclass(frozen=True)
class Case:
    """A model and how its options are made.

    Attributes:
        name: Of the model.
        granularity: How finely it is cut.
        is_low: Whether bf16 autocast is on around it.
        least_spared: From how many bytes on operators that read each other run again apart.
    """

    name: str
    granularity: Granularity = 1
    is_low: bool = False
    least_spared: int = generator._LEAST_SPARED


@cache
def options_of(case: Case) -> ModelOptions:
    model, args = models()[case.name]
    with mock.patch.object(generator, "_LEAST_SPARED", case.least_spared):
        return options_in(model.train(), *args, granularity=case.granularity, is_low=case.is_low)


CASES = [
    *(Case(name, is_low=low) for name in models() for low in (False, True) if name != "ResNet-50"),
    Case("tied", "fine"),
    Case("convolutions", "fine"),
    Case("rotary dropout", "fine", is_low=True),
    Case("GPT-2", "blocks"),
    Case("ResNet-50", "blocks"),
    *(Case(name, "blocks", least_spared=1) for name in ("tied", "convolutions", "GPT-2")),
    *(Case("gathered", is_low=low, least_spared=1) for low in (False, True)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_option_trains_as_plain(case: Case) -> None:
    found = options_of(case)
    for step in STEPS:
        expected = found.outcome(STEPS[step])
        for pick in range(found.most):
            assert differing(expected, found.outcome(STEPS[step], pick)) == [], (step, pick)


def differing(one: list[Any], other: list[Any]) -> list[int]:
    pairs = enumerate(zip(one, other, strict=True))
    return [n for n, (a, b) in pairs if not (a is b or torch.equal(a, b))]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_left_without_a_garbage_collector(case: Case) -> None:
    found = options_of(case)
    parameters = list(found.model.parameters())

    def loop() -> None:
        for pick in (*range(found.most), *range(found.most)):
            torch.autograd.grad(found.forward(pick), parameters, allow_unused=True)
            found.forward(pick)  # nobody goes back through this one

    buffers = [(tensor, tensor.clone()) for tensor in found.model.buffers()]
    loop()
    gc.collect()
    assert trace_memory(loop, "cpu").end_bytes == 0
    for buffer, before in buffers:
        buffer.copy_(before)


@pytest.mark.parametrize("name", ["tied", "convolutions", "rotary", "rotary dropout", "GPT-2"])
def test_an_option_holds_what_it_says(name: str) -> None:
    _, _, graphs = traced(*as_call(name))
    for graph, given in graphs:
        assert graph is not None
        for selection in thinned(selections_of(graph), 5):
            option = option_of(graph, selection)
            stage = ChainStage(option.name, (OptionPart(option),))
            with measuring(torch.device("cpu")):
                probe = StageProbe(stage, given[1], ())
                phases = probe.phases(given[0], torch.device("cpu"))
                memory = probe.memory(iter(trace_phases(phases, torch.device("cpu"))))
            # Where Python multiplies by a number, the graph holds it as a tensor of 8 bytes.
            numbers = sum(step.name in ("mul", "scale") for step in graph.steps)
            assert 0 <= memory.kept_bytes - option.saved_bytes <= 8 * numbers, option.name


def as_call(name: str) -> tuple[Any, ...]:
    model, args = models()[name]
    return (model.train(), *args)


@pytest.mark.parametrize("name", ["tied", "convolutions", "GPT-2"])
def test_a_span_of_stages_has_options_as_one_stage(name: str) -> None:
    model, *args = as_call(name)
    chain, inputs, graphs = traced(model, *args, granularity="fine")
    whole = fused(chain)
    with measuring(torch.device("cpu")):
        graph = trace_stage(whole, graphs[0][1], torch.device("cpu"), output_stays=False)
        assert graph is not None
        options = stage_options(graph, graphs[0][1])
    assert 8 <= len(options) <= 11
    assert [option.saved_bytes for option in options] == sorted(
        (option.saved_bytes for option in options), reverse=True
    )
    assert options[0].name == "keeps everything"
    with measuring(torch.device("cpu")):
        at_once = stage_options(graph.taking(1), graphs[0][1])
    assert at_once[0].name == "keeps everything", "no replay is free, whatever the clock says"
    assert all(option.name.startswith("drops ") for option in options[1:])
    for option in options:
        found = ModelOptions(model, chain, inputs, ((option,),), (whole,))
        expected = found.outcome(STEPS["plain"])
        assert differing(expected, found.outcome(STEPS["plain"], 0)) == []


def random_model(seed: int) -> nn.Module:
    """Operators at random, with views, changes in place and random numbers between them."""
    draw = random.Random(seed)
    unary: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.tanh,
        torch.relu_,
        lambda x: functional.dropout(x, 0.4),
        lambda x: functional.dropout(x, 0.4, inplace=True),
        lambda x: functional.layer_norm(x, x.shape[-1:]),
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: x + torch.rand_like(x),
        lambda x: x.flip(0).mul_(0.5),
        lambda x: x.reshape(-1).exp().view_as(x).clamp(max=3.0),
        functional.gelu,
        lambda x: x.unsqueeze(0).tanh_()[0],
        lambda x: x[1:].mul_(0.5).new_ones(()) * x,
        lambda x: x.softmax(-1),
        lambda x: functional.linear(x, x.t() @ x),
        lambda x: torch.cat(x.chunk(2, -1)[::-1], -1),
        lambda x: x.sort(-1).values,
    ]
    steps = [
        (draw.choice(unary), draw.randrange(3), draw.random() < 0.3, draw.random() < 0.5)
        for _ in range(draw.randint(4, 9))
    ]

    class Drawn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values = [self.linear(x), x * 2.0, self.linear(x * x)]
            for function, place, joins, is_copied in steps:
                made = function(values[place] * 1.0 if is_copied else values[place])
                values[place] = made + values[(place + 1) % 3] if joins else made
            total: torch.Tensor = values[0] * values[1] + values[2]
            return total

    return Drawn()


@pytest.mark.parametrize("least_spared", [2**20, 1])
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 60), marks=pytest.mark.long)])
def test_random_graphs(monkeypatch: pytest.MonkeyPatch, seeds: range, least_spared: int) -> None:
    monkeypatch.setattr(generator, "_LEAST_SPARED", least_spared)
    trains = 0
    for seed in seeds:
        torch.manual_seed(seed)
        model, batch = random_model(seed), torch.randn(4, 6)
        try:
            model(batch).sum().backward()
        except RuntimeError:
            continue  # changes what it has saved: no model that trains
        trains += 1
        found = options_in(model, batch, granularity=1 + seed % 2)
        for step in ("plain", "one parameter, then all"):
            expected = found.outcome(STEPS[step])
            for pick in range(found.most):
                assert differing(expected, found.outcome(STEPS[step], pick)) == [], (seed, pick)
    assert trains > len(seeds) / 3
