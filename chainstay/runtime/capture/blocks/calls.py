"""The calls of modules in a model's lists during its forward: order and arguments.

Tensors are told apart by numbers, so that none is held for the sake of its identity; a tensor
changed in place is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from chainstay.runtime.stage.states import version_of

__all__ = ["BlockCall", "SeenTensor", "TensorNumbers", "record_calls", "replaced_forwards"]


@dataclass(frozen=True, slots=True)
class SeenTensor:
    """A tensor among the arguments or results of a call.

    Attributes:
        number: Tells the object from others.
        version: How often it had been changed in place.
        requires_grad: Whether it required a gradient at that time.
        is_parameter: Whether it is a parameter of some module.
        storage_bytes: Bytes of the memory that it lies in.
    """

    number: int
    version: int
    requires_grad: bool
    is_parameter: bool
    storage_bytes: int


@dataclass(slots=True)
class TensorNumbers:
    """Numbers tensors as they are met, without holding them."""

    numbers: WeakIdKeyDictionary = field(default_factory=WeakIdKeyDictionary)
    unused: Iterator[int] = field(default_factory=count)

    def seen(self, tensor: torch.Tensor) -> SeenTensor:
        """`tensor` as it is now."""
        if tensor not in self.numbers:
            self.numbers[tensor] = next(self.unused)
        return SeenTensor(
            number=self.numbers[tensor],
            version=version_of(tensor),
            requires_grad=tensor.requires_grad,
            is_parameter=isinstance(tensor, nn.Parameter),
            storage_bytes=_storage_bytes(tensor),
        )

    def all_seen(self, value: object) -> tuple[SeenTensor, ...]:
        """The distinct tensors in `value`, in order."""
        tensors = (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
        return tuple(dict.fromkeys(map(self.seen, tensors)))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCall:
    """One call of a module in a list of modules.

    Attributes:
        name: Path of the module in the model.
        container: Path of the list.
        block: The module.
        inputs: Distinct tensors among its arguments.
        outputs: Distinct tensors in what it returned.
    """

    name: str
    container: str
    block: nn.Module
    inputs: tuple[SeenTensor, ...]
    outputs: tuple[SeenTensor, ...]

    @property
    def taken(self) -> tuple[SeenTensor, ...]:
        """Distinct tensors among the inputs that require a gradient."""
        return tuple(tensor for tensor in self.inputs if tensor.requires_grad)

    @property
    def is_stage(self) -> bool:
        """Whether there is a gradient to run it again for."""
        return any(tensor.requires_grad for tensor in self.outputs) and not any(
            tensor.is_parameter for tensor in self.taken
        )


def record_calls(model: nn.Module, run: Callable[[], object]) -> list[BlockCall]:
    """Return the calls of all children of the model's containers, in the order of their ends."""
    numbers = TensorNumbers()
    calls: list[BlockCall] = []

    def recording(container: str, name: str, block: nn.Module) -> Callable[..., Any]:
        forward = block.forward

        def record(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the block's own
            inputs = numbers.all_seen((args, kwargs))
            result = forward(*args, **kwargs)
            outputs = numbers.all_seen(result)
            calls.append(
                BlockCall(
                    name=name, container=container, block=block, inputs=inputs, outputs=outputs
                )
            )
            return result

        return record

    forwards = {
        child: recording(container, name, child)
        for child, (container, name) in listed_modules(model).items()
    }
    with replaced_forwards(forwards):
        run()
    return calls


def listed_modules(model: nn.Module) -> Mapping[nn.Module, tuple[str, str]]:
    """The children of the model's containers, with the paths of container and child."""
    children: dict[nn.Module, tuple[str, str]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for name, child in module.named_children():
                if isinstance(child, torch.jit.ScriptModule):
                    continue  # nobody can trace what is in there
                children.setdefault(child, (path, f"{path}.{name}" if path else name))
    return children


@contextmanager
def replaced_forwards(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """While this lasts, calls of these modules go to these functions."""
    before: dict[nn.Module, Any] = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                vars(module).pop("forward", None)
            else:
                vars(module)["forward"] = forward


def _storage_bytes(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes() if tensor.layout == torch.strided else tensor.nbytes
