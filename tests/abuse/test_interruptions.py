"""Whatever breaks off a fit or a step, what follows is as if it had never begun."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay.fitting.planner import StageSource
from twins import (
    SAMPLE,
    Call,
    Stack,
    backward_step,
    batch,
    differences,
    fitted_twins,
    picture,
    require_equal_steps,
    seed,
)
from zoo import loss_of


class Interrupted(Stack):
    """Has statistics and a count."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
        self.norm = nn.BatchNorm1d(16)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        y: torch.Tensor = self.norm(super().forward(x))
        return y


class MineError(Exception):
    """The user's."""


def _interrupting(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let the second call of a function of torch that measuring needs raise."""
    owner, attribute = {
        "backward": (torch.autograd, "backward"),
        "hooks": (torch.autograd.graph.saved_tensors_hooks, "__enter__"),
        "random": (torch, "set_rng_state"),
        "compile": (torch, "compile"),
    }[name]
    known: Callable[..., object] = getattr(owner, attribute)
    calls = []

    def interrupted(*args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == (1 if name == "compile" else 2):
            raise error
        return known(*args, **kwargs)

    monkeypatch.setattr(owner, attribute, interrupted)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("name", ["backward", "hooks", "random", "compile"])
def test_an_interrupt_while_fitting(
    name: str, by: StageSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    for _ in range(2):
        seed(0)
        models.append(Interrupted())
    plain, model = models
    before = picture(model, SAMPLE, identities=True)
    with monkeypatch.context() as patched:
        _interrupting(patched, name, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            chainstay.fit(model, SAMPLE.args, budget=10**6, loss=loss_of, progress=False, by=by)
    assert differences(before, picture(model, SAMPLE, identities=True)) == []
    assert torch.is_grad_enabled()
    chainstay.fit(model, SAMPLE.args, budget=10**6, loss=loss_of, repeats=1, progress=False, by=by)
    require_equal_steps(plain, model, backward_step(SAMPLE))


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_an_exception_in_the_backward(by: str) -> None:
    """The step is lost; the next ones are right."""
    plain, fitted = fitted_twins(Interrupted, SAMPLE, by=by)

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        def raising(_: torch.Tensor) -> None:
            raise MineError

        output = SAMPLE(model)
        output.register_hook(raising)
        with pytest.raises(MineError):
            loss_of(output).backward()
        del output
        model.zero_grad()
        return backward_step(SAMPLE)(model, number)

    require_equal_steps(plain, fitted, step)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_an_interrupt_in_a_recomputation(by: str) -> None:
    plain, fitted = fitted_twins(Interrupted, SAMPLE, by=by)
    for model in (plain, fitted):
        seed(3)
        loss = loss_of(SAMPLE(model))
        for parameter in list(model.parameters())[2:3]:
            hook = parameter.register_hook(lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
        hook.remove()
        del loss
        model.zero_grad()
        assert torch.is_grad_enabled()
    require_equal_steps(plain, fitted, backward_step(SAMPLE))


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_wrong_call_raises_what_the_model_raises(by: str) -> None:
    """By a graph, TorchDynamo finds it first, and nothing has changed."""
    plain, fitted = fitted_twins(Interrupted, SAMPLE, by=by)
    before = picture(fitted)
    with pytest.raises((RuntimeError, chainstay.ChainstayError), match=r"mat1|4, 5"):
        fitted(torch.ones(4, 5))
    if by == "graph":
        assert differences(before, picture(fitted)) == []
    else:
        with pytest.raises(RuntimeError, match="mat1"):
            plain(torch.ones(4, 5))
    require_equal_steps(plain, fitted, backward_step(SAMPLE))


class Raising(Interrupted):
    """Draws and counts, then fails."""

    how = ""

    def __init__(self) -> None:
        super().__init__()
        self.names = nn.Embedding(4, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.dropout(super().forward(x))
        if self.how == "raise" or (self.how == "value" and bool(y.sum() != 0)):
            raise MineError
        if self.how == "operator":
            return y @ torch.ones(3, 3)
        return y + self.names(torch.full((len(y),), 7 if self.how == "index" else 0))


@pytest.mark.long
@pytest.mark.parametrize("how", ["raise", "value", "operator", "index"])
@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_a_call_that_raises_while_it_is_planned_leaves_what_plain_training_leaves(
    how: str, by: StageSource
) -> None:
    """Statistics, counts and random numbers, of a first call and of one of a new shape."""

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        rows = 64 - 8 * number
        model.how = how  # type: ignore[assignment]
        with pytest.raises((MineError, RuntimeError, IndexError)) as caught:
            model(batch(rows, 16))
        model.how = ""  # type: ignore[assignment]
        assert not isinstance(caught.value, chainstay.ChainstayError)
        return backward_step(Call((batch(rows, 16),)))(model, number)

    models = []
    for _ in range(2):
        seed(0)
        models.append(Raising())
    plain, model = models
    chainstay.fit(model, budget="70%", by=by, progress=False, repeats=1)
    require_equal_steps(plain, model, step, 2)


def test_a_loss_that_raises() -> None:
    def failing(_: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such class")

    model = Interrupted()
    before = picture(model, identities=True)
    with pytest.raises(chainstay.UnsupportedModelError, match="loss"):
        chainstay.fit(model, SAMPLE.args, budget=10**6, loss=failing, progress=False)
    assert differences(before, picture(model, identities=True)) == []
