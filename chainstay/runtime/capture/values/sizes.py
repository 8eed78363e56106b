"""Sizes that values in the arguments decide, looked up while a forward is traced.

A network on graphs leaves out edges from a node to itself: how many there are, only values tell, so
that a trace has no number. What is selected by the call's arguments alone is selected once while
it is traced; `conditions` asks again in front of each later call how large it is.

Numbers that gradients go to are no arguments, but the mask by which they are selected may be one of
arguments. Then its places (``nonzero``) are looked up, and the numbers at these selected, as torch
does it itself.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast
from unittest.mock import patch

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from chainstay.runtime.capture.subgraphs import called_name, example_of
from chainstay.runtime.capture.values.conditions import looked_up
from chainstay.runtime.stage.states import tensors_in

_INTEGER_TYPES: Final = frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
"""Types of tensors that are one number where an index has them without dimensions."""

_REFUSALS: Final = ("dynamic shape operator", "data dependent operator")
"""How TorchDynamo refuses an operator whose result has such a size, where it does."""


@contextmanager
def sizes_looked_up() -> Iterator[None]:
    """Inside of `values_looked_up`, TorchDynamo knows the sizes that values decide."""
    from torch._dynamo.exc import Unsupported  # noqa: PLC0415  # takes more than a second
    from torch._dynamo.utils import get_fake_value  # noqa: PLC0415  # likewise
    from torch._dynamo.variables import builder  # noqa: PLC0415  # likewise

    def sized_value(node: fx.Node, translator: Any, *args: Any, **kwargs: Any) -> Any:
        if node.target is operator.getitem and example_of(node.args[0]) is not None:
            _index_by_known(node, translator.fake_mode)
        elif called_name(node) == "repeat_interleave":
            _repeat_by_known(node)
        elif node.target is functional.ctc_loss:
            return _like_ctc_loss(node)
        try:
            value = get_fake_value(node, translator, *args, **kwargs)
        except Unsupported as refusal:  # by torch 2.6
            is_known = any(words in str(refusal).lower() for words in _REFUSALS)
            sized = _sized(node, None, translator.fake_mode) if is_known else None
            if sized is None:
                raise
            return sized
        if all(map(_is_sized, tensors_in(value))):
            return value
        sized = _sized(node, value, translator.fake_mode)
        if sized is None:
            return value
        translator.output.shape_env.pending_fresh_unbacked_symbols.clear()  # nothing has them
        return sized

    with patch.object(builder, "get_fake_value", sized_value):
        yield


def as_traced(node: fx.Node) -> Any:
    """Return new tensors like those that an operator gave when it was traced.

    Returns:
        ``None`` if it gave none, or their sizes are not known.
    """
    value = node.meta.get("example_value")
    tensors = tensors_in(value)
    return (
        tree_map_only(torch.Tensor, _new, value)
        if tensors and all(map(_is_sized, tensors))
        else None
    )


def _new(tensor: torch.Tensor) -> torch.Tensor:
    size, stride = tensor.size(), tensor.stride()
    return torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)


def _is_sized(tensor: torch.Tensor) -> bool:
    return not any(isinstance(n, torch.SymInt) and not n.node.has_hint() for n in tensor.shape)


def _index_by_known(node: fx.Node, mode: FakeTensorMode) -> None:
    """Put numbers and places into an index in place of tensors, where they can be looked up."""
    indexed, index = node.args
    parts = index if isinstance(index, tuple) else (index,)
    known: list[Any] = []
    for part in parts:
        example = example_of(part)
        if example is not None and example.dtype == torch.bool and example.dim():
            known += _places(cast("fx.Node", part), node, mode) or [part]
        else:
            known.append(fx.node.map_arg(part, _number))
    node.args = (indexed, tuple(known) if isinstance(index, tuple) or known != [index] else index)


def _number(node: fx.Node) -> Any:
    """Return the number that a tensor in an index is, or the node if it cannot be looked up."""
    example = example_of(node)
    if example is None or example.dim() or example.dtype not in _INTEGER_TYPES:
        return node
    number = looked_up(node, "numbers")
    return node if number is None else number.item()


def _places(mask: fx.Node, before: fx.Node, mode: FakeTensorMode) -> list[fx.Node]:
    """Return the places where a mask is true, a node for each dimension; none if unknown."""
    graph = before.graph
    with graph.inserting_before(before):
        found = graph.call_method("nonzero", (mask,), {"as_tuple": True})
        sized = _sized(found, None, mode)
        if sized is None:
            graph.erase_node(found)
            return []
        places = [graph.call_function(operator.getitem, (found, d)) for d in range(len(sized))]
    for node, value in zip((found, *places), (sized, *sized), strict=True):
        node.meta = {**before.meta, "example_value": value}
    return places


def _repeat_by_known(node: fx.Node) -> None:
    """Tell a repetition, as often as a tensor says, how long its result is."""
    repeats = dict(enumerate(node.args)).get(1, node.kwargs.get("repeats"))
    example = example_of(repeats)
    if example is None or example.numel() < 2 or "output_size" in node.kwargs:
        return
    with node.graph.inserting_before(node):
        length = node.graph.call_method("sum", (repeats,))
    known = looked_up(length, "numbers")
    node.graph.erase_node(length)
    if known is not None:
        node.kwargs = {**node.kwargs, "output_size": known.item()}


def _like_ctc_loss(node: fx.Node) -> torch.Tensor:
    """Return a fake of that loss, a number or one for each sequence.

    Sizes of what it saves for the backward, but not of the loss, are decided by its lengths.
    """
    given = dict(zip(("log_probs", *[""] * 4, "reduction"), node.args, strict=False)) | node.kwargs
    example = example_of(given["log_probs"])
    assert example is not None, "it is a tensor"
    losses = example.sum((0, -1))
    return losses if given.get("reduction") == "none" else losses.sum()


def _sized(node: fx.Node, value: Any, mode: FakeTensorMode) -> Any:
    """Return a fake of what a node gives, its sizes looked up; ``None`` if they cannot be.

    The `value` is one without sizes, if there is any.
    """
    if any(tensor.requires_grad for tensor in tensors_in(value)):
        return None
    found = looked_up(node, "sizes")
    if found is None:
        return None
    if value is None and any(t.is_floating_point() or t.is_complex() for t in tensors_in(found)):
        return None  # it may have a gradient
    return tree_map_only(torch.Tensor, partial(mode.from_tensor, static_shapes=True), found)
