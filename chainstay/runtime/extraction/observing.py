"""What each operator of a graph does to memory and gradients, seen without computing.

The graph is run once on fake tensors, which have shapes, storages and an autograd graph but
no values: that shows which values require a gradient, which lie in one storage, and what
autograd saves, for models of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.extraction.flattening import FlatGraph
from chainstay.runtime.extraction.regions import Region
from chainstay.runtime.extraction.sources import CallInput

__all__ = ["Observation", "Observations", "observe"]

Storage = int
"""A storage's number, in the order in which storages were first seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one node makes and touches.

    Attributes:
        tensor: Its value, fake; ``None`` if that is not one tensor.
        storages: Of all tensors in its value.
        requires_grad: Any of them does.
        saved: Storages that autograd saves for its backward.
        written: Storages that it changes in place.
        draws_random: It may draw random numbers.
    """

    tensor: torch.Tensor | None
    storages: tuple[Storage, ...]
    requires_grad: bool
    saved: frozenset[Storage]
    written: frozenset[Storage]
    draws_random: bool


@dataclass(frozen=True, slots=True)
class Observations:
    """All of a graph's nodes.

    Attributes:
        nodes: By node.
        storage_bytes: Of each storage, in the order of their numbers.
        external: Storages of the model's own tensors, constants and inputs.
    """

    nodes: Mapping[fx.Node, Observation]
    storage_bytes: Sequence[int]
    external: frozenset[Storage]

    def __getitem__(self, node: fx.Node) -> Observation:
        return self.nodes[node]

    def size_of(self, storages: Iterable[Storage]) -> int:
        """Bytes of distinct storages, external ones excluded."""
        return sum(self.storage_bytes[each] for each in set(storages) - self.external)


def observe(flat: FlatGraph, leaves: Sequence[object]) -> Observations:
    """Run `flat` on fake tensors like the model's own and like `leaves` of its call.

    Raises:
        UnsupportedModelError: A value is no tensor but a number read from one, a shape depends
            on values, or the model changes its own input in place.
    """
    values = {
        node: leaves[source.position] if isinstance(source, CallInput) else source.read()
        for node, source in flat.sources.items()
    }
    mode = detect_fake_mode(list(values.values())) or FakeTensorMode()
    observer = _Observer(_Storages())
    with mode, torch.enable_grad():
        for node, value in values.items():
            observer.take_input(node, _faked(mode, value))
        external = frozenset(range(len(observer.storages.bytes)))
        for node in flat.graph.nodes:
            if node.op == "get_attr":
                observer.values[node] = flat.modules[str(node.target)]
            elif node.op == "call_function":
                observer.run(node, flat.regions.get(node, ()))
    _refuse_changed_inputs(flat, observer.seen)
    return Observations(observer.seen, observer.storages.bytes, external)


def _faked(mode: FakeTensorMode, value: object) -> object:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return value
    return mode.from_tensor(value, static_shapes=True)


@dataclass(slots=True)
class _Storages:
    """Numbers storages, and holds their tensors so that no address is used twice."""

    numbers: dict[int, Storage] = field(default_factory=dict)
    bytes: list[int] = field(default_factory=list)
    held: list[torch.Tensor] = field(default_factory=list)

    def number(self, tensor: torch.Tensor) -> Storage:
        storage = tensor.untyped_storage()
        address = storage._cdata  # noqa: SLF001  # its identity; fake storages have no address
        if address not in self.numbers:
            self.numbers[address] = len(self.bytes)
            self.bytes.append(storage.nbytes())
            self.held.append(tensor)
        return self.numbers[address]


@dataclass(slots=True)
class _Observer:
    """Runs nodes one by one and takes notes."""

    storages: _Storages
    values: dict[fx.Node, Any] = field(default_factory=dict)
    seen: dict[fx.Node, Observation] = field(default_factory=dict)

    def take_input(self, node: fx.Node, value: object) -> None:
        self._note(node, value, saved=(), written=())

    def run(self, node: fx.Node, regions: tuple[Region, ...]) -> None:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        function: Callable[..., object] = node.target  # type: ignore[assignment]  # call_function
        saved: list[torch.Tensor] = []
        with ExitStack() as stack:
            for region in regions:
                stack.enter_context(region.entered())
            stack.enter_context(_noting(saved))
            try:
                value = function(*args, **kwargs)
            except DynamicOutputShapeException as cause:
                raise UnsupportedModelError(
                    f"the forward makes a tensor whose shape depends on values ({node.name}), and "
                    "may differ from call to call; use intercept() on the model's blocks"
                ) from cause
        self._note(node, value, saved, _written_tensors(function, args, kwargs))

    def _note(
        self,
        node: fx.Node,
        value: object,
        saved: Iterable[torch.Tensor],
        written: Iterable[torch.Tensor],
    ) -> None:
        leaves = tree_leaves(value)
        if any(isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) for leaf in leaves):
            raise UnsupportedModelError(
                f"the forward reads a number from a tensor ({node.name}), so its shapes may differ "
                "from call to call; keep it a tensor, or use intercept() on the model's blocks"
            )
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.values[node] = value
        self.seen[node] = Observation(
            tensor=value if isinstance(value, torch.Tensor) else None,
            storages=tuple(self.storages.number(tensor) for tensor in tensors),
            requires_grad=any(tensor.requires_grad for tensor in tensors),
            saved=frozenset(map(self.storages.number, saved)),
            written=frozenset(map(self.storages.number, written)),
            draws_random=node.op == "call_function" and _draws_random(node),
        )


def _draws_random(node: fx.Node) -> bool:
    """Operators say so themselves; of one that takes graphs nothing is known."""
    if any(each.op == "get_attr" for each in node.all_input_nodes):
        return True
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _noting(saved: list[torch.Tensor]) -> torch.autograd.graph.saved_tensors_hooks:
    def pack(tensor: torch.Tensor) -> None:
        saved.append(tensor.detach())

    def unpack(packed: None) -> torch.Tensor:
        raise AssertionError(f"backward through {packed}: nobody runs one on fake tensors")

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _written_tensors(
    function: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[torch.Tensor]:
    """Arguments that an operator changes in place.

    Normalization updates its running statistics without saying so in its schema.
    """
    if not isinstance(function, torch._ops.OpOverload):  # noqa: SLF001  # the type of aten.*.*
        return
    given = dict(kwargs)
    parameters = function._schema.arguments  # noqa: SLF001  # what an operator says of itself
    given |= {parameter.name: arg for parameter, arg in zip(parameters, args, strict=False)}
    updates_statistics = given.get("training", given.get("use_input_stats", False))
    for parameter in parameters:
        is_written = parameter.alias_info is not None and parameter.alias_info.is_write
        is_statistic = updates_statistics and parameter.name in ("running_mean", "running_var")
        if is_written or is_statistic:
            leaves = tree_leaves(given.get(parameter.name))
            yield from (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


def _refuse_changed_inputs(flat: FlatGraph, seen: Mapping[fx.Node, Observation]) -> None:
    inputs = {
        storage
        for node, source in flat.sources.items()
        if isinstance(source, CallInput)
        for storage in seen[node].storages
    }
    for node in flat.operators:
        if seen[node].written & inputs:
            raise UnsupportedModelError(
                f"the model changes its own input in place ({node.target}); "
                "use inplace=False there, or give it a clone"
            )
