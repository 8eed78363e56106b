"""Host memory for what is away from the device: slots, used again and again, within a limit.

Pinned memory costs milliseconds to allocate, and every step of training needs the same
sizes. So a slot that is given back waits for the next tensor of its size.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from threading import RLock

import torch

from chainstay.errors import HostBudgetError, PlanMismatchError

__all__ = ["HostPool", "Slot"]


class Slot:
    """A piece of host memory.

    Attributes:
        size: Bytes that it was made for.
        after: The last transfer that reads it: nobody may write before that has ended.
    """

    __slots__ = ("__weakref__", "_memory", "after", "size")

    def __init__(self, memory: torch.Tensor, size: int) -> None:
        self._memory: torch.Tensor | None = memory
        self.size = size
        self.after: object = None

    @property
    def memory(self) -> torch.Tensor:
        """Shape (size,), bytes.

        Raises:
            PlanMismatchError: The pool was closed.
        """
        if self._memory is None:
            raise PlanMismatchError(
                "the plan was closed while saved tensors were in host memory; run the backward "
                "before close() or unfit(), or run the forward again"
            )
        return self._memory[: self.size]

    def drop(self) -> None:
        """Let the memory go."""
        self._memory = None


class HostPool:
    """Hands out slots.

    Attributes:
        allocated_bytes: The bytes in all slots, used or not.
        used_bytes: The bytes in slots that are used.

    Args:
        allocate: Makes host memory of so many bytes.
        rounded: A function from a size to the bytes that are allocated for it.
        limit: On `allocated_bytes`; ``None`` for none.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        rounded: Callable[[int], int],
        limit: int | None,
    ) -> None:
        self.limit = limit
        self.allocated_bytes = 0
        self.used_bytes = 0
        self._allocate = allocate
        self._rounded = rounded
        self._idle: dict[int, list[Slot]] = defaultdict(list)
        self._used: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._is_closed = False
        self._lock = RLock()  # slots come back wherever a last reference goes, even in `take`

    def take(self, size: int) -> Slot:
        """A slot for `size` bytes.

        Raises:
            HostBudgetError: The limit forbids it.
            PlanMismatchError: The pool is closed.
        """
        room = self._rounded(size)
        with self._lock:
            if self._is_closed:
                raise PlanMismatchError("this plan was closed; make another to go on training")
            idle = self._idle[room]
            slot = idle.pop() if idle else self._new(room)
            slot.size = size
            self._used.add(slot)
            self.used_bytes += room
        return slot

    def give(self, slot: Slot, after: object) -> None:
        """Take `slot` back, which is read until `after`."""
        with self._lock:
            self._used.discard(slot)
            if self._is_closed:
                return
            room = self._rounded(slot.size)
            self.used_bytes -= room
            slot.after = after
            self._idle[room].append(slot)

    def close(self) -> None:
        """Let all memory go, that of slots in use too."""
        with self._lock:
            self._is_closed = True
            for slot in (*self._used, *(each for some in self._idle.values() for each in some)):
                slot.drop()
            self._idle.clear()
            self.allocated_bytes = self.used_bytes = 0

    def _new(self, room: int) -> Slot:
        if self.limit is not None:
            while self.allocated_bytes + room > self.limit and self._let_one_go():
                pass
            if self.allocated_bytes + room > self.limit:
                raise HostBudgetError(
                    budget=self.limit, required=self.allocated_bytes + room, is_least=False
                )
        memory = self._allocate(room)
        self.allocated_bytes += room
        return Slot(memory, room)

    def _let_one_go(self) -> bool:
        for room, slots in list(self._idle.items()):
            if slots:
                slots.pop()
                self.allocated_bytes -= room
                return True
        return False
