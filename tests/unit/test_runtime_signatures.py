"""What a cache of measured costs tells apart: all that times and sizes depend on, nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.nn import functional

from chainstay.runtime.measures.cost_files import signature_around
from chainstay.runtime.stage.loss_stage import traced_loss

Change = Callable[[nn.Sequential], object]


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def signature(model: nn.Module, loss: str = "") -> str:
    return signature_around(model, ((torch.ones(2, 4),), {"scale": 2.0}), loss)


def doubling(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return factor * x

    return forward


def compiled(model: nn.Sequential) -> None:
    model[0].compile(backend="eager")  # notes that it is to be compiled


def hooked(model: nn.Sequential) -> None:
    model[0].register_forward_hook(lambda _module, _given, output: output * 2)


def with_another_forward(model: nn.Sequential, factor: float = 3.0) -> None:
    model[1].forward = doubling(factor)


def wider(model: nn.Sequential) -> None:
    model[2] = nn.Linear(4, 2)


def evaluating(model: nn.Sequential) -> None:
    model.eval()


def frozen(model: nn.Sequential) -> None:
    model[0].requires_grad_(requires_grad=False)


CHANGES: list[Change] = [compiled, hooked, with_another_forward, wider, evaluating, frozen]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_costs_changes_the_signature(change: Change) -> None:
    model = layers()
    plain = signature(model)
    assert signature(copy.deepcopy(model)) == signature(layers()) == plain
    change(model)
    assert signature(model) != plain


def test_weights_do_not_count() -> None:
    model = layers()
    plain = signature(model)
    with torch.no_grad():
        next(model.parameters()).zero_()
    assert signature(model) == plain


def test_a_callable_that_a_module_holds_does_not_count_by_its_address() -> None:
    """Two copies of one function in two processes are the same function."""

    def holding() -> nn.Module:
        model = layers()
        held: Any = model[1]
        held.activation = doubling(2.0)
        return model

    assert signature(holding()) == signature(holding())


def test_numbers_in_closures_and_partial_calls_count() -> None:
    model, other = layers(), layers()
    with_another_forward(model, 3.0)
    with_another_forward(other, 4.0)
    assert signature(model) != signature(other)
    with_another_forward(other, 3.0)
    assert signature(model) == signature(other)


def test_what_the_loss_computes_counts() -> None:
    output = torch.ones(2, 1, requires_grad=True)
    target = torch.zeros(2, 1)
    losses = [
        partial(functional.mse_loss, target=target, reduction=kind)
        for kind in ("sum", "mean", "sum")
    ]
    texts = [traced_loss(loss, output).text for loss in losses]
    total, mean, again = (signature(layers(), text) for text in texts)
    assert total == again != mean


def test_processes_of_a_group_have_signatures_of_their_own(tmp_path: Path) -> None:
    alone = signature(layers())
    meeting = f"file://{tmp_path}/group"
    distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        assert signature(layers()) == f"process 0 of 1\n{alone}"
    finally:
        distributed.destroy_process_group()
    assert signature(layers()) == alone
