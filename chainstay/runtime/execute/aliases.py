"""Saved tensors that lie in the storage of their stage's input: places instead of values.

A stage often saves its input: whole, reshaped, or a part of it. When the input may go before
the stage's backward, such a tensor must not hold it. It is remembered as the place where it
lies in the input's storage, and laid over the input again once that has been made anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.stage.states import MemoryLayout, State, address_of

__all__ = ["Alias", "Source"]


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a running stage, told apart from other tensors without holding it.

    Attributes:
        addresses: The addresses of its tensors' storages; good as long as somebody else holds the
            input.
        layouts: How its tensors lie there.
    """

    addresses: tuple[int, ...]
    layouts: tuple[MemoryLayout, ...]

    @classmethod
    def of(cls, state: State) -> Source:
        """Return the source that `state` is."""
        return cls(tuple(map(address_of, state)), tuple(map(MemoryLayout.of, state)))

    def alias(self, tensor: torch.Tensor) -> Alias | None:
        """Return the place of `tensor` in the input's storages, or ``None`` if it is not there."""
        if tensor.layout != torch.strided or address_of(tensor) not in self.addresses:
            return None
        position = self.addresses.index(address_of(tensor))
        return Alias(position, self.layouts[position], MemoryLayout.of(tensor))


@dataclass(frozen=True, slots=True)
class Alias:
    """A tensor that shares its storage with one in a stage's input.

    Attributes:
        position: The position of that tensor in the input.
        source: How that lies in the storage.
        place: How the other one does.
    """

    position: int
    source: MemoryLayout
    place: MemoryLayout

    def over(self, state: State) -> torch.Tensor:
        """The same tensor in the storage of the input made anew.

        Raises:
            PlanMismatchError: `state` does not lie in memory as the first input did.
        """
        owner = state[self.position]
        present = MemoryLayout.of(owner)
        if not present.is_same_place(self.source):
            raise PlanMismatchError(
                f"an input {self.source} is {present} when made anew; "
                "a stage must do the same each time it runs on the same input"
            )
        return self.place.over(owner)
