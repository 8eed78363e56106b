"""Arguments and outputs of every kind."""

from __future__ import annotations

import functools
import math
import re
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.fitting.planner import StageSource
from twins import (
    SAMPLE,
    Call,
    Stack,
    batch,
    fitted_twins,
    require_equal_steps,
    require_trains_equally,
    shown,
)
from zoo import loss_of

X = SAMPLE.args[0]
_WEIGHT = nn.Parameter(torch.ones(16))


@dataclass
class Batch:
    """As data loaders make them."""

    x: torch.Tensor
    scale: float = 1.0


class Pair(NamedTuple):
    """As forwards return them."""

    scores: torch.Tensor
    features: torch.Tensor


class Own:
    """An object that torch knows nothing of."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x, self.names = x, ["a"]


class Tagged(torch.Tensor):
    """A tensor subclass that does nothing."""


class Taking(Stack):
    """Takes anything that `tensor_of` makes a tensor of."""

    tensor_of: Callable[..., torch.Tensor]

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        y: torch.Tensor = super().forward(type(self).tensor_of(*args, **kwargs))
        return y


Made = Callable[[int], Call]
"""The call of a step."""

TAKEN: dict[str, tuple[Callable[..., torch.Tensor], Made]] = {
    "a dataclass": (lambda b: b.x * b.scale, lambda n: Call((Batch(X, 1.0 + n),))),
    "a named tuple": (lambda p: p.scores + p.features, lambda n: Call((Pair(X, X * n),))),
    "a dict": (
        lambda d: d["x"] * d.get("y", 1),
        lambda n: Call(({"x": X} | {"y": n} if n else {"x": X},)),
    ),
    "an ordered dict": (lambda d: d["x"], lambda n: Call((OrderedDict(x=X + n),))),
    "a dict of the user's own": (lambda d: d["x"], lambda n: Call((UserDict(x=X + n),))),
    "nested lists": (lambda v: v[0][0] + v[1]["b"], lambda n: Call(([[X], {"b": X * n}],))),
    "an object": (lambda o: o.x, lambda n: Call((Own(X + n),))),
    "keywords": (lambda x, *, k: x * k, lambda n: Call((X,), {"k": 1 + n})),
    "a string": (lambda x, how: getattr(x, how)(), lambda n: Call((X, ("sin", "cos", "tanh")[n]))),
    "a function": (lambda x, f: f(x), lambda n: Call((X, (torch.sin, torch.cos, torch.tanh)[n]))),
    "None or a mask": (
        lambda x, m: x if m is None else x * m,
        lambda n: Call((X, None if n == 1 else torch.ones(16))),
    ),
    "a float": (lambda x, t: x / t, lambda n: Call((X, (1.0, 0.5, 0.1)[n]))),
    "a tensor without dimensions": (lambda x, t: x * t, lambda n: Call((X, torch.tensor(1.0 + n)))),
    "a dtype": (
        lambda x, d: x.to(d).float(),
        lambda n: Call((X, (torch.float32, torch.bfloat16)[n % 2])),
    ),
    "one tensor twice": (lambda x, y: x * y, lambda n: Call((X, X if n != 1 else X.clone()))),
    "views of one tensor": (
        lambda x, y: x + y,
        lambda n: Call((batch(128, 16)[:64], batch(128, 16)[n : 64 + n])),
    ),
    "an expanded tensor": (lambda x: x, lambda n: Call((batch(1, 16).expand(64, 16) * 1**n,))),
    "a transposed tensor": (lambda x: x, lambda _: Call((batch(16, 64).T,))),
    "a tensor subclass": (
        lambda x: x.as_subclass(torch.Tensor),
        lambda n: Call(((X + n).as_subclass(Tagged),)),
    ),
    "integers": (lambda x, i: x[i], lambda n: Call((X, torch.arange(64).roll(n)))),
    "a sparse tensor": (
        lambda x, s: torch.sparse.mm(s, x),
        lambda n: Call((X, (torch.eye(64) * (n + 1)).to_sparse())),
    ),
    "NaN": (
        lambda x, t: x if math.isnan(t) else x * t,
        lambda n: Call((X, float("nan") if n else 2.0)),
    ),
    "a bool": (lambda x, b: x.sin() if b else x, lambda n: Call((X, n == 1))),
    "more arguments than before": (lambda *xs: sum(xs), lambda n: Call((X,) * (1 + n))),
    "a parameter": (lambda x, w: x * w, lambda _: Call((X, _WEIGHT))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    tensor_of, made = TAKEN[name]
    make = type("Model", (Taking,), {"tensor_of": staticmethod(tensor_of)})

    def step(model: nn.Module, number: int) -> torch.Tensor:
        loss = loss_of(made(number)(model))
        loss.backward()
        return loss

    require_trains_equally(
        make, made(0), step, budget=10**6, recomputed=False, on_new_shape="run plainly"
    )


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_a_generator_is_not_used_up(by: StageSource) -> None:
    """It is refused, and what trains without a plan gets all of it."""

    def sum_of(values: Iterator[torch.Tensor]) -> torch.Tensor:
        return functools.reduce(torch.add, values)

    model = type("Model", (Taking,), {"tensor_of": staticmethod(sum_of)})()
    values = (X * k for k in range(1, 3))
    with pytest.raises(UnsupportedModelError, match="a generator, which can be gone through once"):
        chainstay.fit(model, (values,), budget=10**6, loss=loss_of, progress=False, by=by)
    assert len(list(values)) == 2


class Giving(Stack):
    """Gives what `output_of` makes of it."""

    output_of: Callable[[torch.Tensor, Any], Any]

    def forward(self, x: torch.Tensor) -> Any:
        return type(self).output_of(super().forward(x), x)


GIVEN: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "a dict": lambda y, x: {"y": y, "x": x, "n": 3},
    "a named tuple": lambda y, x: Pair(y, y * x),
    "a dataclass": lambda y, _: Batch(y, 2.0),
    "an object": lambda y, _: Own(y),
    "nested": lambda y, x: [(y, None), {"a": [y.sum(), "text"]}, x],
    "the same tensor twice": lambda y, _: (y, y),
    "views": lambda y, _: y.chunk(2),
    "a detached one beside": lambda y, _: (y, y.detach()),
    "integers beside": lambda y, _: (y, y.argmax(-1)),
    "a subclass": lambda y, _: y.as_subclass(Tagged),
    "a generator": lambda y, _: (y * k for k in (1, 2)),
}


@pytest.mark.parametrize("name", GIVEN)
def test_given(name: str) -> None:
    make = type("Model", (Giving,), {"output_of": staticmethod(GIVEN[name])})

    def loss_in(output: Any) -> torch.Tensor:
        if isinstance(output, (Batch, Own)):  # torch 2.6 traces no union
            output = output.x
        return loss_of(list(output) if hasattr(output, "__next__") else output)

    def step(model: nn.Module, _: int) -> torch.Tensor:
        output = SAMPLE(model)
        loss = loss_in(output)
        loss.backward()
        assert type(output) is not list or name == "nested"
        return loss

    loss = None if name == "a generator" else loss_in  # it cannot be traced there
    plain, fitted = fitted_twins(make, SAMPLE, budget=10**6, loss=loss)
    if name != "a generator":  # TorchDynamo makes another iterator of it
        assert type(SAMPLE(plain)) is type(SAMPLE(fitted))
    require_equal_steps(plain, fitted, step, 2)


def sign(output: torch.Tensor) -> torch.Tensor:
    """A loss that decides by a value."""
    return output.square().mean() if output.sum().item() > 0 else output.abs().mean()


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_loss_that_reads_values_is_left_out_and_told_once(
    by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other shapes go without it, too."""

    def step(model: nn.Module, number: int) -> torch.Tensor:
        return _backward(sign(model(batch(64 - 16 * number, 16))))

    make = functools.partial(Stack, lambda: nn.Sequential(nn.Linear(16, 64), nn.Linear(64, 16)))
    settings: dict[str, Any] = {"budget": "80%", "by": by, "progress": True}
    plain, fitted = fitted_twins(make, SAMPLE, loss=sign, **settings)
    told = capsys.readouterr().err
    require_equal_steps(plain, fitted, step, 2)
    told += capsys.readouterr().err
    assert len(re.findall("planning without loss=, which cannot be traced", told)) == 1
    alone = fitted_twins(make, SAMPLE, loss=None, **settings)[1]
    assert shown(fitted).plans[0].solution.budget == shown(alone).plans[0].solution.budget


def test_the_sample_may_be_given_away() -> None:
    """A call with the same tensor object, filled with a batch of another size."""
    x = batch(64, 16)
    plain, fitted = fitted_twins(Stack, Call((x,)), budget="70%")
    x.resize_(32, 16)
    require_equal_steps(plain, fitted, lambda model, _: _backward(loss_of(model(x))))
    x.resize_(256, 16).fill_(0.5)
    with pytest.raises(InfeasibleBudgetError, match=r"for a call with \(256, 16\)"):
        fitted(x)
    assert len(shown(fitted).plans) == 2


def _backward(loss: torch.Tensor) -> torch.Tensor:
    loss.backward()
    return loss
