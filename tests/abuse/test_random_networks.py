"""Networks that nobody thought of: the same numbers as plainly, within what is predicted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import chainstay
from random_networks import IMAGE_SHAPE, random_network
from sgd_steps import peak_of_step
from twins import Call, fitted_twins, require_equal_steps, shown
from zoo import loss_of


def fresh_image(model: nn.Module, number: int) -> torch.Tensor:
    """One step on an image of its own."""
    loss = loss_of(model(torch.randn(IMAGE_SHAPE, generator=torch.manual_seed(number))))
    loss.backward()
    return loss


@pytest.mark.parametrize("number", range(30))
def test_a_random_network_trains_as_plainly_and_as_predicted(number: int, tmp_path: Path) -> None:
    torch.manual_seed(number)
    make, call = random_network(number, tmp_path), Call((torch.randn(IMAGE_SHAPE),))
    plain, fitted = fitted_twins(make, call)
    require_equal_steps(plain, fitted, fresh_image)

    def step() -> None:
        output = call(fitted)  # held until the step ends, as in most loops
        loss_of(output).backward()

    first = shown(fitted).plans[-1]
    assert first.plain_peak is not None
    least = first.solution.budget
    for budget in (least, (least + first.plain_peak) // 2, "100%"):
        chainstay.fit(fitted, call.args, budget=budget, loss=loss_of, repeats=1, progress=False)
        predicted = shown(fitted).solution.peak_bytes
        assert peak_of_step(fitted, step, call.args) <= predicted <= shown(fitted).solution.budget
