"""Plans that keep stages in part, in loops that train under autocast."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay import PlanMismatchError
from option_families import FAMILIES
from training_conditions import keeps_in_part
from twins import SAMPLE, Call, Stack, batch, peak_of, require_trains_equally, shown
from zoo import loss_of

pytestmark = pytest.mark.usefixtures("equal_times")

each_way = pytest.mark.parametrize("by", ["graph", "blocks"])


def context() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def pair(by: Any) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    make, x = FAMILIES["GPT"]
    torch.manual_seed(0)
    plain = make().train()
    planned = copy.deepcopy(plain)
    with context():
        chainstay.fit(planned, (x,), budget="70%", loss=loss_of, by=by, repeats=1, progress=False)
    assert keeps_in_part(planned)
    return plain, planned, x


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    torch.manual_seed(1)
    loss_of(model(x)).backward()
    optimizer.step()


@pytest.mark.long
@each_way
def test_a_context_for_each_step_is_trained_in(by: str) -> None:
    plain, planned, x = pair(by)
    for model in (plain, planned):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            with context():
                stepped(model, optimizer, x)
                with torch.no_grad():
                    model(x)
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.long
@each_way
def test_gradients_may_add_up_within_one_context(by: str) -> None:
    plain, planned, x = pair(by)
    for model in (plain, planned):
        with context():
            for _ in range(2):
                torch.manual_seed(1)
                loss_of(model(x)).backward()
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


@pytest.mark.long
@each_way
def test_a_second_step_within_one_context_is_refused(by: str) -> None:
    """Plain training goes on with copies of the weights from before the first step."""
    _, planned, x = pair(by)
    optimizer = torch.optim.SGD(planned.parameters(), 0.1)
    with context():
        stepped(planned, optimizer, x)
        before = {name: value.clone() for name, value in planned.state_dict().items()}
        with pytest.raises(PlanMismatchError, match="leave the context before the optimizer's"):
            stepped(planned, optimizer, x)
        assert all(torch.equal(value, before[name]) for name, value in planned.state_dict().items())
    with context():
        stepped(planned, optimizer, x)


class Gated(nn.Module):
    """Multiplies what two gates pass, which are equal before the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(64, 64), nn.Linear(64, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(64) for _ in range(2))
        self.gates = nn.ParameterList(torch.full((64,), 0.1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enter(x)
        one, other = (norm(h) * gate for norm, gate in zip(self.norms, self.gates, strict=True))
        y: torch.Tensor = self.leave(torch.softmax(one @ other.transpose(-1, -2), -1) @ h)
        return y.float().square().mean()


def test_factors_that_are_equal_in_the_planned_call_only() -> None:
    """Which of them autocast has copied is not told by their values."""
    torch.manual_seed(0)
    x = torch.randn(4, 64, 64)
    plain = Gated()
    planned = copy.deepcopy(plain)
    with context():
        chainstay.fit(planned, (x,), budget="80%", repeats=1, progress=False)
    assert keeps_in_part(planned)
    gradients = []
    for model in (plain, planned):
        with torch.no_grad():
            model.gates[0].copy_(torch.linspace(0, 1, 64))
        with context():
            loss = model(x)
        loss.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


class Casting(Stack):
    """Enters autocast itself, and decides by a value: it has no graph as a whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with context():
            for number, layer in enumerate(self.layers):
                with torch.autocast("cpu", enabled=number != 2 and bool(x.sum() < 1e9)):
                    x = x + layer(x.float())
        return x


def test_autocast_that_the_model_enters_around_its_blocks() -> None:
    def make() -> nn.Module:
        return Casting(
            lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16))
        )

    model = require_trains_equally(make, SAMPLE)
    assert peak_of(model, *SAMPLE.args) + SAMPLE.args[0].nbytes <= shown(model).solution.budget


class Adapted(nn.Module):
    """A block whose adapter, like those of peft, gives what the frozen layer beside it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.whole = nn.Linear(16, 64).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.back = nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        whole = self.whole(x)
        hidden = nn.functional.gelu(whole + self.up(self.down(x)).to(whole.dtype))
        result: torch.Tensor = self.back(nn.functional.dropout(hidden, 0.1))
        return result


class Entering(Stack):
    """Enters autocast around all of its blocks, and decides by a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with context():
            for layer in self.layers:
                x = x + layer(x) if bool(x.sum() < 1e9) else x
        return x.float()


@pytest.mark.long
def test_blocks_are_measured_under_the_autocast_that_the_model_enters() -> None:
    sample = Call((batch(512, 16),))  # large, so that activations take more than weights
    model = require_trains_equally(lambda: Entering(Adapted), sample)
    assert "by blocks" in str(shown(model))
    assert keeps_in_part(model)
    # `peak_of` counts neither the input nor the output, which a caller may hold; they are as large.
    measured = peak_of(model, *sample.args) + 2 * sample.args[0].nbytes
    assert measured <= shown(model).solution.peak_bytes <= 1.05 * measured
