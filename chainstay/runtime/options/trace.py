"""One run of a stage, node by node: what it makes, saves, draws and writes.

What may not be made again, and is therefore kept: what a later operator changes in place, if it
is saved; results of operators that change something outside of the stage, or read it while
others change it; results of operators that read a view which is older than a change of its
memory, as the graph does not say that they come behind the change. Norms that update statistics
can be run again: on copies of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from chainstay.runtime.devices.memory import allocated_bytes
from chainstay.runtime.devices.random_kernels import DrawWatch
from chainstay.runtime.execute.environment import RandomStates, random_states
from chainstay.runtime.execute.handles import is_parameter, refuse_backward
from chainstay.runtime.options.special_operators import (
    depends_on_dispatch_modes,
    is_dropout,
    scratch_arguments,
)
from chainstay.runtime.options.stage_run import Cast, Held, StageRun
from chainstay.runtime.stage.states import MemoryLayout, tensors_in, version_of

EXTERNAL: Final = -1
"""The value of all storages that are there before the stage."""


class NotPlainError(Exception):
    """A tensor is of a kind whose memory cannot be told, or depends on a number."""


@dataclass(slots=True)
class TracedValue:
    """One version of one storage that the stage makes.

    Attributes:
        bytes: What it takes on the stage's device.
        maker: The node that made it.
        representative: The first node that gives it as its result.
        is_overwritten: Whether a later node changes it in place.
        saver: The first node that saves it, and its number among what that node saves.
        cast: If autocast made it, of what and for whom.
    """

    bytes: int
    maker: fx.Node
    representative: fx.Node | None = None
    is_overwritten: bool = False
    saver: tuple[fx.Node, int] | None = None
    cast: Cast | None = None


@dataclass(frozen=True, slots=True)
class TracedPack:
    """A tensor that autograd saves.

    Attributes:
        value: The number of its value, or `EXTERNAL`.
        layout: How it lies in memory.
        saver: The node that saves it.
    """

    value: int
    layout: MemoryLayout
    saver: fx.Node


@dataclass(frozen=True, slots=True)
class OperatorTraits:
    """The traits of an operator that have to be known to run it again.

    Attributes:
        generators: Types of the devices whose random generators it draws from.
        noise: For dropout, how its input lies in memory.
        layout: How its result lies in memory; ``None`` if it represents no value.
        requires_grad: Whether its result does.
    """

    generators: tuple[str, ...] = ()
    noise: MemoryLayout | None = None
    layout: MemoryLayout | None = None
    requires_grad: bool = False


@dataclass(slots=True)
class Operation:
    """Observations of a node that is no view.

    Attributes:
        reads: The storages of its arguments.
        is_repeatable: Whether it finds its arguments as they were when it is run again.
        traits: What has to be known to run it again.
        value: The value that it represents.
    """

    reads: frozenset[int]
    is_repeatable: bool
    traits: OperatorTraits
    value: int | None = None


@dataclass(slots=True)
class Trace:
    """What is seen of a stage in one run.

    Attributes:
        run: How to run it.
        device: Where.
        has_values: Whether its tensors have values; otherwise they are fake tensors.
        values: All values that it makes.
        operations: Its nodes, but for views and for those that only give numbers.
        views: Nodes that give nothing but views.
        packs: What autograd saves.
        written: Storages from outside that it changes.
        outputs: Values of the outgoing state.
        made: Per node, the storages of its result and the values that these had.
        flags: Whether the graph's inputs require gradients.
    """

    run: StageRun
    device: torch.device
    has_values: bool = True
    values: list[TracedValue] = field(default_factory=list)
    operations: dict[fx.Node, Operation] = field(default_factory=dict)
    views: set[fx.Node] = field(default_factory=set)
    packs: list[TracedPack] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    outputs: set[int] = field(default_factory=set)
    made: dict[fx.Node, dict[int, int]] = field(default_factory=dict)
    flags: list[bool] = field(default_factory=list)
    _current: dict[int, int] = field(default_factory=dict)  # storage -> its present value
    _known: list[StorageWeakRef] = field(default_factory=list)  # or addresses are used again
    _stale: set[fx.Node] = field(default_factory=set)  # views that cannot be made again
    _packed: list[torch.Tensor] = field(default_factory=list)  # by the present node
    _draws: DrawWatch = field(default_factory=DrawWatch)

    def trace(self) -> None:
        """Run the stage.

        Raises:
            NotPlainError: There are tensors whose memory cannot be told.
        """
        inputs, shared = self.run.inputs(), self.run.given[1]
        places = [node for node in self.run.nodes if node.op == "placeholder"]
        for node, value in zip(places, inputs, strict=True):
            tensors = tensors_in(value)
            self.made[node] = {self._know(tensor): EXTERNAL for tensor in tensors}
            self.flags.append(any(tensor.requires_grad for tensor in tensors))
        self.written.update(_key(shared[position]) for position in self.run.stage.effects.written)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, refuse_backward)
        with torch.enable_grad(), hooks, self._draws:
            results = self.run.run(inputs, self._note)
        keys = [_key(tensor) for tensor in tensors_in(results)]
        self.outputs = {self._current[key] for key in keys} - {EXTERNAL}

    @property
    def casts(self) -> list[Cast]:
        """All copies by autocast."""
        return [value.cast for value in self.values if value.cast is not None]

    def _pack(self, tensor: torch.Tensor) -> None:
        if not is_parameter(tensor):
            self._packed.append(tensor)

    def _note(self, node: fx.Node, held: Held, call: Callable[[], Any]) -> Any:
        """Run a node."""
        arguments = [source for source in node.all_input_nodes if source.op != "get_attr"]
        given = [
            (tensor, version_of(tensor))
            for source in arguments
            for tensor in tensors_in(held[source])
        ]
        is_stale = any(
            source in self._stale
            or any(self._current[key] != index for key, index in self.made[source].items())
            for source in arguments
        )
        noise = MemoryLayout.of(held[node.args[0]]) if is_dropout(node) else None  # type: ignore[index]  # a node
        before = self._random_states()
        self._packed, self._draws.seen = [], False
        with _disable_current_modes() if depends_on_dispatch_modes(node) else nullcontext():
            value = call()
        drawn = tuple(
            device.type
            for (device, old), (_, new) in zip(before, self._random_states(), strict=True)
            if not torch.equal(old, new)
        )
        if self._draws.seen and not drawn:  # for these values
            drawn = tuple(device.type for device, _ in before)
        written = {_key(tensor) for tensor, old in given if version_of(tensor) != old}
        updated = {
            key for argument in scratch_arguments(node).values() for key in self.made[argument]
        }
        is_outside = any(self._current[key] == EXTERNAL for key in written - updated)
        self._overwrite(node, written)
        results = tensors_in(value)
        is_new = bool(drawn or written or self._packed) or any(
            _key(tensor) not in self._current for tensor in results
        )
        self.made[node] = {
            key: self._current[key] for key in [self._know(t, node) for t in results]
        }
        if not is_new and all(map(self._is_represented, self.made[node].values())):
            if results:
                self.views.add(node)
                self._stale |= {node} if is_stale else set()
            return value
        self.operations[node] = operation = Operation(
            reads=frozenset(_key(tensor) for tensor, _ in given),
            is_repeatable=not (is_stale or is_outside),
            traits=OperatorTraits(drawn, noise if drawn else None),
        )
        if isinstance(value, torch.Tensor):
            self._represent(node, value, operation)
        self._note_packs(node, arguments, held)
        return value

    def _random_states(self) -> RandomStates:
        return random_states(self.device) if self.has_values else ()

    def _represent(self, node: fx.Node, value: torch.Tensor, operation: Operation) -> None:
        index = self._current[_key(value)]
        if not self._is_represented(index):
            self.values[index].representative = node
            operation.value = index
            layout, wants = MemoryLayout.of(value), value.requires_grad
            operation.traits = replace(operation.traits, layout=layout, requires_grad=wants)

    def _note_packs(self, node: fx.Node, arguments: Sequence[fx.Node], held: Held) -> None:
        for number, tensor in enumerate(self._packed):
            is_extra = _key(tensor) not in self._current
            index = self._current[self._know(tensor, node)]
            self.packs.append(TracedPack(index, MemoryLayout.of(tensor), node))
            if index == EXTERNAL:
                continue
            value = self.values[index]
            value.saver = value.saver or (node, number)
            if is_extra and torch.is_autocast_enabled(self.device.type):
                copied = [source for source in arguments if _is_cast(held[source], tensor)]
                # Arguments that are equal here may differ in other steps: which it is, is unknown.
                places = {(_key(held[s]), held[s].storage_offset()) for s in copied}
                if len(places) == 1:
                    value.cast = Cast(copied[0], node, tensor.dtype, index)
        self._packed = []

    def _overwrite(self, node: fx.Node, written: Iterable[int]) -> None:
        for key in written:
            index = self._current[key]
            if index == EXTERNAL:
                self.written.add(key)
                continue
            self.values[index].is_overwritten = True
            self._current[key] = len(self.values)
            self.values.append(TracedValue(self.values[index].bytes, node))

    def _know(self, tensor: torch.Tensor, maker: fx.Node | None = None) -> int:
        """Know a tensor that a node has made, or an input of the stage."""
        key = _key(tensor)
        if key not in self._current:
            self._known.append(StorageWeakRef(tensor.untyped_storage()))
            self._current[key] = EXTERNAL if maker is None else len(self.values)
            if maker is not None:
                size = allocated_bytes(tensor) if tensor.device == self.device else 0
                self.values.append(TracedValue(size, maker))
        return key

    def _is_represented(self, index: int) -> bool:
        return index == EXTERNAL or self.values[index].representative is not None


_KINDS: Final = (torch.Tensor, nn.Parameter, FakeTensor)
"""Kinds of tensors that have one storage, and nothing else."""


def _key(tensor: torch.Tensor) -> int:
    """Tell a storage from others, whether or not it has memory."""
    if type(tensor) not in _KINDS or tensor.layout != torch.strided:
        raise NotPlainError
    key: int = tensor.untyped_storage()._cdata  # noqa: SLF001  # of the storage itself
    return key


def _is_cast(argument: object, saved: torch.Tensor) -> bool:
    """Whether a saved tensor may be a copy of an argument in another precision: of equal bits.

    Fake tensors have none; there, copies are told by their layout.
    """
    if not isinstance(argument, torch.Tensor) or not argument.is_floating_point():
        return False
    if argument.dtype == saved.dtype or not saved.is_floating_point():
        return False
    copy = argument.detach().to(saved.dtype)
    layout = MemoryLayout.of(copy)
    if layout.storage_bytes != MemoryLayout.of(saved).storage_bytes:
        return False
    if isinstance(saved, FakeTensor):
        return layout == MemoryLayout.of(saved)
    return torch.equal(layout.over(saved).nan_to_num(), copy.nan_to_num())
