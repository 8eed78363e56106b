"""Sizes that values in the arguments decide, looked up while a forward is traced.

A network on graphs leaves out edges from a node to itself: how many there are, only values tell, so
that a trace has no number. What is selected by the call's arguments alone is selected once while
it is traced; `conditions` asks again in front of each later call how large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from chainstay.runtime.capture.values.conditions import inquiry, question
from chainstay.runtime.stage.states import tensors_in

MOST_SIZES: Final = 4
"""Graphs for calls that differ in such sizes only; each of them is planned."""

_REFUSAL: Final = "dynamic shape operator"
"""How TorchDynamo refuses an operator whose result has such a size, where it does."""


@contextmanager
def sizes_looked_up() -> Iterator[None]:
    """Inside of `values_looked_up`, TorchDynamo knows the sizes that values decide."""
    from torch._dynamo.exc import Unsupported  # noqa: PLC0415  # takes more than a second
    from torch._dynamo.utils import get_fake_value  # noqa: PLC0415  # likewise
    from torch._dynamo.variables import builder  # noqa: PLC0415  # likewise

    def sized_value(node: fx.Node, translator: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            value = get_fake_value(node, translator, *args, **kwargs)
        except Unsupported as refusal:  # by torch 2.6
            sized = None
            if _REFUSAL in str(refusal).lower():
                sized = _sized(node, None, translator.fake_mode)
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


def _sized(node: fx.Node, value: Any, mode: FakeTensorMode) -> Any:
    """Return a fake of what a node gives, its sizes looked up; ``None`` if they cannot be.

    The `value` is one without sizes, if there is any.
    """
    present = inquiry.now
    condition = question(node, present.places, is_of_sizes=True) if present.tensors else None
    if condition is None or condition.answer(present.tensors) is None:
        return None
    with unset_fake_temporarily():
        found = condition.result(present.tensors)
    may_have_gradient = tensors_in(found) if value is None else ()
    if any(t.requires_grad for t in tensors_in(value)) or any(
        t.is_floating_point() or t.is_complex() for t in may_have_gradient
    ):
        return None
    present.conditions.append(condition)
    return tree_map_only(torch.Tensor, partial(mode.from_tensor, static_shapes=True), found)
