"""Host memory for what is away from the device: slots, used again and again, within a limit.

Pinned memory costs milliseconds to allocate, and every step of training needs the same
sizes. So a slot that is given back waits for the next tensor of its size. Plans of one model run
in turns: their pools share what waits, and the limit.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import RLock

import torch

from chainstay.errors import HostBudgetError, PlanMismatchError


class Slot:
    """Host memory for one storage, in one piece or several.

    Attributes:
        size: Bytes that it was made for.
        after: The last transfer that reads it: nobody may write before that has ended.
    """

    __slots__ = ("__weakref__", "_pieces", "after", "size")

    def __init__(self, pieces: Sequence[torch.Tensor], size: int) -> None:
        self._pieces = tuple(pieces)
        self.size = size
        self.after: object = None

    @property
    def pieces(self) -> tuple[torch.Tensor, ...]:
        """The memory as it was allocated, bytes.

        Raises:
            PlanMismatchError: The pool was closed.
        """
        if not self._pieces:
            raise PlanMismatchError(
                "the plan was closed while saved tensors were in host memory; run the backward "
                "before close() or unfit(), or run the forward again"
            )
        return self._pieces

    def beside(self, memory: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield pieces, each with the bytes of `memory`, which has `size`, that belong there.

        Raises:
            PlanMismatchError: The pool was closed.
        """
        assert memory.nbytes == self.size, "a slot is taken for all bytes of a storage"
        begin = 0
        for piece in self.pieces:
            end = min(begin + piece.nbytes, self.size)
            is_all = end - begin == memory.nbytes
            yield piece[: end - begin], memory if is_all else memory[begin:end]
            begin = end

    def drop(self) -> None:
        """Let the memory go."""
        self._pieces = ()


@dataclass(slots=True)
class PoolMemory:
    """The memory that all pools of one model share.

    Attributes:
        idle: Slots that wait, by the bytes that were allocated for them.
        allocated_bytes: The bytes in all slots, used or not.
        pools: How many pools are open.
        lock: Slots come back wherever a last reference goes, even in `HostPool.take`.
    """

    idle: dict[int, list[Slot]] = field(default_factory=lambda: defaultdict(list))
    allocated_bytes: int = 0
    pools: int = 0
    lock: RLock = field(default_factory=RLock)


class HostPool:
    """Hands out slots.

    Attributes:
        limit: On `allocated_bytes`; ``None`` for none.
        used_bytes: The bytes in slots that are used.
        memory: What it has together with the pools beside it.

    Args:
        allocate: Makes a piece of host memory of so many bytes.
        pieces_of: A function from a size to the bytes of the pieces that are allocated for it.
        limit: See above.
        beside: A pool of the same kind of memory to share with.
    """

    def __init__(
        self,
        allocate: Callable[[int], torch.Tensor],
        pieces_of: Callable[[int], Sequence[int]],
        limit: int | None,
        beside: HostPool | None = None,
    ) -> None:
        self.limit = limit
        self.used_bytes = 0
        self._allocate = allocate
        self._pieces_of = pieces_of
        self.memory: PoolMemory = PoolMemory() if beside is None else beside.memory
        self._idle, self._lock = self.memory.idle, self.memory.lock
        self._used: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._is_closed = False
        with self._lock:
            self.memory.pools += 1

    @property
    def allocated_bytes(self) -> int:
        """The bytes in all slots, used or not, of all pools that share them."""
        return self.memory.allocated_bytes

    def take(self, size: int) -> Slot:
        """A slot for `size` bytes.

        Raises:
            HostBudgetError: The limit forbids it.
            PlanMismatchError: The pool is closed.
        """
        pieces = self._pieces_of(size)
        room = sum(pieces)
        with self._lock:
            if self._is_closed:
                raise PlanMismatchError("this plan was closed; make another to go on training")
            idle = self._idle[room]
            slot = idle.pop() if idle else self._new(pieces, room)
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
            room = sum(self._pieces_of(slot.size))
            self.used_bytes -= room
            slot.after = after
            self._idle[room].append(slot)

    def close(self) -> None:
        """Let the memory of slots in use go, and with the last pool all of it."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self.memory.pools -= 1
            for slot in self._used:
                slot.drop()
            self.memory.allocated_bytes -= self.used_bytes
            self.used_bytes = 0
            while self.memory.pools == 0 and self._let_one_go():
                pass

    def _new(self, pieces: Sequence[int], room: int) -> Slot:
        if self.limit is not None:
            while self.allocated_bytes + room > self.limit and self._let_one_go():
                pass
            if self.allocated_bytes + room > self.limit:
                raise HostBudgetError(
                    budget=self.limit, required=self.allocated_bytes + room, is_least=False
                )
        slot = Slot([self._allocate(piece) for piece in pieces], room)
        self.memory.allocated_bytes += room
        return slot

    def _let_one_go(self) -> bool:
        for room, slots in list(self._idle.items()):
            if slots:
                slots.pop()
                self.memory.allocated_bytes -= room
                return True
        return False
