"""Masks of attention that are made of constants are left out where they hide only the future."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import chainstay
from chainstay.runtime.capture.dynamo import GraphCapture
from chainstay.runtime.capture.subgraphs import tags_of
from chainstay.runtime.capture.values import constant_masks
from chainstay.runtime.capture.values.constant_masks import constant_masks_left_out

Mask = Callable[[torch.Tensor], torch.Tensor]
LENGTH = 6


def places(queries: int = LENGTH, keys: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(queries)[:, None], torch.arange(keys)[None, :]


def causal(_: torch.Tensor) -> torch.Tensor:
    row, column = places()
    return (column <= row).expand(2, 1, -1, -1) & torch.ones(LENGTH, LENGTH).to(torch.bool)


def within_three(_: torch.Tensor) -> torch.Tensor:
    row, column = places()
    return (column <= row) & (row - column < 3)


def filled_in_place(_: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    mask.tril_()
    return mask


def assigned(_: torch.Tensor) -> torch.Tensor:
    row, column = places()
    mask = column <= row
    mask[0] = True
    return mask


def rectified(_: torch.Tensor, *, by_position: bool = False) -> torch.Tensor:
    numbers = torch.full((LENGTH, LENGTH), -1.0)
    if by_position:
        functional.relu(numbers, True)  # noqa: FBT003  # as users may write it
    else:
        functional.relu(numbers, inplace=True)
    return numbers < 0


def drawn_by_a_distribution(_: torch.Tensor) -> torch.Tensor:
    ones = torch.ones(LENGTH, LENGTH)
    return torch.binomial(ones, ones) > 0  # of nothing but ones, this time


def drawn(_: torch.Tensor) -> torch.Tensor:
    row, column = places()
    return (column <= row) | (torch.rand(LENGTH, LENGTH) > 2)


def drawn_by_a_function(_: torch.Tensor) -> torch.Tensor:
    return functional.gumbel_softmax(torch.zeros(LENGTH, LENGTH)) > -1


KEPT: dict[str, Mask] = {
    "of an input": lambda x: (x[..., 0] == x[..., 0])[:, None, None, :].expand(
        2, 1, LENGTH, LENGTH
    ),
    "of other places": within_three,
    "filled in place": filled_in_place,
    "assigned to": assigned,
    "rectified in place": rectified,
    "rectified in place, by position": partial(rectified, by_position=True),
    "drawn": drawn,
    "drawn by a distribution": drawn_by_a_distribution,
    "drawn by a function": drawn_by_a_function,
    "added": lambda _: torch.zeros(LENGTH, LENGTH),
}


class Attention(nn.Module):
    """Layers of attention with the same mask."""

    def __init__(self, mask: Mask) -> None:
        super().__init__()
        self.mask = mask
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.mask(x)
        for layer in self.layers:
            q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layer(x).chunk(3, -1))
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            x = x + attended.transpose(1, 2).flatten(2)
        return x


def repeated(heads: torch.Tensor) -> torch.Tensor:
    """Each head four times, as `transformers` does it."""
    batch, count, length, size = heads.shape
    split = heads[:, :, None, :, :].expand(batch, count, 4, length, size)
    return split.reshape(batch, 4 * count, length, size)


class SharedHeads(Attention):
    """Four heads of queries for one of keys: repeated with a mask, as they are without one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = causal(x) if torch.compiler.is_compiling() else None
        for layer in self.layers:
            heads: torch.Tensor = layer(x).unflatten(-1, (6, 4)).transpose(1, 2)
            q, k, v = heads[:, :4], heads[:, 4:5], heads[:, 5:]
            if mask is not None:
                k, v = repeated(k), repeated(v)
            attended = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=mask is None
            )
            x = x + attended[:, :2].transpose(1, 2).flatten(2)
        return x


class Checkpointed(Attention):
    """Layers in a `torch.utils.checkpoint` each, which are handed the mask."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = self.mask(x)
        for layer in self.layers:
            x = checkpoint(self.attend, layer, x, mask, use_reentrant=False)
        return x

    def attend(self, layer: nn.Linear, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in layer(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + attended.transpose(1, 2).flatten(2)


def traced(model: nn.Module) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    config = torch._dynamo.config
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    with config.patch({name: 100}):  # one forward, many masks
        torch.compile(model, backend=backend, fullgraph=True)(torch.randn(2, LENGTH, 8))
    return graphs[0]


def attentions(graph: fx.GraphModule) -> list[tuple[bool, bool]]:
    """Whether it has a mask, and whether it is causal, of each attention."""
    bodies = [body for body in graph.modules() if isinstance(body, fx.GraphModule)]
    return [
        (node.kwargs.get("attn_mask") is not None, bool(node.kwargs.get("is_causal")))
        for body in bodies
        for node in body.graph.nodes
        if node.target is functional.scaled_dot_product_attention
    ]


@pytest.mark.parametrize("kind", [Attention, Checkpointed])
@pytest.mark.parametrize("hides_future", [True, False])
def test_a_mask_of_constants_is_left_out(*, hides_future: bool, kind: type[Attention]) -> None:
    model = kind(causal if hides_future else lambda x: causal(x) | True)
    graph = traced(model)
    assert constant_masks_left_out(graph)
    assert attentions(graph) == [(False, hides_future)] * 4
    assert not any("arange" in node.name for node in graph.graph.nodes), "nobody reads them"
    graph.graph.lint()


@pytest.mark.parametrize("kind", [Attention, Checkpointed])
@pytest.mark.parametrize("name", KEPT)
def test_other_masks_are_kept(name: str, kind: type[Attention]) -> None:
    graph = traced(kind(KEPT[name]))
    assert not constant_masks_left_out(graph)
    assert attentions(graph) == [(True, False)] * 4


def gradients_of(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def has_plain_gradients(model: nn.Module) -> bool:
    """Whether it has them by a plan, too."""
    x = torch.randn(2, LENGTH, 8)
    plain = gradients_of(model, x)
    chainstay.fit(model, (x,), budget="90%", loss=torch.sum, repeats=1, progress=False)
    return all(map(torch.equal, gradients_of(model, x), plain))


def test_a_mask_that_should_not_have_been_left_out_is_kept_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is what counts: on accelerators, attention with a mask may give other bits."""
    asked: list[bool] = []

    def hides_nothing(*_: object) -> bool:
        asked.append(True)
        return False

    monkeypatch.setattr(constant_masks, "_is_causal", hides_nothing)
    model = Attention(causal)
    assert has_plain_gradients(model)
    assert asked == [True], "the second trace does not ask"
    assert "by blocks" not in str(model.chainstay)


@pytest.mark.parametrize("kind", [Attention, Checkpointed])
def test_a_model_whose_mask_was_left_out_has_plain_gradients(kind: type[Attention]) -> None:
    model = kind(causal)
    assert has_plain_gradients(model)
    assert "by blocks" not in str(model.chainstay)


def test_keys_that_are_repeated_for_a_mask_only_are_not_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gradients of repeated keys are summed in another order than those of shared ones."""
    monkeypatch.setattr(GraphCapture, "deny", lambda _: False)  # what it is told would help, too
    model = SharedHeads(causal)
    assert has_plain_gradients(model)
    assert "by blocks" not in str(model.chainstay)


def test_methods_of_python_s_own_are_no_operators() -> None:
    """Graphs call comparisons by these names, which `torch.ops.aten` has as any object does."""
    assert tags_of("__eq__") == frozenset()
    assert torch.Tag.pointwise in tags_of("eq")
