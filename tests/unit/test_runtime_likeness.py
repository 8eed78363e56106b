"""Whatever changes of a model between two calls is seen before its stages run, or read anew."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.extract import ExtractedChain, extract
from fault_edits import EDITS

BATCH = torch.linspace(-3, 3, 32).reshape(4, 8)
READ_ANEW = {
    "a parameter is re-assigned",
    "a parameter's data are re-assigned",
    "a buffer is re-assigned",
    "a gradient hook is added",
    "a layer is replaced",  # by one that computes the same
}
UNSEEN = {"a global hook is added"}  # torch.compile's guards do not look for those


class Scaled(nn.Module):
    """A number of the user's own."""

    def __init__(self, by: float = 2.0) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    blocks = [
        nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.1), Scaled())
        for _ in range(2)
    ]
    return nn.Sequential(*blocks, nn.Linear(8, 8))


def step(model: nn.Module, forward: Any) -> list[torch.Tensor]:
    """What a step leaves behind; the model is afterwards as it was."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    model.zero_grad()
    torch.manual_seed(5)
    output = forward(BATCH)
    output.square().sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    found = [output.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())]
    model.load_state_dict(state)
    return found


def require_model(chain: ExtractedChain) -> None:
    assert all(map(torch.equal, step(chain.model, chain.model), step(chain.model, chain)))


@pytest.mark.parametrize("name", sorted(EDITS.keys() - UNSEEN))
def test_every_edit_is_seen_or_read_anew(name: str) -> None:
    model = make_model()
    chain = extract(model, (BATCH,))
    require_model(chain)
    undo = EDITS[name](model)
    try:
        if name in READ_ANEW:
            require_model(chain)
        else:
            with pytest.raises(UnsupportedModelError, match="makes another graph than the sample"):
                chain(BATCH)
    finally:
        undo()


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((BATCH[:2],), {}),
        ((BATCH.double(),), {}),
        ((BATCH.clone().requires_grad_(),), {}),
        ((BATCH, BATCH), {}),
        (([BATCH],), {}),
    ],
    ids=["rows", "type", "gradient", "number", "nesting"],
)
def test_another_call_is_refused(args: Any, kwargs: Any) -> None:
    chain = extract(make_model(), (BATCH,))
    with pytest.raises(UnsupportedModelError, match="makes another graph than the sample"):
        chain(*args, **kwargs)
    require_model(chain)
    assert torch.equal(chain.model.eval()(BATCH), chain.model(BATCH.clone()))


def test_no_number_stays_the_same_number() -> None:
    """NaN differs from itself, and is nothing that has changed."""
    chain = extract(nn.Sequential(nn.Linear(8, 8), Scaled(math.nan)), (BATCH,))
    assert chain(BATCH).isnan().all()
    chain.model[1].by = 1.0  # type: ignore[index]
    with pytest.raises(UnsupportedModelError, match="makes another graph than the sample"):
        chain(BATCH)


def test_stages_that_are_alike_share_their_code() -> None:
    """And compute what their graphs say."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Tanh())
    chain = extract(model, (BATCH.clone().requires_grad_(),))
    programs = chain.stages
    assert len({program.function for program in programs}) <= 3 < len(programs)
    for program in programs:
        inputs = [torch.randn(placeholder.shape) for placeholder in _placeholders(program.body)]
        (found,), (expected,) = program.function(program.body, *inputs), program.body(*inputs)
        assert torch.equal(found, expected)


def _placeholders(body: Any) -> list[torch.Tensor]:
    nodes = [node for node in body.graph.nodes if node.op == "placeholder"]
    return [torch.empty(8) if "bias" in node.name else torch.empty(8, 8) for node in nodes]
