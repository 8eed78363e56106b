"""Stand-ins: a model and a call of it whose tensors have shapes and storages, but no memory.

A stand-in is a fake tensor on the CPU, whatever the tensor was: real, on ``meta``, fake, on a
device that this machine has not. (torch cannot run a backward of fake tensors on a device that
is not there.) Of the tensor nothing but its layout is read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from chainstay.errors import UnsupportedModelError

__all__ = ["StandIns"]


@dataclass(slots=True)
class StandIns:
    """Makes stand-ins; what shared a storage still does.

    Attributes:
        mode: Of the fake tensors; of real ones that they meet (targets that a loss holds),
            it makes more.
    """

    mode: FakeTensorMode = field(
        default_factory=partial(FakeTensorMode, allow_non_fake_inputs=True)
    )
    _storages: dict[int, torch.Tensor] = field(default_factory=dict)
    _held: list[torch.Tensor] = field(default_factory=list)

    def model_like(self, model: nn.Module) -> nn.Module:
        """A copy of `model` with stand-ins for its parameters, buffers and other tensors.

        Raises:
            UnsupportedModelError: It cannot be copied.
        """
        known = {id(tensor): self.tensor_like(tensor) for tensor in _tensors_of(model)}
        try:
            return copy.deepcopy(model, dict[int, Any](known))
        except Exception as cause:  # a model is the user's code and may hold anything
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be copied to be estimated: "
                f"{type(cause).__name__}: {cause}; keep out of it what cannot be copied, or pass "
                "a function that builds it"
            ) from cause

    def arguments_like(self, arguments: Any) -> Any:  # noqa: ANN401  # whatever a model takes
        """Nested `arguments` with stand-ins for their tensors."""
        return tree_map_only(torch.Tensor, self.tensor_like, arguments)

    def tensor_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """A stand-in: same shape, strides, type, storage size, and want of a gradient."""
        with self.mode, torch.no_grad():
            stand_in = self._storage_like(tensor).as_strided(
                tensor.size(), tensor.stride(), int(tensor.storage_offset())
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
        return stand_in.detach().requires_grad_(tensor.requires_grad)

    def _storage_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """All of the storage of `tensor`, in elements of its type."""
        storage = tensor.untyped_storage()
        address = storage._cdata  # noqa: SLF001  # its identity; without memory it has no address
        if address not in self._storages:
            self._held.append(tensor)  # so that the address is not used again
            self._storages[address] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
        whole = self._storages[address]
        elements = storage.nbytes() // tensor.dtype.itemsize
        return whole[: elements * tensor.dtype.itemsize].view(tensor.dtype)


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """What its modules hold by name, registered or not."""
    for module in model.modules():
        for held in (module._parameters, module._buffers, vars(module)):  # noqa: SLF001  # `None`s too
            yield from (each for each in held.values() if isinstance(each, torch.Tensor))
