"""Recurrent networks of several layers are planned layer by layer, with the bits of plain ones."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from sgd_steps import peak_of_step
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from zoo import loss_of


class Recurrent(nn.Module):
    """A language model that may start from states and returns its last ones."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.layers = kind(12, 12, **{"num_layers": 4, **options})
        self.head = nn.LazyLinear(30)

    def forward(self, tokens: torch.Tensor, start: Any = None) -> dict[str, Any]:
        y, last = self.layers(self.embed(tokens), start)
        return {"scores": self.head(y), "last": last}


TOKENS = torch.arange(96).reshape(6, 16) * 7 % 30


def states(*shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.linspace(-1, 1, torch.Size(s).numel()).reshape(s) for s in shapes)


CASES: dict[str, tuple[type[nn.RNNBase], dict[str, Any], tuple[Any, ...]]] = {
    "LSTM": (nn.LSTM, {}, (TOKENS,)),
    "LSTM, both ways": (
        nn.LSTM,
        {"bidirectional": True, "dropout": 0.2, "batch_first": True},
        (TOKENS,),
    ),
    "LSTM from states": (
        nn.LSTM,
        {"bias": False, "dropout": 0.3},
        (TOKENS, states((4, 16, 12), (4, 16, 12))),
    ),
    "GRU": (nn.GRU, {"dropout": 0.3, "batch_first": True}, (TOKENS,)),
    "GRU from states": (nn.GRU, {"bidirectional": True}, (TOKENS, *states((8, 16, 12)))),
    "RNN": (nn.RNN, {"nonlinearity": "relu", "dropout": 0.1}, (TOKENS,)),
}


@pytest.mark.parametrize("name", CASES)
def test_layers_are_planned_one_by_one(name: str) -> None:
    kind, options, args = CASES[name]
    torch.manual_seed(0)
    plain = Recurrent(kind, **options)
    plain(*args)
    sample, fitted = Sample(args), copy.deepcopy(plain)
    chainstay.fit(fitted, args, budget="85%", progress=False)
    assert differences(trained(fitted, sample), trained(plain, sample)) == []
    assert recomputes(fitted) or keeps_in_part(fitted)
    profile = shown(fitted).plans[0].profile
    assert isinstance(profile, chainstay.ChainProfile)
    assert sum("part of layers" in stage.name for stage in profile.stages) > 1


@pytest.mark.long
def test_two_layers_are_cut_behind_the_dropout_between_them() -> None:
    """The second layer saves what dropout gives; what goes into dropout is let go."""
    torch.manual_seed(0)
    plain = Recurrent(nn.GRU, num_layers=2, dropout=0.3, batch_first=True)
    plain(TOKENS)
    sample, fitted = Sample((TOKENS,)), copy.deepcopy(plain)
    chainstay.fit(fitted, sample.args, budget="70%", progress=False)
    assert differences(trained(fitted, sample), trained(plain, sample)) == []
    profile = shown(fitted).plans[0].profile
    assert isinstance(profile, chainstay.ChainProfile)
    assert [stage.name for stage in profile.stages] == ["embed", "head", "loss"]


def test_one_layer_stays_as_it_is() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LSTM(8, 8))
    plain, x = copy.deepcopy(model), torch.randn(5, 4, 8)
    chainstay.fit(model, (x,), budget="100%", progress=False)
    assert torch.equal(model(x)[0], plain(x)[0])


class Rows(nn.Module):
    """A network that goes through the rows of tensors, one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.enter(x)
        second, third = torch.tanh(first), torch.sigmoid(first)
        return torch.stack([self.leave(a * b + c) for a, b, c in zip(first, second, third)])  # noqa: B905  # TorchDynamo of torch 2.6 knows no strict one


@pytest.mark.long
def test_gradients_of_rows_are_put_together_at_once() -> None:
    """One selection for each row would make a gradient of the whole tensor for each."""
    torch.manual_seed(0)
    plain, x = Rows(), torch.randn(12, 8, 16)
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="100%", loss=loss_of, repeats=1)
    told = shown(planned).plans[-1].plain_peak
    assert told is not None

    def step() -> None:
        output = plain(x)  # held until the step ends, as in most loops
        loss_of(output).backward()

    needed = peak_of_step(plain, step, x)
    assert needed <= told <= 1.02 * needed
    assert differences(trained(planned, Sample((x,))), trained(plain, Sample((x,)))) == []
