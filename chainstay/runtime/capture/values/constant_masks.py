"""Attention masks that no input decides, left out where attention can do without.

Traced models make masks that they leave out otherwise: whether a mask hides anything can be asked
of values only, which a trace does not have. Models of `transformers` do so for every call without
an attention mask. Attention with a mask has other kernels than with ``is_causal``, which are slower
and, on accelerators, give other bits. A mask that is made of constants alone is the same in every
call of the graph, so that its values can be looked at after all. So is one made of constants and
usual arguments: a mask of ones, as batches without padding have, or the positions of one sequence a
row; a guard holds that.

Where several heads of queries share keys and values (grouped-query attention), models of
`transformers` repeat those for attention with a mask, and have it take them as they are without
(``enable_gqa``), whose gradients are summed in another order; so does the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn import functional

from chainstay.runtime.capture.subgraphs import (
    CHECKPOINTS,
    called_name,
    example_of,
    subgraph,
    values_read,
)
from chainstay.runtime.capture.values.origins import changed_by, operators_behind

_MOST_ENTRIES: Final = 2**28
"""The entries up to which a mask is made once, so that its values can be looked at."""

_BY_HEADS: Final = (slice(None), slice(None), None, slice(None), slice(None))
"""The index that gives keys an axis along which each head is repeated."""


def constant_masks_left_out(
    module: fx.GraphModule,
    inputs: Sequence[object] = (),
    is_usual: Callable[[object], bool] = lambda _: False,
) -> bool:
    """Leave out the masks of attention that hide nothing, or only what ``is_causal`` would hide.

    This changes `module`, a graph of TorchDynamo's.

    Args:
        module: The graph.
        inputs: Its inputs in the call that it was traced on.
        is_usual: Asks whether an input that a mask is made of has the usual values, and has them in
            every other call of the graph.

    Returns:
        Whether any was left out. The model itself may pass it: then it has other kernels.
    """
    masks: dict[fx.Node, bool | None] = {}
    given = dict(zip(module.graph.find_nodes(op="placeholder"), inputs, strict=False))
    for node, mask in list(_masked_attention(module, {})):
        if mask not in masks:
            masks[mask] = _is_causal(mask, given, is_usual, *map(_length, node.args[:2]))
        if (is_causal := masks[mask]) is not None:
            node.kwargs = {**node.kwargs, "attn_mask": None, "is_causal": is_causal}
            _share_heads(node)
    _hand_over_what_is_read(module)
    for mask in masks:
        for node in reversed(_steady_operators_behind(mask, given) or ()):
            if not node.users:
                node.graph.erase_node(node)
    return any(is_causal is not None for is_causal in masks.values())


def _masked_attention(
    module: fx.GraphModule, given: Mapping[fx.Node, fx.Node]
) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield the calls of attention with a mask, and what makes the mask in the outermost graph.

    Args:
        module: A graph; those that it wraps in `torch.utils.checkpoint` are looked through.
        given: What its placeholders stand for.
    """
    for node in module.graph.nodes:
        if (inner := _checkpointed(node)) is not None:
            pairs = _arguments_of(node, inner)
            outer = {key: given.get(node, node) for key, node in pairs if isinstance(node, fx.Node)}
            yield from _masked_attention(inner, outer)
        mask = node.kwargs.get("attn_mask")
        if node.target is not functional.scaled_dot_product_attention or len(node.args) != 3:
            continue
        if isinstance(mask, fx.Node) and not node.kwargs.get("is_causal"):
            yield node, given.get(mask, mask)


def _hand_over_what_is_read(module: fx.GraphModule) -> None:
    """Pass ``None`` to graphs in `torch.utils.checkpoint` for what they no longer read."""
    for node in module.graph.nodes:
        if (inner := _checkpointed(node)) is not None:
            _hand_over_what_is_read(inner)
            read = (value if key.users else None for key, value in _arguments_of(node, inner))
            node.args = (node.args[0], *read)
    module.recompile()


def _checkpointed(node: fx.Node) -> fx.GraphModule | None:
    """Return the graph that a node runs in a `torch.utils.checkpoint`, if no other runs it."""
    body = node.args[0] if called_name(node) in CHECKPOINTS else None
    if not isinstance(body, fx.Node) or len(body.users) > 1:
        return None
    return cast("fx.GraphModule", attrgetter(str(body.target))(node.graph.owning_module))


def _arguments_of(node: fx.Node, inner: fx.GraphModule) -> list[tuple[fx.Node, Any]]:
    """Return the placeholders of a graph that a node runs, each with what it is given."""
    return list(zip(inner.graph.find_nodes(op="placeholder"), node.args[1:], strict=True))


def _share_heads(attention: fx.Node) -> None:
    """Give attention the keys and values as they were before they were repeated, if both were."""
    query, *repeated = attention.args
    shared = [_before_repeating(node) for node in repeated]
    if None not in shared:
        attention.args = (query, *shared)
        attention.kwargs = {**attention.kwargs, "enable_gqa": True}


def _before_repeating(node: object) -> fx.Node | None:
    """Return what keys or values were repeated from as `transformers` does it, else ``None``."""
    shapes: list[torch.Size] = []
    index: object = None
    for called in ("reshape", "expand", "getitem"):
        if not isinstance(node, fx.Node) or called_name(node) != called:
            return None
        shapes.append(getattr(example_of(node), "shape", torch.Size()))
        node, index = (*node.args, None, None)[:2]
    source = getattr(example_of(node), "shape", torch.Size())
    if index != _BY_HEADS or len(source) != 4:
        return None
    repeats = shapes[1][2]
    is_repeated = shapes[1] == (*source[:2], repeats, *source[2:])
    is_whole = shapes[0] == (source[0], source[1] * repeats, *source[2:])
    return node if isinstance(node, fx.Node) and is_repeated and is_whole else None


def _length(node: object) -> int:
    """Return the length of queries or keys; -1 where it is not a number."""
    value = example_of(node)
    length = -1 if value is None or value.dim() < 2 else value.shape[-2]
    return length if type(length) is int else -1  # or a symbol, by torch's annotations an int


def _is_causal(
    mask: fx.Node,
    given: Mapping[fx.Node, object],
    is_usual: Callable[[object], bool],
    queries: int,
    keys: int,
) -> bool | None:
    """Whether a mask hides just the future, or nothing; None where it hides other things."""
    shown: torch.Tensor = mask.meta.get("example_value", torch.empty(0))
    is_alike = shown.dtype == torch.bool and shown.shape[-2:] == (queries, keys)
    nodes = _steady_operators_behind(mask, given)
    if not is_alike or not nodes or shown.numel() > _MOST_ENTRIES:
        return None
    read = values_read(nodes)
    if not all(is_usual(given[node]) for node in read):
        return None
    with unset_fake_temporarily(), torch.no_grad():
        (value,) = subgraph({}, nodes, read, (mask,))(*(given[node] for node in read))
        if bool(value.all()):
            return False
        future = torch.ones(queries, keys, dtype=torch.bool, device=value.device).triu(1)
        return True if queries == keys and bool((value != future).all()) else None


def _steady_operators_behind(value: fx.Node, inputs: Collection[fx.Node]) -> list[fx.Node] | None:
    """Return the operators that a value is made by, in order; None if it may change.

    It may if it is made of more than constants and these `inputs`, or if a part of it is drawn at
    random, or lies in memory that an operator in front of it, or behind, changes in place.
    """
    operators = operators_behind(value, inputs)
    return None if operators is None or any(map(changed_by, operators)) else operators
