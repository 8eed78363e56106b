"""Stand-ins for tensors and a shadow of the model, so that a trial leaves no trace.

A captured graph is a pure function of its inputs, so it is run on stand-ins: parameters that
lie in the same memory but have gradients and hooks of their own, and copies of what the graph
writes. Nothing of the user's is touched, whatever happens meanwhile.

A model's own Python can do anything. It is run on a shadow of the model: other module objects
with copies of all plain attributes, over stand-ins of the same tensors. What it does outside of
the model is undone by `world_kept`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, GeneratorType, MethodType
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.trials.compiled_calls import PlainCall, compiled_call, is_wrapped
from chainstay.runtime.capture.trials.model_forward import (
    STOOD_IN_FOR,
    is_stand_in,
    own_forward,
)
from chainstay.runtime.capture.unguarded import GLOBAL_HOOKS
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.stage.states import address_of, is_equal, sums_of_bytes


@dataclass(slots=True)
class StandIns:
    """Tensors in place of the user's: the same stand-in for the same tensor.

    Attributes:
        written: Identities of tensors that are going to be changed in place: these are copied.
        known: Stand-ins so far, by the identity of the tensor, which is held meanwhile.
        leaves: The leaf that a stand-in is a clone of, where it is one, by the same identity.
    """

    written: Collection[int] = ()
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    leaves: dict[int, torch.Tensor] = field(default_factory=dict)

    def of_all(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """Return the stand-ins of tensors; numbers as they are."""
        return tuple(
            self.of(value) if isinstance(value, torch.Tensor) else value for value in values
        )

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a leaf with the values of `tensor`, in its memory unless that will change."""
        if id(tensor) not in self.known:
            self.known[id(tensor)] = (tensor, self._made(tensor))
        return self.known[id(tensor)][1]

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        alike = tensor.detach()
        if id(tensor) in self.written:
            alike = alike.clone(memory_format=torch.preserve_format)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(alike, requires_grad=tensor.requires_grad)
            vars(made).update(
                (name, copy.copy(value) if isinstance(value, list | dict | set) else value)
                for name, value in vars(tensor).items()  # hooks of modules may count there
            )
            return made
        alike.requires_grad_(tensor.requires_grad)
        if tensor.is_leaf:
            return alike
        self.leaves[id(tensor)] = alike
        return alike.clone()  # a leaf may not be changed in place

    def originals(self) -> dict[int, int]:
        """Return the identities of the tensors that are stood for, by those of their stand-ins."""
        made = {id(made): key for key, (_, made) in self.known.items()}
        return made | {id(leaf): key for key, leaf in self.leaves.items()}

    def memo(self) -> dict[int, Any]:
        """Return a memo for `copy.deepcopy`: copies of the user's objects get these stand-ins."""
        return {key: made for key, (_, made) in self.known.items()}


def shadow_of(model: nn.Module, stand_ins: StandIns) -> nn.Module:
    """Return another model that computes what `model` does, and shares nothing that can change.

    It is not fitted. Attributes that cannot be copied (locks, files, process groups) are shared.

    Args:
        model: Whatever it is.
        stand_ins: Stand-ins for its tensors. Buffers that are not in there are copied, parameters
            share their memory.
    """
    memo = stand_ins.memo()
    modules = [m for m in model.modules() if not isinstance(m, torch.jit.ScriptModule)]
    memo.update((id(module), object.__new__(type(module))) for module in modules)
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            memo[id(parameter)] = stand_ins.of(parameter)
        for buffer in module.buffers(recurse=False):
            memo.setdefault(id(buffer), buffer.detach().clone())
    for module in modules:
        attributes = {**vars(module), **_replaced(module)}
        own = memo[id(module)].__dict__
        own.update(
            (name, _attribute(value, memo))
            for name, value in attributes.items()
            if value is not _ABSENT
        )
    shadow: nn.Module = memo[id(model)] if id(model) in memo else copy.deepcopy(model)
    return shadow


def _replaced(module: nn.Module) -> Mapping[str, object]:
    """Return what a shadow of `module` has otherwise: it is neither fitted nor compiled."""
    own = own_forward(module)
    if is_wrapped(module):
        own = module.get_submodule("_orig_mod")
    compiled = compiled_call(module)
    return {
        "forward": _ABSENT if own is None else own,
        STOOD_IN_FOR: _ABSENT,
        "chainstay": _ABSENT,
        "_compiled_call_impl": _ABSENT if compiled is None else PlainCall(compiled, module),
    }


