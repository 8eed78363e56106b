"""What stages pass on: tuples of tensors.

A tensor that a stage does not touch passes through as the same object, so that states which
share it hold its memory once. Tensors may also lie in one storage; copies keep that so.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch._subclasses.fake_tensor import FakeTensor

from chainstay.runtime.layout import MemoryLayout
from chainstay.runtime.memory import allocated_bytes

__all__ = ["State", "address_of", "copied", "detached", "is_among", "state_bytes"]

State = tuple[torch.Tensor, ...]
"""All that a stage needs from the stages before it."""


def detached(state: State) -> State:
    """The same memory without the graph that made it, wanting gradients as before."""
    return tuple(tensor.detach().requires_grad_(tensor.requires_grad) for tensor in state)


def copied(state: State, device: torch.device) -> State:
    """The same values in storages of their own on `device`; what shared memory still does."""
    owners: dict[int, torch.Tensor] = {}
    copies = []
    for tensor in state:
        address = address_of(tensor)
        if address not in owners:
            owners[address] = _whole_storage(tensor).to(device, copy=True)
        copy = MemoryLayout.of(tensor).over(owners[address])
        copies.append(copy.requires_grad_(tensor.requires_grad))
    return tuple(copies)


def state_bytes(state: Iterable[torch.Tensor]) -> int:
    """What the allocator hands out for all of it, every storage counted once."""
    return sum({address_of(tensor): allocated_bytes(tensor) for tensor in state}.values())


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
