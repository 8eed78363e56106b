"""Dropout and attention in parts: the same bits as torch's own operators, whatever is dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.runtime.options import operator_parts
from chainstay.runtime.options.front import pareto_front
from chainstay.runtime.options.operator_parts import SplitLevel
from chainstay.runtime.options.option import option_of
from stage_options_support import STEPS, options_in, traced


class Attention(nn.Module):
    """Attention with dropout between two linear layers."""

    def __init__(self, mask: Callable[[], torch.Tensor] | None = None, **options: Any) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 24), nn.Linear(8, 8)
        self.bias = None if mask is None else mask()
        self.options = {"dropout_p": 0.3, **options}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = self.first(x).view(batch, length, 2, 12).transpose(1, 2)
        query, key, value = heads.chunk(3, -1)
        attend = functional.scaled_dot_product_attention
        found = attend(query, key, value, attn_mask=self.bias, **self.options)
        y: torch.Tensor = self.second(found.transpose(1, 2).reshape(batch, length, width))
        return y


class GroupedAttention(nn.Module):
    """Attention whose queries share keys, and dropout behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.linear(x).view(2, 6, 4, 2).transpose(1, 2)
        attend = functional.scaled_dot_product_attention
        found = attend(query, query[:, :2], query[:, 2:], dropout_p=0.2, enable_gqa=True)
        return functional.dropout(found, 0.1)


def dropped(function: Callable[..., torch.Tensor], *args: Any) -> nn.Module:
    """Return dropout by `function`, between linear layers, of a tensor that is not contiguous."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.second(function(self.first(x).transpose(1, 2), *args).tanh())
            return y

    return Dropped()


WITH_PARTS: dict[str, Callable[[], nn.Module]] = {
    "attention": Attention,
    "causal": lambda: Attention(is_causal=True, scale=0.7),
    "negative scale": lambda: Attention(scale=-0.7),
    "mask": lambda: Attention(lambda: torch.rand(6, 6) > 0.4),
    "nothing to look at": lambda: Attention(lambda: torch.arange(6)[:, None] > torch.arange(6)),
    "bias": lambda: Attention(lambda: torch.randn(2, 1, 6, 6)),
    "learned bias": lambda: Attention(lambda: nn.Parameter(torch.randn(1, 2, 6, 6))),
    "functional": lambda: dropped(functional.dropout, 0.4),
    "by default": lambda: dropped(functional.dropout),
    "torch": lambda: dropped(partial(torch.dropout, p=0.4, train=True)),
}


@pytest.fixture
def x() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(2, 6, 8)


@pytest.mark.parametrize("name", WITH_PARTS)
def test_options_of_parts_train_as_plain(name: str, x: torch.Tensor) -> None:
    torch.manual_seed(1)
    found = options_in(WITH_PARTS[name](), x)
    (options,) = found.options
    split = options[0].code.graph.composition.split
    assert split is SplitLevel.ATTENTION  # all operators that have parts
    assert any("dropout_noise" in option.name for option in options)
    for step in ("plain", "a second backward", "two forwards"):
        expected = found.outcome(STEPS[step])
        for pick in range(found.most):
            pairs: Any = zip(expected, found.outcome(STEPS[step], pick), strict=True)
            assert all(one is other or torch.equal(one, other) for one, other in pairs)


def test_a_mask_is_kept_in_a_quarter_of_the_noise(x: torch.Tensor) -> None:
    _, _, ((graph, _),) = traced(dropped(functional.dropout, 0.4), x)
    assert graph is not None
    times = [1 if step.name == "dropout_noise" else 9 for step in graph.steps]
    operators = [replace(op, time=t) for op, t in zip(graph.operators, times, strict=True)]
    options = {option_of(graph, choice).name: choice for choice in pareto_front(operators)}
    kept = min(options.values(), key=lambda option: option.replay_time).kept_bytes
    assert kept - options["drops dropout_noise"].kept_bytes == 3 * x.numel()


@pytest.mark.parametrize(
    ("function", "split"),
    [
        (operator_parts.softmax, SplitLevel.DROPOUT),
        (operator_parts.dropout_noise, SplitLevel.WHOLE),
        (operator_parts.dropout_mask, SplitLevel.WHOLE),
    ],
)
def test_parts_that_give_other_bits_are_not_used(
    function: Callable[..., torch.Tensor],
    split: SplitLevel,
    x: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(*args: Any) -> torch.Tensor:
        torch.rand(1)
        return function(*args)

    monkeypatch.setattr(operator_parts, function.__name__, other)
    _, _, ((graph, _),) = traced(nn.Sequential(Attention(), nn.Dropout(0.2)), x)
    assert graph is not None
    assert graph.composition.split is split


def test_parts_that_save_something_else_are_not_used(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device whose dropout saves its mask: a stage dropped as a whole may then be kept."""

    def same(tensor: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        product = tensor * noise
        return torch.where(noise.bool(), product, product)

    monkeypatch.setattr(operator_parts, "dropout", same)
    _, _, ((graph, _),) = traced(nn.Dropout(0.2), x.requires_grad_())
    assert graph is not None
    assert graph.composition.split is SplitLevel.WHOLE


def test_parts_that_fail_are_not_used(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> torch.Tensor:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(operator_parts, "dropout_noise", failing)
    _, _, ((graph, _),) = traced(nn.Dropout(0.2), x.requires_grad_())
    assert graph is not None
    assert graph.composition.split is SplitLevel.WHOLE


def test_parts_with_other_gradients_are_not_used(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_graph(tensor: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        return tensor * noise + (tensor - tensor.detach())

    monkeypatch.setattr(operator_parts, "dropout", without_graph)
    _, _, ((graph, _),) = traced(nn.Dropout(0.2), x.requires_grad_())
    assert graph is not None
    assert graph.composition.split is SplitLevel.WHOLE


@pytest.mark.parametrize(
    ("model", "split"),
    [
        (GroupedAttention(), SplitLevel.ATTENTION),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)), SplitLevel.WHOLE),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)), SplitLevel.WHOLE),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(1.0)), SplitLevel.WHOLE),
        (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2).eval()), SplitLevel.WHOLE),
    ],
)
def test_what_has_no_parts_stays_whole(
    model: nn.Module, split: SplitLevel, x: torch.Tensor
) -> None:
    _, _, ((graph, _),) = traced(model, x)
    assert graph is not None
    assert graph.composition.split is split
    attention = [n for n in graph.composition.graph.nodes if "attention" in str(n.target)]
    assert len(attention) == (split is SplitLevel.ATTENTION)


def test_low_precision_splits_dropout_alone(x: torch.Tensor) -> None:
    _, _, ((graph, _),) = traced(
        nn.Sequential(Attention(), nn.Dropout(0.2)).bfloat16(), x.bfloat16()
    )
    assert graph is not None
    assert graph.composition.split is SplitLevel.DROPOUT
