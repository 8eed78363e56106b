"""Which modules of a model's lists are called in its forward, in what order, with what.

The model runs once, saving nothing. Tensors are told apart by numbers, so that none is held
for the sake of its identity; a tensor changed in place is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten
from torch.utils.weak import WeakIdKeyDictionary

from chainstay.runtime.binding import version_of

__all__ = ["BlockCall", "SeenTensor", "TakeOver", "own_call", "record_calls", "taken_over"]

TakeOver = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Called in place of a module: what calling the module does, and the arguments."""


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor among the arguments or results of a call.

    Attributes:
        number: Of the object.
        version: How often it had been changed in place.
        requires_grad: At that time.
        is_parameter: It is a parameter of some module.
        storage_bytes: Of the memory that it lies in.
    """

    number: int
    version: int
    requires_grad: bool
    is_parameter: bool
    storage_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """One call of a module in a list of modules.

    Attributes:
        name: Path of the module in the model.
        container: Path of the list.
        block: The module.
        inputs: Leaves of its arguments; tensors as `SeenTensor`.
        input_spec: How they nest.
        outputs: Leaves of what it returned, likewise.
        output_spec: How they nest.
        changes_input: It changed arguments that require a gradient in place.
        changes_others: It changed other arguments, or its own parameters, in place.
    """

    name: str
    container: str
    block: nn.Module
    inputs: tuple[object, ...]
    input_spec: TreeSpec
    outputs: tuple[object, ...]
    output_spec: TreeSpec
    changes_input: bool
    changes_others: bool

    @property
    def taken(self) -> tuple[SeenTensor, ...]:
        """Distinct tensors among the inputs that require a gradient."""
        return tuple(each for each in _tensors(self.inputs) if each.requires_grad)

    @property
    def aside(self) -> tuple[SeenTensor, ...]:
        """Distinct other tensors among the inputs."""
        return tuple(each for each in _tensors(self.inputs) if not each.requires_grad)

    @property
    def made(self) -> tuple[SeenTensor, ...]:
        """Distinct tensors among the outputs."""
        return _tensors(self.outputs)

    @property
    def is_stage(self) -> bool:
        """Whether it can be run again, and there is a gradient to do so for."""
        return (
            any(each.requires_grad for each in self.made)
            and not self.changes_others
            and not any(each.is_parameter for each in self.taken)
        )


def _tensors(leaves: Sequence[object]) -> tuple[SeenTensor, ...]:
    return tuple(dict.fromkeys(leaf for leaf in leaves if isinstance(leaf, SeenTensor)))


def record_calls(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[BlockCall]:
    """Run the model; the calls of all children of its containers, in the order of their ends."""
    recorder = _Recorder()
    children: dict[nn.Module, tuple[str, str]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for name, child in module.named_children():
                children.setdefault(child, (path, f"{path}.{name}" if path else name))
    handlers = {
        child: recorder.handler(container, name, child)
        for child, (container, name) in children.items()
    }
    with taken_over(handlers):
        model(*args, **kwargs)
    return recorder.calls


@contextmanager
def taken_over(handlers: Mapping[nn.Module, TakeOver]) -> Iterator[None]:
    """While this lasts, calls of these modules go to their handlers."""
    # Where Module.__call__ looks first; made for compiled modules, kept if there is one.
    before = {module: module._compiled_call_impl for module in handlers}  # noqa: SLF001
    try:
        for module, handler in handlers.items():
            module._compiled_call_impl = _Replaced(module, before[module], handler)  # noqa: SLF001
        yield
    finally:
        for module, compiled in before.items():
            module._compiled_call_impl = compiled  # noqa: SLF001


@dataclass(frozen=True, slots=True)
class _Replaced:
    """Stands in for what calling a module does."""

    module: nn.Module
    compiled: Callable[..., Any] | None
    handler: TakeOver

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the module's own
        return self.handler(self.compiled or self.module._call_impl, args, kwargs)  # noqa: SLF001


def own_call(module: nn.Module) -> Callable[..., Any]:
    """What calling `module` does, hooks and compilation included, also while it is taken over."""
    present = module._compiled_call_impl  # noqa: SLF001  # as above
    if isinstance(present, _Replaced):
        present = present.compiled
    return present or module._call_impl  # noqa: SLF001


@dataclass(slots=True)
class _Recorder:
    """Takes notes while a model runs."""

    calls: list[BlockCall] = field(default_factory=list)
    numbers: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    unused: Iterator[int] = field(default_factory=count)

    def handler(self, container: str, name: str, block: nn.Module) -> TakeOver:
        """Calls `block` and takes notes."""

        def record(
            forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
        ) -> Any:  # noqa: ANN401  # the module's own
            leaves, input_spec = tree_flatten((args, dict(sorted(kwargs.items()))))
            inputs = self._seen(leaves)
            parameters = [(each, version_of(each)) for each in block.parameters() if _is_own(each)]
            result = forward(*args, **kwargs)
            outputs, output_spec = tree_flatten(result)
            changed = [
                old for old, new in zip(inputs, self._seen(leaves), strict=True) if old != new
            ]
            tensors = [each for each in changed if isinstance(each, SeenTensor)]
            self.calls.append(
                BlockCall(
                    name=name,
                    container=container,
                    block=block,
                    inputs=inputs,
                    input_spec=input_spec,
                    outputs=self._seen(outputs),
                    output_spec=output_spec,
                    changes_input=any(each.requires_grad for each in tensors),
                    changes_others=any(not each.requires_grad for each in tensors)
                    or any(version_of(each) != version for each, version in parameters),
                )
            )
            return result

        return record

    def _seen(self, leaves: Sequence[object]) -> tuple[object, ...]:
        return tuple(
            self._seen_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        )

    def _seen_tensor(self, tensor: torch.Tensor) -> SeenTensor:
        if tensor not in self.numbers:
            self.numbers[tensor] = next(self.unused)
        return SeenTensor(
            number=self.numbers[tensor],
            version=version_of(tensor),
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, nn.Parameter),
            storage_bytes=_storage_bytes(tensor),
        )


def _is_own(parameter: nn.Parameter) -> bool:
    """Whether it is the module's for good; FSDP2 gathers and shards parameters meanwhile."""
    return type(parameter) is nn.Parameter


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else tensor.nbytes