_ABSENT: Final = object()
_IMMUTABLE: Final = frozenset({type(None), bool, int, float, complex, str, bytes})


def _attribute(value: object, memo: dict[int, Any]) -> object:
    """Return a copy of an attribute; most are immutable, or dictionaries that hold no hooks yet."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind in (dict, OrderedDict) and not value:
        return memo.setdefault(id(value), kind())
    return _copied(value, memo)


def _copied(value: object, memo: dict[int, Any]) -> object:
    """Return a copy of an attribute, as far as it can be copied."""
    if isinstance(value, MethodType):
        return _copied_method(value, memo)
    if isinstance(value, FunctionType):
        return _rebound(value, memo)
    before = dict(memo)
    has_functions = isinstance(value, dict) and any(
        isinstance(held, FunctionType) for held in value.values()
    )
    try:
        if not has_functions:  # hooks, say
            with _WithoutGraphs():
                return copy.deepcopy(value, memo)
    except Exception:  # noqa: BLE001  # objects of the user's may refuse in any way
        memo.clear()
        memo.update(before)
    if isinstance(value, dict):
        return type(value)((key, _copied(item, memo)) for key, item in value.items())
    if isinstance(value, list | tuple | set) and type(value) in (list, tuple, set):
        return type(value)(_copied(item, memo) for item in value)
    return value


class _WithoutGraphs(TorchFunctionMode):
    """Inside, the copy of a tensor that has been computed begins a graph of its own.

    torch refuses to copy such a tensor; were it shared, a trial would use up the user's graph.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,  # as torch calls it
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is not torch.Tensor.__deepcopy__ or args[0].is_leaf:
            return func(*args, **(kwargs or {}))
        tensor, memo = args
        return memo.setdefault(id(tensor), StandIns().of(tensor))


def _copied_method(method: MethodType, memo: dict[int, Any]) -> object:
    """Return the same method of the shadow, without what was put in front of a forward by fit."""
    owner = _copied(method.__self__, memo)
    if not is_stand_in(method):
        return MethodType(_rebound(method.__func__, memo), owner)
    own = own_forward(method.__self__)  # type: ignore[arg-type]  # a module
    return MethodType(type(owner).forward, owner) if own is None else _copied(own, memo)  # type: ignore[attr-defined]  # likewise


def _rebound(function: Any, memo: dict[int, Any]) -> Any:
    """Return a function with the shadow's modules, methods and tensors in its closure."""
    cells = getattr(function, "__closure__", None) or ()
    if not isinstance(function, FunctionType) or id(function) in memo:
        return memo.get(id(function), function)
    memo[id(function)] = function  # it may be in its own closure
    own = tuple(_rebound_cell(cell, memo) for cell in cells)
    if any(cell is not before for cell, before in zip(own, cells, strict=True)):
        rebound = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, own
        )
        rebound.__kwdefaults__ = function.__kwdefaults__
        vars(rebound).update(vars(function))
        memo[id(function)] = rebound
    return memo[id(function)]


def _rebound_cell(cell: CellType, memo: dict[int, Any]) -> CellType:
    try:
        value = cell.cell_contents
    except ValueError:  # nothing is in there yet
        return cell
    if isinstance(value, MethodType) and id(value.__self__) in memo:
        return CellType(_copied(value, memo))
    other = _rebound(value, memo) if isinstance(value, FunctionType) else memo.get(id(value), value)
    return cell if other is value else CellType(other)


def arguments_like(arguments: Any, stand_ins: StandIns) -> Any:
    """Return the arguments of a call, with stand-ins for their tensors, objects copied."""
    tree_map_only(torch.Tensor, stand_ins.of, arguments)
    return _copied(arguments, stand_ins.memo())


