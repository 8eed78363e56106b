"""A budget is that of one forward and its backward; steps that take more say so, once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import chainstay

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
SEVERAL = "several calls of Sequential wait for their backward; each may take "
SECOND = "a backward of Sequential with create_graph=True keeps what the next backward reads"


def fitted(*, progress: bool = True) -> nn.Module:
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4))
    model = nn.Sequential(*blocks)
    return chainstay.fit(model, (X,), budget="70%", progress=progress)


def loss_of(model: nn.Module, *batches: torch.Tensor) -> torch.Tensor:
    return sum((model(batch).square().mean() for batch in batches), torch.zeros(()))


def test_several_calls_before_a_backward_are_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted()
    for _ in range(2):
        loss_of(model, X, -X, 2 * X).backward()
    told = capsys.readouterr().err
    assert told.count(SEVERAL) == 1
    assert "divide it by their number, or fit a module that makes these calls" in told


def test_copies_and_models_fitted_again_tell_again(capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted()
    loss_of(model, X, X).backward()
    capsys.readouterr()
    for other in (copy.deepcopy(model), chainstay.fit(model, budget="70%", by="blocks")):
        loss_of(other, X, X).backward()
        assert capsys.readouterr().err.count(SEVERAL) == 1


def test_nothing_is_told_without_progress(capsys: pytest.CaptureFixture[str]) -> None:
    loss_of(fitted(progress=False), X, X).backward()
    assert not capsys.readouterr().err


def test_one_call_at_a_time_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Not those whose output was let go, nor those whose backward has begun, though it is held."""
    model = fitted()
    held = []
    for _ in range(3):
        model(X)
        loss = loss_of(model, X)
        loss.backward()
        held.append(loss)
    with torch.no_grad():
        held += [model(X) for _ in range(3)]
    assert SEVERAL not in capsys.readouterr().err


def test_several_calls_that_fit_together_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted()
    loss_of(model, X[:8], X[8:16], X[16:24]).backward()
    told = capsys.readouterr().err
    assert "planned for (8, 16)" in told
    assert SEVERAL not in told
    loss_of(model, *X.view(8, 8, 16)).backward()
    assert SEVERAL in capsys.readouterr().err


def test_a_backward_that_is_differentiated_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = fitted()
    for _ in range(2):
        x = X.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(model, x), x, create_graph=True)
        slope.square().sum().backward()
    assert capsys.readouterr().err.count(SECOND) == 1
