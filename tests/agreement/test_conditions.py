"""What a forward asks of values in its arguments is answered anew in every call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.torch_version import TorchVersion
from torch.utils.checkpoint import checkpoint

from assertions import require_no_nan, require_no_nan_in_silence, require_numbers
from chainstay import fit

LENGTH = 8


class Layers(nn.Module):
    """Layers behind a question that `asks` of the arguments."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def asks(self, mask: torch.Tensor) -> bool:
        return bool(mask.sum() == mask.numel())

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        is_asked = self.asks(mask)
        for layer in self.layers:
            x = x + (layer(x).tanh() if is_asked else layer(x).sigmoid() * mask[..., None])
        return x


class AskingByItem(Layers):
    def asks(self, mask: torch.Tensor) -> bool:
        return not (mask <= 0).any().item()


class AskingTheOpposite(Layers):
    def asks(self, mask: torch.Tensor) -> bool:
        return not (mask <= 0).any()


class Checking(Layers):
    def asks(self, mask: torch.Tensor) -> bool:
        torch._check_tensor_all(mask > -1)
        if mask.max() > 5:
            raise ValueError("too large")
        return True


class AskingLate(Layers):
    """It asks of memory that it has changed through a view."""

    def asks(self, mask: torch.Tensor) -> bool:
        mask[0].fill_(1)
        return bool((mask > 0).all())


class AskingWeights(Layers):
    def asks(self, mask: torch.Tensor) -> bool:
        first: Any = self.layers[0]
        return bool((first.bias > 0).any() & (mask > 0).any())


class AskingFilled(Layers):
    """It asks of memory that it has filled by the mask, and changed again."""

    def asks(self, mask: torch.Tensor) -> bool:
        filled = torch.zeros_like(mask).masked_fill_(mask > 0, 1)
        filled[0, 0] = mask[1, -1]
        return bool((filled[:, 0] > 0).all())


class AskingBehindACheckpoint(Layers):
    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            torch._dynamo.graph_break()  # no graph but that with the checkpoint in it
        x = checkpoint(self.layers[0], x, use_reentrant=False)
        return super().forward(x, mask)


class Encoder(nn.Module):
    """Asks whether its mask hides just the future."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=x.requires_grad):
            y: torch.Tensor = self.encoder(x, mask=mask)
        return y


class Attention(Layers):
    """Grouped attention, without a mask where that is ones, as models of `transformers` have it."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        past = torch.arange(LENGTH)
        shown: Any = (past[None, :] <= past[:, None]) & mask.to(torch.bool)[:, None, None, :]
        if not torch.compiler.is_compiling() and mask.all():
            shown = None
        for layer in self.layers:
            q, k, v = layer(x).unflatten(-1, (8, 2)).transpose(1, 2).split([4, 2, 2], 1)
            if shown is not None:
                k, v = (
                    h[:, :, None, :, :].expand(2, 2, 2, LENGTH, 2).reshape(2, 4, LENGTH, 2)
                    for h in (k, v)
                )
            gqa = {"is_causal": True, "enable_gqa": True} if shown is None else {}
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=shown, **gqa)
            x = x + torch.cat([y.transpose(1, 2).flatten(2)] * 2, -1)
        return x


