"""Copies of fitted models, and many models of one class."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

import chainstay
from twins import (
    SAMPLE,
    Call,
    Stack,
    backward_step,
    differences,
    fit_to_least,
    fitted_twins,
    picture,
    require_equal_steps,
    seed,
)
from zoo import loss_of


class Counting(Stack):
    """Has state of every kind."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)))
        self.norm = nn.BatchNorm1d(16)
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        y: torch.Tensor = self.norm(super().forward(x))
        return y


def _saved(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


COPIES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "torch.save": _saved,
    "a copy of a copy": lambda model: copy.deepcopy(copy.deepcopy(model)),
}


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("name", COPIES)
def test_in_the_middle_of_training(name: str, by: str) -> None:
    """The copy trains like a copy of the plain one, and the original as if there were none."""
    plain, fitted = fitted_twins(Counting, SAMPLE, by=by)
    require_equal_steps(plain, fitted, backward_step(SAMPLE))
    copies = [COPIES[name](model) for model in (plain, fitted)]
    require_equal_steps(copies[0], copies[1], backward_step(SAMPLE))
    require_equal_steps(plain, fitted, backward_step(SAMPLE))
    assert all(differences(picture(one), picture(one)) == [] for one in copies)


class Assigned(Counting):
    """Its forward is a method that was chosen when it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.doubled  # type: ignore[method-assign]  # as users do

    def doubled(self, x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return Counting.forward(self, x) * factor


class Partial(Assigned):
    """Its forward is a function of such a method."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = partial(self.doubled, factor=3.0)  # type: ignore[method-assign]  # likewise


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize(
    ("make", "name"), [(Assigned, "deepcopy"), (Assigned, "pickle"), (Partial, "deepcopy")]
)
def test_of_a_model_with_a_forward_of_its_own(make: type[Assigned], name: str, by: str) -> None:
    """The copy trains its own parameters, fitted or not."""
    plain, fitted = fitted_twins(make, SAMPLE, by=by)
    copies = [COPIES[name](model) for model in (plain, fitted)]
    require_equal_steps(copies[0], copies[1], backward_step(SAMPLE))
    copies = [COPIES[name](model) for model in (plain, chainstay.unfit(fitted))]
    require_equal_steps(copies[0], copies[1], backward_step(SAMPLE))


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_between_forward_and_backward(by: str) -> None:
    plain, fitted = fitted_twins(Counting, SAMPLE, by=by)
    for model in (plain, fitted):
        loss = loss_of(SAMPLE(model))
        other = copy.deepcopy(model)
        loss.backward()
        loss_of(SAMPLE(other)).backward()
        with torch.no_grad():
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                assert one.grad is not two.grad
                one.add_(two.grad)  # type: ignore[arg-type]  # there is one
    assert differences(picture(plain), picture(fitted)) == []


@pytest.mark.long
def test_a_moving_average_of_the_weights() -> None:
    plain, fitted = fitted_twins(Counting, SAMPLE)
    averages = [torch.optim.swa_utils.AveragedModel(model) for model in (plain, fitted)]
    for _ in range(2):
        for model, average in zip((plain, fitted), averages, strict=True):
            loss_of(SAMPLE(model)).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)  # type: ignore[arg-type]  # there is one
            average.update_parameters(model)
    with torch.no_grad():
        assert torch.equal(SAMPLE(averages[0]), SAMPLE(averages[1]))


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_unfit_between_forward_and_backward(by: str) -> None:
    plain, fitted = fitted_twins(Counting, SAMPLE, by=by)
    losses = [loss_of(SAMPLE(model)) for model in (plain, fitted)]
    chainstay.unfit(fitted)
    for loss in losses:
        loss.backward()
    assert differences(picture(plain), picture(fitted)) == []


@pytest.mark.long
def test_twelve_models_of_one_class() -> None:
    """TorchDynamo keeps eight graphs of one function, unless told otherwise."""
    models = []
    for number in range(12):
        seed(number)
        models.append(chainstay.fit(Stack(), budget=10**6, loss=loss_of, repeats=1, progress=False))
    for number, model in enumerate(models):
        seed(number)
        require_equal_steps(Stack(), model, backward_step(SAMPLE), 1)


@pytest.mark.long
def test_two_fitted_models_in_one() -> None:
    def make() -> nn.Module:
        return nn.Sequential(Counting(), nn.Linear(16, 16), Counting())

    seed(0)
    plain = make()
    seed(0)
    fitted = make()
    inner = Call((SAMPLE.args[0].clone().requires_grad_(),))  # what the second one gets
    for child, call in ((fitted[0], SAMPLE), (fitted[2], inner)):  # type: ignore[index]  # a Sequential
        fit_to_least(child, call)
    require_equal_steps(plain, fitted, backward_step(SAMPLE))
