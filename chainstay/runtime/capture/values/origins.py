"""Find the operators that make a value in a graph, and those that change it in place."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable
from typing import Final

import torch
from torch import fx
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.nn import functional

from chainstay.runtime.capture.subgraphs import called_name, example_of, tags_of

_ASSIGNING: Final = frozenset(
    (
        *(operator.setitem, operator.iadd, operator.isub, operator.imul, operator.itruediv),
        *(operator.ifloordiv, operator.imod, operator.ipow),
        *(operator.iand, operator.ior, operator.ixor),
    )
)


def operators_behind(value: fx.Node, inputs: Collection[fx.Node]) -> list[fx.Node] | None:
    """Return the operators that make a value of these inputs, in order.

    Those that changed the memory of any of them in place are among them.

    Returns:
        ``None`` if it is made of something else, too, is drawn at random, or if an input itself
        was changed.
    """
    found: set[fx.Node] = set()
    pending = [value]
    while pending:
        node = pending.pop()
        if node not in found and node not in inputs:
            if node.op not in ("call_function", "call_method") or _draws(node) or _is_mapped(node):
                return None
            pending += node.all_input_nodes
        found.add(node)
        if not pending:
            memory = _memory(found)
            others = (other for other in value.graph.nodes if other not in found)
            pending = [other for other in others if _memory(changed_by(other)) & memory]
    given = found.intersection(inputs)
    if any(_memory(changed_by(node)) & _memory(given) for node in found):
        return None
    return [node for node in value.graph.nodes if node in found and node not in given]


def changed_by(node: fx.Node) -> list[fx.Node]:
    """Return the values that an operator may change in place: its first argument, or ``out``."""
    changed: list[fx.Node] = []
    if _changes(node):
        given = (*node.args[:1], node.kwargs.get("input"), node.kwargs.get("out"))
        fx.node.map_arg(given, changed.append)
    return changed


def _memory(nodes: Iterable[fx.Node]) -> set[object]:
    """Return these values, and the identities of the memory that their tensors lie in."""
    values = list(nodes)
    examples = [example for node in values if (example := example_of(node)) is not None]
    plain = [get_unwrapped(t) if is_functorch_wrapped_tensor(t) else t for t in examples]
    strided = (tensor for tensor in plain if tensor.layout == torch.strided)
    return {*values, *(tensor.untyped_storage()._cdata for tensor in strided)}  # noqa: SLF001  # its identity


def _is_mapped(node: fx.Node) -> bool:
    """Whether a node's value is made under `torch.func.vmap`."""
    example = example_of(node)
    return example is not None and is_functorch_wrapped_tensor(example)


def _changes(node: fx.Node) -> bool:
    """Whether an operator may change a tensor in place."""
    target = node.target
    name = called_name(node)
    is_operator = getattr(operator, name, None) is target  # `and_`, say
    in_place = name.endswith("_") and not (name.endswith("__") or is_operator)
    flags = [node.kwargs.get("inplace"), *(node.args if _is_functional(node) else ())]
    is_asked = any(flag is True for flag in flags)
    return in_place or is_asked or target in _ASSIGNING or "out" in node.kwargs


def _draws(node: fx.Node) -> bool:
    """Whether an operator may draw random numbers; what torch has as a function only may, too."""
    name = called_name(node)
    is_unknown = _is_functional(node) and not hasattr(torch.ops.aten, name)  # `gumbel_softmax`
    return "dropout" in name or is_unknown or torch.Tag.nondeterministic_seeded in tags_of(name)


def _is_functional(node: fx.Node) -> bool:
    """Whether a node calls a function of ``torch.nn.functional``."""
    return getattr(node.target, "__module__", "") == functional.__name__
