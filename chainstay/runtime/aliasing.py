"""Saved tensors that lie in the storage of their stage's input: places instead of values.

A stage often saves its input: whole, reshaped, or a part of it. When the input may go before
the stage's backward, such a tensor must not hold it. It is remembered as the place where it
lies in the input's storage, and laid over the input again once that has been made anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.layout import MemoryLayout

__all__ = ["Alias", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a running stage, told apart from other tensors without holding it.

    Attributes:
        address: Of its storage; good as long as somebody else holds the input.
        layout: How it lies there.
    """

    address: int
    layout: MemoryLayout

    @classmethod
    def of(cls, activation: torch.Tensor) -> Source:
        """What tells `activation`."""
        return cls(_address_of(activation), MemoryLayout.of(activation))

    def alias(self, tensor: torch.Tensor) -> Alias | None:
        """Where `tensor` lies in the input's storage, if it does."""
        if tensor.layout != torch.strided or _address_of(tensor) != self.address:
            return None
        return Alias(self.layout, MemoryLayout.of(tensor), tensor.is_conj(), tensor.is_neg())


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that shares its storage with a stage's input.

    Attributes:
        source: How the input lies in the storage.
        place: How the tensor does.
        is_conjugate: The tensor reads as the conjugate of what lies there.
        is_negative: Likewise, as the negative.
    """

    source: MemoryLayout
    place: MemoryLayout
    is_conjugate: bool
    is_negative: bool

    def over(self, activation: torch.Tensor) -> torch.Tensor:
        """The same tensor in the storage of the input made anew.

        Raises:
            PlanMismatchError: `activation` does not lie in memory as the first input did.
        """
        present = MemoryLayout.of(activation)
        if present != self.source:
            raise PlanMismatchError(
                f"an input {self.source} is {present} when made anew; "
                "a stage must do the same each time it runs on the same input"
            )
        tensor = self.place.over(activation)
        if self.is_conjugate:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.is_negative else tensor  # noqa: SLF001  # no public way


def _address_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
