"""Layouts of tensors in memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from chainstay.runtime.devices.memory import rounded_bytes

__all__ = ["MemoryLayout"]


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """Size and place of a tensor in its storage; values play no part.

    Attributes:
        size: The size of the tensor, per dimension.
        stride: The stride of the tensor, per dimension.
        offset: Elements of the storage in front of it.
        storage_bytes: The bytes of the whole storage.
        dtype: The type of its elements.
        device: The device of the storage.
        is_conjugate: The tensor reads as the conjugate of what lies there.
        is_negative: Whether it reads its storage as the negative.
    """

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    storage_bytes: int
    dtype: torch.dtype
    device: torch.device
    is_conjugate: bool
    is_negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> MemoryLayout:
        """The layout of `tensor`."""
        return cls(
            size=tensor.size(),
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
            storage_bytes=tensor.untyped_storage().nbytes(),
            dtype=tensor.dtype,
            device=tensor.device,
            is_conjugate=tensor.is_conj(),
            is_negative=tensor.is_neg(),
        )

    @classmethod
    def usual(cls, tensor: torch.Tensor) -> MemoryLayout:
        """Dense, in the order of the tensor's own dimensions in memory."""
        like = torch.empty_like(tensor, device="meta")
        return replace(cls.of(like), device=tensor.device)

    def is_same_place(self, other: MemoryLayout) -> bool:
        """Whether every element lies where it does in `other`: a dimension of one has no steps."""
        strides = zip(self.size, self.stride, other.stride, strict=False)
        return replace(self, stride=other.stride) == other and all(
            size == 1 or mine == theirs for size, mine, theirs in strides
        )

    def __str__(self) -> str:
        return (
            f"{tuple(self.size)} {self.dtype} with stride {self.stride}, {self.offset} elements "
            f"into {self.storage_bytes} bytes"
        )

    @property
    def allocated_bytes(self) -> int:
        """The bytes that the allocator hands out for the tensor."""
        return rounded_bytes(self.storage_bytes, self.device)

    def allocate_storage(self) -> torch.Tensor:
        """Memory for it, all ones."""
        elements = self.storage_bytes // self.dtype.itemsize
        return torch.ones(elements, dtype=self.dtype, device=self.device)

    def over(self, owner: torch.Tensor) -> torch.Tensor:
        """A tensor that lies like this in the storage of `owner`."""
        tensor = torch.empty(0, dtype=self.dtype, device=owner.device)
        tensor.set_(owner.untyped_storage(), self.offset, self.size, self.stride)
        if self.is_conjugate:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_negative else tensor  # noqa: SLF001  # no public way
