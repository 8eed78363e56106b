"""Stand-ins: a model and a call of it whose tensors have shapes and storages, but no memory.

A stand-in is a fake tensor on the CPU, whatever the tensor was: real, on ``meta``, fake, on a
device that this machine has not. (torch cannot run a backward of fake tensors on a device that
is not there.) Of the tensor nothing but its layout is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.isolation import StandIns


@dataclass(slots=True)
class FakeStandIns(StandIns):
    """Fake tensors in place of the user's; what shared a storage still does.

    Attributes:
        mode: The mode of the fake tensors; of real ones that they meet (targets that a loss holds),
            it makes more.
        storages: Fake storages, by the identity of the storage that each stands for.
    """

    mode: FakeTensorMode = field(
        default_factory=partial(FakeTensorMode, allow_non_fake_inputs=True)
    )
    storages: dict[int, torch.Tensor] = field(default_factory=dict)

    def call_like(self, call: Call) -> Call:
        """A call of another model, with stand-ins for the parameters, buffers and other tensors."""
        self.of_all(_tensors_of(call.model))
        return call.of_shadow(self)

    def _made(self, tensor: torch.Tensor) -> torch.Tensor:
        """A leaf of the same shape, strides, type, storage size, and want of a gradient."""
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
        if address not in self.storages:
            self.storages[address] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
        whole = self.storages[address]
        elements = storage.nbytes() // tensor.dtype.itemsize
        return whole[: elements * tensor.dtype.itemsize].view(tensor.dtype)


def _tensors_of(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the tensors that the model's modules hold by name, registered or not."""
    for module in model.modules():
        for held in (module._parameters, module._buffers, vars(module)):  # noqa: SLF001  # `None`s too
            yield from (value for value in held.values() if isinstance(value, torch.Tensor))
