"""Graphs that go by one plan, custom autograd functions in them, and the forward of a module."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Hashable
from functools import partial
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn

from captured_graphs import chain_of, observed
from chainstay.runtime.capture.graph_key import graph_key
from chainstay.runtime.capture.trials.model_forward import (
    is_stand_in,
    restore_forward,
    stand_in_for,
    unbound_forward,
)
from chainstay.runtime.devices.autocast import Autocast

CPU = torch.device("cpu")
X = torch.linspace(-2, 2, 12).reshape(3, 4)


def key_of(function: Callable[..., Any], *args: Any) -> Hashable:
    seen, inputs = observed(function, *args)
    return graph_key(seen, inputs, Autocast.now(CPU))


def scaled(x: torch.Tensor, weight: torch.Tensor, by: float = 2.0, start: int = 0) -> torch.Tensor:
    return (x * by).tanh()[start : start + 2] * weight.sum() ** int(by)


WEIGHT = torch.ones(4, requires_grad=True)


@pytest.mark.parametrize(
    ("other", "is_same"),
    [
        (lambda x, weight: scaled(x, weight, 3.0), True),
        (lambda x, weight: scaled(x, weight, 2.0, 1), True),
        (lambda x, weight: scaled(x, weight + 0, 2.0), False),
        (lambda x, weight: scaled(x.relu(), weight), False),
        (lambda x, weight: scaled(x, weight).double(), False),
    ],
    ids=["a factor", "a place", "one operator more", "another operator", "another type"],
)
def test_numbers_do_not_tell_graphs_apart(other: Callable[..., Any], *, is_same: bool) -> None:
    assert (key_of(scaled, X, WEIGHT) == key_of(other, X, WEIGHT)) is is_same


def test_sizes_types_gradients_and_autocast_tell_graphs_apart() -> None:
    keys = [
        key_of(scaled, X, WEIGHT),
        key_of(scaled, torch.ones(5, 4), WEIGHT),
        key_of(scaled, X.double(), WEIGHT),
        key_of(scaled, X.clone().requires_grad_(), WEIGHT),
        key_of(scaled, WEIGHT.detach().expand(3, 4), WEIGHT),
        key_of(lambda x, weight: scaled(x, weight)[:, :1], X, WEIGHT),
    ]
    with torch.autocast("cpu", torch.bfloat16):
        keys.append(key_of(scaled, X, WEIGHT))
    assert len(set(keys)) == len(keys)
    assert key_of(scaled, X + 1, WEIGHT) == keys[0]


class Cubed(torch.autograd.Function):
    """With what it saves in two ways."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.by = by
        return x**3 * by

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradients[0] * 3 * x**2 * ctx.by, None


class Cubing(nn.Module):
    """A layer on each side of such a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(Cubed.apply(self.first(x), 0.5).tanh())  # type: ignore[no-untyped-call]
        return result


def cubing() -> Cubing:
    torch.manual_seed(0)
    return Cubing()


def test_custom_functions_have_their_gradients_and_those_of_these() -> None:
    model = cubing()
    graph, inputs = chain_of(model, X)
    leaves = list(model.parameters())

    def gradients(run: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        first = torch.autograd.grad(run().square().sum(), leaves, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return (*first, *torch.autograd.grad(total, leaves))

    expected = gradients(lambda: model(X))
    assert all(map(torch.equal, expected, gradients(lambda: graph(*inputs)[0])))
    assert any(gradient.abs().sum() > 0 for gradient in expected[len(leaves) :])


def test_what_a_custom_function_saves_can_be_dropped() -> None:
    """By hooks on saved tensors, which is how a plan forgets: nothing else holds it."""
    model = cubing()
    graph, inputs = chain_of(model, X)

    def pack(tensor: torch.Tensor) -> tuple[weakref.ref[torch.Tensor], torch.Tensor]:
        copied = tensor.detach().clone()
        return weakref.ref(tensor), copied

    seen = list[bool]()

    def unpack(packed: tuple[weakref.ref[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        seen.append(packed[0]() is None)
        return packed[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        (output,) = graph(*inputs)
    gc.collect()
    output.square().sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(X).square().sum().backward()
    assert all(map(torch.equal, found, [parameter.grad for parameter in model.parameters()]))  # type: ignore[arg-type]
    assert any(seen), "nobody else held it"


class Plain(nn.Module):
    """Doubles."""

    factor = 2.0

    def forward(self, x: torch.Tensor, *, more: float = 0.0) -> torch.Tensor:
        return x * self.factor + more


def test_the_forward_of_a_module_takes_the_module() -> None:
    one, other = Plain(), Plain()
    other.factor = 5.0
    assert torch.equal(unbound_forward(one)(other, X), X * 5)
    owns: list[tuple[Any, torch.Tensor]] = [
        (MethodType(lambda self, x: x * self.factor + 1, one), X * 5 + 1),
        (partial(Plain.forward, one, more=3.0), X * 5 + 3),
        (lambda x: x - 1, X - 1),
    ]
    for own, expected in owns:
        one.forward = own  # type: ignore[method-assign]
        assert torch.equal(unbound_forward(one)(other, X), expected)


def test_a_stand_in_is_no_forward_of_the_modules_own() -> None:
    model = Plain()
    own = model.forward = partial(Plain.forward, model, more=1.0)  # type: ignore[method-assign]
    for factor in (10, 20):  # one in place of the other
        stand_in_for(model, lambda _, x, factor=factor: x * factor)
        assert is_stand_in(vars(model)["forward"])
        assert torch.equal(model(X), X * factor)
        assert torch.equal(unbound_forward(model)(model, X), X * 2 + 1)
    restore_forward(model)
    assert vars(model)["forward"] is own
    plain = Plain()
    stand_in_for(plain, lambda _, x: x)
    restore_forward(plain)
    assert "forward" not in vars(plain)
