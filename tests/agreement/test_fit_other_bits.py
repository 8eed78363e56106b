"""Models whose forward gives other bits when it runs again, as kernels with atomics do."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import pytest
import torch
from torch import nn

import chainstay
from chainstay import UnsupportedModelError

COUNT: Final = itertools.count()
"""Nothing can put it back, so that no two runs are alike."""


class Noise:
    """By how much the operator's results are off."""

    size = 0.0


@torch.library.custom_op("chainstay_tests::add_in_any_order", mutates_args=())
def add_in_any_order(x: torch.Tensor) -> torch.Tensor:
    factor = 1 + Noise.size * math.cos(next(COUNT))
    return x * factor


@add_in_any_order.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


add_in_any_order.register_autograd(lambda _, gradient: gradient)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = add_in_any_order(self.down(torch.tanh(self.up(x))))
        return x + change


class Scatters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(params=[1e-6])
def _noise(request: pytest.FixtureRequest) -> Iterator[None]:
    Noise.size = request.param
    yield
    Noise.size = 0.0


def fitted(**settings: Any) -> nn.Module:
    torch.manual_seed(0)
    settings = {"budget": "100%", "repeats": 1, "progress": False, **settings}
    loss = torch.Tensor.sum
    return chainstay.fit(Scatters(), (torch.randn(64, 16),), loss=loss, **settings)


@pytest.mark.usefixtures("_noise")
@pytest.mark.parametrize("by", ["graph", "blocks", "auto"])
def test_other_bits_are_refused_with_the_operator_and_the_setting(by: str) -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=r"when it runs again .*add_in_any_order\S*\); .*bit_for_bit=False\) accepts",
    ):
        fitted(by=by)


@pytest.mark.usefixtures("_noise")
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_other_bits_are_accepted_where_that_is_asked_for(by: str) -> None:
    model = fitted(by=by, budget="70%", stage_options=False, bit_for_bit=False)
    x = torch.randn(64, 16)
    model(x).sum().backward()
    schedule: chainstay.Schedule = model.chainstay.solution.schedule  # type: ignore[union-attr,assignment]
    runs = Counter(op.stage for op in schedule if op.kind.is_forward)
    assert max(runs.values()) > 1
    planned = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    chainstay.unfit(model).zero_grad()
    model(x).sum().backward()
    plain = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    torch.testing.assert_close(planned, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("_noise")
def test_other_bits_are_accepted_under_torch_compile() -> None:
    torch._dynamo.reset()
    options: Any = {"budget": "100%", "bit_for_bit": False, "repeats": 1, "progress": False}
    model = Scatters()
    torch.compile(model, backend="chainstay", options=options)(torch.randn(64, 16)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.usefixtures("_noise")
@pytest.mark.parametrize("_noise", [0.1], indirect=True)
def test_other_numbers_are_refused_all_the_same() -> None:
    with pytest.raises(UnsupportedModelError, match="when it runs again"):
        fitted(bit_for_bit=False)
