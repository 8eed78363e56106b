"""States that stages pass on: tuples of tensors.

A tensor that a stage does not touch passes through as the same object, so that states which
share it hold its memory once. Tensors may also lie in one storage; copies keep that so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from chainstay.runtime.devices.memory import allocated_bytes
from chainstay.runtime.stage.layout import MemoryLayout

__all__ = [
    "State",
    "address_of",
    "changeable",
    "copied",
    "detached",
    "is_among",
    "non_leaves",
    "state_bytes",
    "version_of",
]

State = tuple[torch.Tensor, ...]
"""All that a stage needs from the stages before it."""


def detached(state: State) -> State:
    """The same memory without the graph that made it, wanting gradients as before."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in state)


def non_leaves(state: State) -> State:
    """The same memory as a stage in mid-chain gets it: autocast keeps its copies of leaves."""
    return tuple(tensor.view_as(tensor) if tensor.requires_grad else tensor for tensor in state)


def changeable(state: State, values: State) -> State:
    """`values` in place of `state`, as a stage in mid-chain gets them: it may change them.

    Args:
        state: The state to which gradients go.
        values: The same numbers, perhaps in other memory.
    """
    wanting = tuple(index for index, each in enumerate(state) if each.requires_grad)
    made: State = _Changeable.apply(  # type: ignore[no-untyped-call]  # torch does not annotate it
        tuple(values[index] for index in wanting), *(state[index] for index in wanting)
    )
    known = dict(zip(wanting, made, strict=True))
    return tuple(known.get(index, each) for index, each in enumerate(values))


class _Changeable(torch.autograd.Function):
    """Hands gradients on. Its results are neither leaves nor views of leaves."""

    @staticmethod
    def forward(ctx: Any, values: State, *state: torch.Tensor) -> State:  # noqa: ANN401, ARG004  # autograd's context has no type, and autograd calls it so
        return tuple(value.detach() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # noqa: ANN401, ARG004  # autograd's context has no type, and autograd calls it so
        return None, *gradients


def version_of(tensor: torch.Tensor) -> int:
    """Return how often `tensor` was changed in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  # documented


def copied(state: State, device: torch.device | None) -> State:
    """The same values in storages of their own; what shared memory still does.

    Args:
        state: What to copy.
        device: Where to; ``None`` for where each tensor is.
    """
    owners: dict[int, torch.Tensor] = {}
    copies = []
    for tensor in state:
        address = address_of(tensor)
        if address not in owners:
            owners[address] = _whole_storage(tensor).to(device or tensor.device, copy=True)
        copy = MemoryLayout.of(tensor).over(owners[address])
        copies.append(copy.requires_grad_(tensor.requires_grad))
    return tuple(copies)


def state_bytes(state: Iterable[torch.Tensor]) -> int:
    """Return the bytes that the allocator hands out, every storage counted once."""
    parts = (part for tensor in state for part in _with_storage(tensor))
    return sum({address_of(part): allocated_bytes(part) for part in parts}.values())


def _with_storage(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A tensor, or those that a sparse one consists of."""
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()  # noqa: SLF001  # the public ones want it coalesced
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return (tensor,)


def address_of(tensor: torch.Tensor) -> int:
    """Tells the storage of `tensor` from others, as long as somebody holds it."""
    storage = tensor.untyped_storage()
    if not isinstance(tensor, FakeTensor):
        return storage.data_ptr()
    address: int = storage._cdata  # noqa: SLF001  # of the storage itself: it has no memory
    return address


def is_among(tensor: torch.Tensor, state: State) -> bool:
    """Whether `tensor` is one of the objects in `state`."""
    return any(tensor is each for each in state)


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())
