"""Forwards that make what is not trained require a gradient, as LoRA does for checkpoints."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import chainstay
from captured_graphs import chain_of
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained

Model = TypeVar("Model", bound=nn.Module)
SAMPLE = Sample((torch.randint(50, (4, 64), generator=torch.Generator().manual_seed(1)),))


class Adapted(nn.Module):
    """A linear layer that is not trained, and two small ones that are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.whole = nn.Linear(width, width).requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.whole(x) + self.up(self.down(x).to(x.dtype))
        return found.relu()


def require_gradients(_module: nn.Module, _given: object, output: torch.Tensor) -> None:
    """The hook that ``enable_input_require_grads()`` registers."""
    output.requires_grad_()


class Language(nn.Module):
    """Embeddings and a head that are not trained, and blocks with adapters."""

    def __init__(self, *, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64).requires_grad_(requires_grad=False)
        self.blocks = nn.ModuleList(Adapted(64) for _ in range(6))
        self.head = nn.Linear(64, 50).requires_grad_(requires_grad=False)
        self.checkpointed = checkpointed
        self.embedding.register_forward_hook(require_gradients)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        result: torch.Tensor = self.head(x)
        return result


class Keeping(Language):
    """It keeps the embeddings, whose gradients may be read when the step is over."""

    seen: torch.Tensor

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen = x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def network(kind: type[Model], **given: Any) -> Model:
    torch.manual_seed(0)
    return kind(**given).train()


@pytest.mark.parametrize("place", ["plainly", "in autocast"])
@pytest.mark.parametrize("blocks", ["blocks", "checkpointed blocks"])
def test_the_forward_is_one_graph(blocks: str, place: str) -> None:
    def made() -> Language:
        model = network(Language, checkpointed=blocks == "checkpointed blocks")
        if place == "in autocast":  # as accelerate does
            forward: Any = torch.autocast("cpu", torch.bfloat16)(model.forward)
            model.__dict__["forward"] = forward
        return model

    planned = chainstay.fit(made(), SAMPLE.args, budget="70%", repeats=1)
    assert "by blocks" not in str(shown(planned))
    assert keeps_in_part(planned) or recomputes(planned)
    assert differences(trained(planned, SAMPLE), trained(made(), SAMPLE)) == []


def test_gradients_of_what_is_kept_are_there() -> None:
    planned, plain = network(Keeping), network(Keeping)
    chainstay.fit(planned, SAMPLE.args, budget="100%", repeats=1)
    assert "by blocks" in str(shown(planned))
    assert differences(trained(planned, SAMPLE), trained(plain, SAMPLE)) == []
    found, expected = planned.seen.grad, plain.seen.grad
    assert found is not None
    assert expected is not None
    assert found.equal(expected)


def test_all_that_follows_requires_a_gradient() -> None:
    """Kernels are chosen by that, and what is saved for a backward."""

    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            made = x * 2
            made.requires_grad_()
            return made.exp(), self.layer(made.sin())

    graph, inputs = chain_of(Made(), torch.ones(2, 2))
    assert [output.requires_grad for output in graph(*inputs)] == [True, True]
