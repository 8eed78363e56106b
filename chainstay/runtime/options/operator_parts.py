"""Dropout, and attention with dropout, as several operators, each of which may be dropped.

Autograd saves the noise of dropout in the precision of its input, four bytes a number. Drawing it
takes long, but all of it follows from a mask of one byte a number: an option may keep the mask and
make the noise again. Attention with dropout has no fused kernel on the CPU: its scores,
probabilities and noise are then operators like any others.

The parts call what torch's own operator calls, in its order. `StageRun.is_faithful` compares the
bits: where a device has kernels of its own for them, these operators stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import copysign, sqrt
from typing import Any, Final, TypeAlias

import torch
from torch import fx
from torch.nn import functional

from chainstay.runtime.options.special_operators import arguments_of


class SplitLevel(Enum):
    """The operators that are split into parts, from the most to the fewest.

    Attributes:
        ATTENTION: Attention with dropout, and dropout.
        DROPOUT: Dropout alone.
        WHOLE: None.
    """

    ATTENTION = "attention"
    DROPOUT = "dropout"
    WHOLE = "whole"


def split_operators(graph: fx.Graph, split: SplitLevel) -> bool:
    """Replace operators by their parts; return whether there were any."""
    is_split = False
    for node in list(graph.nodes):
        arguments = _split_arguments(node, split)
        if arguments is None:
            continue
        is_split = True
        with graph.inserting_before(node):
            if node.target is _ATTENTION:
                result = _attention_parts(graph, arguments)
            else:
                result = _dropout_parts(graph, arguments["input"], arguments["p"])
        node.replace_all_uses_with(result)
        graph.erase_node(node)
    return is_split


def takes_rate(node: fx.Node) -> bool:
    """Whether a node is a part that does the same for any probability between 0 and 1."""
    return node.target in (dropout_mask, dropout_noise)


_ATTENTION: Final[Any] = functional.scaled_dot_product_attention

_SPLIT: Final = (functional.dropout, torch.dropout, _ATTENTION)
"""The operators that have parts."""


def _split_arguments(node: fx.Node, split: SplitLevel) -> dict[str, Any] | None:
    """Return the arguments of an operator by name; ``None`` if it is not to be split."""
    if node.target not in _SPLIT or split is SplitLevel.WHOLE:
        return None
    known = arguments_of(node)
    if node.target is _ATTENTION:
        is_plain = split is SplitLevel.ATTENTION and not known["enable_gqa"]
        rate = known["dropout_p"]
    else:
        is_on = known.get("training", known.get("train")) is True
        is_plain = is_on and not known.get("inplace")
        rate = known["p"]
    return known if is_plain and (isinstance(rate, fx.Node) or 0 < rate < 1) else None


def _dropout_parts(graph: fx.Graph, tensor: fx.Node, rate: float | fx.Node) -> fx.Node:
    layout = graph.call_function(layout_like, (tensor,))
    mask = graph.call_function(dropout_mask, (layout, rate))
    noise = graph.call_function(dropout_noise, (mask, layout, rate))
    return graph.call_function(dropout, (tensor, noise))


def _attention_parts(graph: fx.Graph, arguments: Mapping[str, Any]) -> fx.Node:
    product_scale = arguments["scale"]
    query = graph.call_function(scale, (arguments["query"], -1, product_scale))
    key = graph.call_method("transpose", (arguments["key"], -2, -1))
    key = graph.call_function(scale, (key, -2, product_scale))
    scores = graph.call_function(torch.matmul, (query, key))
    if arguments["is_causal"]:
        scores = graph.call_function(add_causal_mask, (scores,))
    elif arguments["attn_mask"] is not None:
        scores = graph.call_function(add_mask, (scores, arguments["attn_mask"]))
    probabilities = graph.call_function(softmax, (scores,))
    weights = _dropout_parts(graph, probabilities, arguments["dropout_p"])
    return graph.call_function(torch.matmul, (weights, arguments["value"]))


DenseLayout: TypeAlias = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
"""Size, strides, type and device of a tensor whose elements lie without gaps."""


def layout_like(tensor: torch.Tensor) -> DenseLayout:
    """Return the layout of ``torch.empty_like(tensor)``."""
    stride = tensor.stride()
    if not tensor.is_contiguous():
        stride = torch.empty_like(tensor, device="meta").stride()
    return tensor.shape, stride, tensor.dtype, tensor.device


def dropout_mask(layout: DenseLayout, rate: float) -> torch.Tensor:
    """Draw which elements dropout keeps."""
    size, stride, _, device = layout
    mask = torch.empty_strided(size, stride, dtype=torch.bool, device=device)
    return mask.bernoulli_(1 - rate)


def dropout_noise(mask: torch.Tensor, layout: DenseLayout, rate: float) -> torch.Tensor:
    """Return what dropout multiplies its input by."""
    return mask.view(torch.uint8).to(layout[2]).div_(1 - rate)


def dropout(tensor: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Return the result of dropout."""
    return tensor * noise


def scale(tensor: torch.Tensor, dimension: int, product_scale: float | None) -> torch.Tensor:
    """Return a query or a key times the root of the scale of their product.

    By default, that is one by the root of the size of `dimension`, over which the product sums. A
    negative one makes the query negative.
    """
    if product_scale is None:
        product_scale = 1 / sqrt(tensor.size(dimension))
    is_query = dimension == -1
    return tensor * copysign(sqrt(abs(product_scale)), product_scale if is_query else 1)


def add_mask(scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Add a mask to the scores, in place; false means that a key is not looked at."""
    return scores.add_(_as_summand(mask, scores.dtype) if mask.dtype == torch.bool else mask)


def add_causal_mask(scores: torch.Tensor) -> torch.Tensor:
    """Let no query look at later keys, in place."""
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    return scores.add_(_as_summand(mask, scores.dtype))


def _as_summand(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    zeros = torch.zeros_like(mask, dtype=dtype)
    return zeros.masked_fill_(mask.logical_not(), float("-inf"))


def softmax(scores: torch.Tensor) -> torch.Tensor:
    """Return probabilities; those of a query that may look at no key are 0."""
    probabilities: torch.Tensor = torch._safe_softmax(scores, -1)  # noqa: SLF001  # what torch's attention calls
    return probabilities
