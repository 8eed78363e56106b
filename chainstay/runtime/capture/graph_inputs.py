"""Inputs of captured graphs: kinds, and names for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import torch
from torch import fx
from torch.utils._pytree import tree_leaves


class InputKind(Enum):
    """The kinds of a graph's inputs.

    Attributes:
        HELD: A parameter, a buffer, or another tensor that is there whether or not the model
            runs. A plan's memory does not count it.
        ARGUMENT: A tensor that the model is called with, which counts.
        NUMBER: A Python number that may differ from call to call.
        SIZE: Such a number that the size of a tensor depends on; other sizes have other plans.
    """

    HELD = "held"
    ARGUMENT = "argument"
    NUMBER = "number"
    SIZE = "size"

    @property
    def is_number(self) -> bool:
        """Whether it is a Python number."""
        return self in (InputKind.NUMBER, InputKind.SIZE)


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of a graph.

    Attributes:
        kind: The kind of the input.
        name: The name in messages: ``layers.0.weight`` for instance.
        symbol: What stands for a `SIZE` in `sizes`; ``None`` for one that is not in there.
        sizes: The sizes in which the symbol is.
    """

    kind: InputKind
    name: str
    symbol: Any = None
    sizes: tuple[Any, ...] = ()


def takes_any_size(module: fx.GraphModule) -> bool:
    """Whether a tensor that a graph is given has a size that is not known before the call."""
    nodes = module.graph.find_nodes(op="placeholder")
    shapes = (shape for node in nodes for shape in _shapes_at(node))
    return any(isinstance(size, torch.SymInt) for shape in shapes for size in shape)


def inputs_of(module: fx.GraphModule, values: Sequence[object]) -> tuple[GraphInput, ...]:
    """Return the inputs of a graph, which TorchDynamo forgets when its backend returns."""
    from torch.fx.experimental.symbolic_shapes import free_symbols  # noqa: PLC0415  # takes more than a second

    nodes = module.graph.find_nodes(op="placeholder")
    shapes = [shape for node in module.graph.nodes for shape in _shapes_at(node)]
    sizes = {s.node.expr for shape in shapes for s in shape if isinstance(s, torch.SymInt)}
    sizing = free_symbols(list(sizes))
    numbers = {
        node: node.meta["example_value"].node.expr
        for node in nodes
        if isinstance(node.meta.get("example_value"), torch.SymInt)
    }
    given_sizes = free_symbols([size for node in nodes for s in _shapes_at(node) for size in s])
    has_others = bool(sizing - given_sizes - free_symbols(list(numbers.values())))  # of fractions

    def decided(node: fx.Node, given: GraphInput) -> GraphInput:
        number = numbers.get(node)
        if number is None:
            decides = given.kind is InputKind.NUMBER and has_others
            return replace(given, kind=InputKind.SIZE) if decides else given
        made = [size for size in sizes if not size.free_symbols.isdisjoint(number.free_symbols)]
        if not made:
            return given
        if not number.is_symbol:
            return replace(given, kind=InputKind.SIZE)
        return replace(
            given, kind=InputKind.SIZE, symbol=number, sizes=tuple(sorted(made, key=str))
        )

    return tuple(map(decided, nodes, map(_input_of, nodes, values)))


def sizing_numbers(inputs: Iterable[GraphInput], values: Iterable[Any]) -> tuple[Any, ...]:
    """Return the sizes that numbers among the inputs of a call make; or such numbers themselves.

    A counter that grows in every step may leave the sizes as they are for thousands of them.
    """
    numbers = tuple(
        (given, value.item() if isinstance(value, torch.Tensor) else value)
        for given, value in zip(inputs, values)  # noqa: B905  # constants are behind the inputs
        if given.kind is InputKind.SIZE
    )
    return _sizes_made(numbers) if numbers else ()


@lru_cache(maxsize=1024)
def _sizes_made(numbers: tuple[tuple[GraphInput, float], ...]) -> tuple[Any, ...]:
    known = {given.symbol: number for given, number in numbers if given.symbol is not None}
    others = [number for given, number in numbers if given.symbol is None]
    sizes = dict.fromkeys(size for given, _ in numbers for size in given.sizes)
    return (*others, *(str(size.subs(known)) for size in sizes))


def _shapes_at(node: fx.Node) -> list[tuple[Any, ...]]:
    """Return the shapes of the tensors that an operator gives, in which sizes may be symbols."""
    values = tree_leaves(node.meta.get("example_value"))
    return [value.shape for value in values if isinstance(value, torch.Tensor)]


def _input_of(node: fx.Node, value: object) -> GraphInput:
    """Return the input of a node, told by where TorchDynamo found it."""
    source = _source_of(node)
    name = _path_in(source) or node.name
    if not isinstance(value, torch.Tensor) or _is_number(node, value):
        return GraphInput(InputKind.NUMBER, name)
    is_local = source.startswith("L[") and not source.startswith(_OWNERS)
    if is_local and not any(part in source for part in _HOLDERS):
        return GraphInput(InputKind.ARGUMENT, name)
    return GraphInput(InputKind.HELD, name)


_OWNERS: Final = ("L['args'][0].", "L['function']", "L['self']")
"""The model is the first argument of the function that is captured; under ``torch.compile`` alone
that is the user's own."""

_ARGUMENT: Final = re.compile(r"^L\['args'\]\[([1-9]\d*)\]")
"""Users count from the one behind the model."""

_HOLDERS: Final = ("_parameters[", "_buffers[", "_modules[")


def _is_number(node: fx.Node, value: torch.Tensor) -> bool:
    """Whether a tensor stands for a Python number."""
    known = node.meta.get("grapharg")
    kind = type(getattr(known, "source", None)).__name__
    is_passed = bool(getattr(known, "pass_arg_as_tensor", False))
    return value.dim() == 0 and (is_passed or kind in ("FloatTensorSource", "RandomValueSource"))


def _source_of(node: fx.Node) -> str:
    source = getattr(node.meta.get("grapharg"), "source", None)
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _path_in(source: str) -> str:
    """Return the path of a tensor for people, from ``L['self'].__dict__['_modules']['fc']...``."""
    text = _ARGUMENT.sub(lambda found: f"args[{int(found[1]) - 1}]", source, count=1)
    text = text.replace(".__dict__", "")
    for holder in ("_modules", "_parameters", "_buffers"):
        text = text.replace(f"['{holder}']", "").replace(f".{holder}", "")
    for owner in _OWNERS:
        text = text.replace(owner.removesuffix("."), "")
    text = text.replace("L[", "[")
    text = text.replace("']['", ".").replace("['", ".").replace("']", "").replace("'", "")
    return text.strip(".")