@contextmanager
def values_kept(tensors: Iterable[torch.Tensor]) -> Iterator[set[int]]:
    """Put back tensors that are changed inside, by whatever way, from copies of them.

    Whether one on an accelerator was changed is seen by sums of its bytes: copying all parameters
    of a large model once takes long enough.

    Yields:
        Identities of those that were changed; filled at the end.

    Raises:
        UnsupportedModelError: The memory of one was freed.
    """
    # Some have a shape only, such as weights on the meta device that no call reads.
    held = {id(t): t for t in tensors if not (isinstance(t, FakeTensor) or t.is_meta)}
    room = _Room(share=0.25)
    copies = {key: room.copied(tensor.detach()) for key, tensor in held.items()}
    sums = {key: _sums_of(tensor) for key, tensor in held.items()}
    sizes = {key: _storage_bytes(tensor) for key, tensor in held.items()}
    changed = set[int]()
    try:
        yield changed
    finally:
        freed = {key for key, tensor in held.items() if _storage_bytes(tensor) < sizes[key]}
        for key, copied in copies.items():
            tensor, before = held[key], sums[key]
            if key in freed:  # to read it would be to read what is not there
                tensor.untyped_storage().resize_(sizes[key])
            after = _sums_of(tensor)
            if before is None or after is None:
                before, after = copied.cpu(), tensor.detach().cpu()
            if not is_equal(before, after):
                changed.add(key)
                with torch.no_grad():
                    tensor.copy_(copied)
    if freed:
        raise UnsupportedModelError(
            "the forward frees the memory of what it is given (resize_ of a storage), as "
            "reversible layers do until their backward; turn that off: a plan frees what it "
            "can compute again"
        )


@contextmanager
def gradients_kept(
    parameters: Iterable[torch.Tensor],
    begin: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None,
) -> Iterator[None]:
    """Leave gradients as they are, whatever is sent to these parameters inside.

    Stand-ins take the place of a model's parameters, but not where a forward was replaced by a
    function that holds the module itself. Weights that `torch.func.functional_call` puts in their
    place may be no leaves, and have none. `begin` makes the gradients that are there meanwhile.
    """
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.is_leaf]
    try:
        for parameter, _ in held:
            parameter.grad = begin(parameter)
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def zeroed_gradients(parameters: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
    """Give every parameter a gradient of zeros for a while: measured steps only add to it."""
    return gradients_kept(parameters, torch.zeros_like)


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else 0


def copies_kept(stand_ins: StandIns) -> torch.autograd.graph.saved_tensors_hooks:
    """Return a context in which a forward saves copies of what is going to be changed in place.

    All else is saved as it is, as a kernel may save its noise first and draw it then (rrelu); only
    what has no room on its device goes to the host.
    """
    changing = (made for key, (_, made) in stand_ins.known.items() if key in stand_ins.written)
    addresses, room = frozenset(map(address_of, changing)), _Room(share=0.5)

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        alike = tensor.detach()
        if addresses and address_of(alike) in addresses:
            return tensor.device, room.copied(alike)
        return tensor.device, alike if room.holds(alike) else alike.cpu()

    def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        return packed[1].to(packed[0])

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


class _Room:
    """A share of the free memory of accelerators, for tensors."""

    def __init__(self, *, share: float) -> None:
        self._share, self._free = share, dict[torch.device, int]()

    def copied(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device of `tensor`, or in host memory."""
        return tensor.clone() if self.holds(tensor) else tensor.to("cpu", copy=True)

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether there is room on the accelerator of `tensor`, which is taken then."""
        device = tensor.device
        if device not in self._free:
            accelerator = accelerator_at(device)
            free = 0 if accelerator is None else accelerator.free_bytes()
            self._free[device] = int(self._share * free)
        if tensor.layout != torch.strided or tensor.nbytes > self._free[device]:
            return False
        self._free[device] -= tensor.nbytes
        return True


def _sums_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return sums that tell the tensor's bytes from others; ``None`` where it is to be copied."""
    if tensor.device.type == "cpu" or tensor.layout != torch.strided:
        return None
    return sums_of_bytes(tensor)


def functions_of(model: nn.Module) -> list[object]:
    """Return what runs when `model` is called: methods, hooks, functions that it holds."""
    found: list[Any] = [hook for table in GLOBAL_HOOKS for hook in table.values()]
    for module in model.modules():
        for kind in type(module).__mro__:
            if kind is nn.Module:
                break
            found += [kind, *(value for value in vars(kind).values() if callable(value))]
        found += [
            hook
            for name, hooks in vars(module).items()
            if name.endswith("_hooks") and isinstance(hooks, dict)
            for hook in hooks.values()
        ]
        found += [value for value in vars(module).values() if isinstance(value, _RUN)]
    return list({id(value): value for value in found}.values())


_RUN: Final = (FunctionType, MethodType, partial, GeneratorType)
"""Kinds of attributes that run, or go on running, in a forward."""


def require_initialised(model: nn.Module) -> None:
    """Refuse a model whose parameters get their shapes by the first call only."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor):
            raise UnsupportedModelError(
                f"{name} of {type(model).__name__} is not initialised (a lazy module); call the "
                "model once on a sample under torch.no_grad(), or before it is fitted"
            )
