"""A model of PyTorch's caching allocator of accelerators, to replay the allocations of a step.

It follows the policy of c10/cuda/CUDACachingAllocator.cpp on one stream of a device that never
runs out of memory; written from reading it, and sharing no code with it:

* Sizes are rounded up to 512 bytes. Up to 1 MiB they come from the pool of small blocks.
* Of the free blocks of a pool that are large enough, the smallest is taken, at the lowest address.
* Without one, memory is reserved: 2 MiB for small blocks, 20 MiB for less than 10 MiB, else the
  size in multiples of 2 MiB. What is left of a block is cut off if it has 512 bytes for small
  blocks, or more than 1 MiB for large ones.
* With expandable segments a pool is one range of addresses, which grows at its end by pages of
  2 or 20 MiB. The block at the end is taken last, and every rest is cut off.
* A block that is freed joins its free neighbours; nothing reserved is given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Block", "CachingAllocator"]

_MIB: Final = 2**20
_ROUNDING: Final = 512
_SMALL: Final = _MIB
"""The largest size of the pool of small blocks, and the largest rest of others that is not cut."""
_SMALL_PAGE: Final = 2 * _MIB
_LARGE_PAGE: Final = 20 * _MIB
_HUGE: Final = 10 * _MIB
"""From this size on, a segment has one block's size."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        start: Its address.
        size: Its bytes.
        is_small: Whether it belongs to the pool of small blocks.
        is_free: Whether nobody has it.
        before: Its neighbour in the same segment, if there is one.
        behind: The neighbour at its end.
    """

    start: int
    size: int
    is_small: bool
    is_free: bool = True
    before: Block | None = None
    behind: Block | None = None


@dataclass(slots=True)
class CachingAllocator:
    """Hands out blocks and counts their bytes.

    Attributes:
        is_expandable: Whether segments grow.
        allocated: The bytes of the blocks handed out.
        reserved: The bytes of all segments.
        allocated_peak: The most that `allocated` has been.
    """

    is_expandable: bool
    allocated: int = 0
    reserved: int = 0
    allocated_peak: int = 0
    _free: dict[bool, list[tuple[int, int, Block]]] = field(
        default_factory=lambda: {True: [], False: []}
    )
    _last: dict[bool, Block] = field(default_factory=dict)

    def allocate(self, size: int) -> Block:
        """Return a block of at least `size` bytes."""
        size = -(-size // _ROUNDING) * _ROUNDING
        is_small = size <= _SMALL
        block = self._best_fit(size, is_small=is_small) or self._reserve(size, is_small=is_small)
        rest = block.size - size
        if rest >= _ROUNDING if is_small or self.is_expandable else rest > _SMALL:
            tail = Block(block.start + size, rest, is_small, before=block, behind=block.behind)
            if block.behind is not None:
                block.behind.before = tail
            block.behind, block.size = tail, size
            if self._last.get(is_small) is block:
                self._last[is_small] = tail
            self._add_free(tail)
        block.is_free = False
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        self.allocated -= block.size
        block.is_free = True
        if block.before is not None and block.before.is_free:
            self._remove_free(block.before)
            block = self._joined(block.before, block)
        if block.behind is not None and block.behind.is_free:
            self._remove_free(block.behind)
            block = self._joined(block, block.behind)
        self._add_free(block)

    def _best_fit(self, size: int, *, is_small: bool) -> Block | None:
        blocks = self._free[is_small]
        found = bisect_left(blocks, (size,))
        if found < len(blocks) - 1 and blocks[found][2] is self._last.get(is_small):
            found += 1
        return blocks.pop(found)[2] if found < len(blocks) else None

    def _reserve(self, size: int, *, is_small: bool) -> Block:
        page = (
            _SMALL_PAGE if is_small or (size >= _HUGE and not self.is_expandable) else _LARGE_PAGE
        )
        last = self._last.get(is_small)
        if last is not None and last.is_free:
            self._remove_free(last)
        else:
            start = self.reserved if last is None else last.start + last.size
            fresh = Block(start, 0, is_small, before=last)
            if last is not None:
                last.behind = fresh
            last = fresh
        grown = -(-(size - last.size) // page) * page
        last.size += grown
        self.reserved += grown
        if self.is_expandable:
            self._last[is_small] = last
        return last

    def _joined(self, one: Block, other: Block) -> Block:
        one.size += other.size
        one.behind = other.behind
        if one.behind is not None:
            one.behind.before = one
        if self._last.get(one.is_small) is other:
            self._last[one.is_small] = one
        return one

    def _add_free(self, block: Block) -> None:
        insort(self._free[block.is_small], (block.size, block.start, block))

    def _remove_free(self, block: Block) -> None:
        blocks = self._free[block.is_small]
        del blocks[bisect_left(blocks, (block.size, block.start))]