def trained(model: nn.Module, *args: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = model(*args).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def ones() -> torch.Tensor:
    return torch.ones(2, LENGTH, dtype=torch.long)


def padded() -> torch.Tensor:
    return ones() * (torch.arange(LENGTH) < torch.tensor([[LENGTH], [5]]))


@pytest.mark.parametrize(
    "kind",
    [
        *(Layers, AskingByItem, AskingTheOpposite, AskingFilled),
        *(AskingBehindACheckpoint, Attention),
    ],
)
@pytest.mark.parametrize("order", [(ones, padded), (padded, ones)])
def test_another_answer_is_another_graph(kind: type[Layers], order: Any) -> None:
    torch.manual_seed(0)
    plain = kind()
    planned = fit(copy.deepcopy(plain), budget=0.7, repeats=1)
    x = torch.randn(2, LENGTH, 16)
    for mask in (order[0](), order[1](), order[0](), order[1]()):
        assert all(map(torch.equal, trained(planned, x, mask), trained(plain, x, mask)))
    held = ones()
    for entry in (1, 0, 1):  # of one tensor, which changes
        held[1, -1] = entry
        assert all(map(torch.equal, trained(planned, x, held), trained(plain, x, held)))
    told: Any = planned.chainstay
    assert "by blocks" not in str(told)
    assert len(told.plans) == 2


@pytest.mark.long
@pytest.mark.parametrize("is_cast", [False, True])
def test_transformers_of_torch_are_graphs_whatever_their_mask_hides(*, is_cast: bool) -> None:
    torch.manual_seed(0)
    plain = Encoder()
    planned = fit(copy.deepcopy(plain), budget=0.8, repeats=1)
    x = torch.randn(2, LENGTH, 16, requires_grad=is_cast)
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    future = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    for mask in (future, hidden, hidden.T, future.T, hidden, future):
        assert all(map(torch.equal, trained(planned, x, mask), trained(plain, x, mask)))
    assert "by blocks" not in str(planned.chainstay)


@pytest.mark.skipif(
    TorchVersion(torch.__version__) < "2.13",
    reason="torch before 2.13 cannot trace torch._check_tensor_all",
)
def test_a_check_that_fails_fails_as_in_the_model() -> None:
    torch.manual_seed(0)
    plain = Checking()
    planned = fit(copy.deepcopy(plain), budget=0.7, repeats=1)
    x = torch.randn(2, LENGTH, 16)
    assert all(map(torch.equal, trained(planned, x, ones()), trained(plain, x, ones())))
    assert "by blocks" not in str(planned.chainstay)
    for wrong, error in ((ones() * 6, ValueError), (-ones(), RuntimeError)):
        with pytest.raises(error) as expected:
            plain(x, wrong)
        with pytest.raises(error) as raised:
            planned(x, wrong)
        assert str(raised.value) == str(expected.value)
    assert all(map(torch.equal, trained(planned, x, ones()), trained(plain, x, ones())))


class Asserting(nn.Module):
    """Layers with an assertion behind each of them."""

    def __init__(self, require: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.require = require

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x * mask[..., None]
        for layer in self.layers:
            x = layer(x).tanh()
            self.require(x)
        return x


@pytest.mark.parametrize("require", [require_numbers, require_no_nan, require_no_nan_in_silence])
def test_assertions_are_operators_that_raise_as_in_the_model(
    require: Callable[[torch.Tensor], None],
) -> None:
    torch.manual_seed(0)
    plain = Asserting(require)
    planned = fit(copy.deepcopy(plain), budget=0.7, repeats=1)
    x = torch.randn(2, LENGTH, 16)
    for _ in range(2):
        assert all(map(torch.equal, trained(planned, x, ones()), trained(plain, x, ones())))
        with pytest.raises(AssertionError) as expected:
            plain(x * torch.nan, ones())
        with pytest.raises(AssertionError) as raised:
            planned(x * torch.nan, ones())
        assert raised.value.args == expected.value.args
    assert "by blocks" not in str(planned.chainstay)


@pytest.mark.parametrize("kind", [AskingLate, AskingWeights])
def test_what_may_change_before_it_is_asked_is_not_looked_up(kind: type[Layers]) -> None:
    torch.manual_seed(0)
    plain = kind()
    planned = fit(copy.deepcopy(plain), budget="1MiB", repeats=1)
    x = torch.randn(2, LENGTH, 16)
    for mask in (padded(), ones()):
        other = mask.clone()
        assert all(map(torch.equal, trained(planned, x, mask), trained(plain, x, other)))
    assert "by blocks" in str(planned.chainstay)
