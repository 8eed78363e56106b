"""A model of PyTorch's caching allocator of accelerators, to replay the allocations of a step.

It follows the policy of c10/cuda/CUDACachingAllocator.cpp on one stream; written from reading it,
and sharing no code with it:

* Sizes are rounded up to 512 bytes. Up to 1 MiB they come from the pool of small blocks.
* Of the free blocks of a pool that are large enough, the smallest is taken, at the lowest address.
* Without one, memory is reserved: 2 MiB for small blocks, 20 MiB for less than 10 MiB, else the
  size in multiples of 2 MiB. What is left of a block is cut off if it has 512 bytes for small
  blocks, or more than 1 MiB for large ones.
* With expandable segments a pool is one range of addresses, to which memory is mapped in pages of
  2 or 20 MiB, where there is room for a block first. A free block in front of a place without
  memory counts as large as both, and every rest is cut off.
* A block that is freed joins its free neighbours, and stays reserved. When the device has no memory
  left, free pages of expandable segments and other segments that are free as a whole are given
  back, and the allocation is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
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
_ADDRESSES: Final = 2**60
"""The bytes of the range of addresses that a pool has with expandable segments: endless."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment.

    Attributes:
        start: Its address.
        size: Its bytes.
        is_small: Whether it belongs to the pool of small blocks.
        is_free: Whether nobody has it.
        is_mapped: Whether there is memory behind its addresses.
        before: Its neighbour in the same segment, if there is one.
        behind: The neighbour at its end.
    """

    start: int
    size: int
    is_small: bool
    is_free: bool = True
    is_mapped: bool = True
    before: Block | None = None
    behind: Block | None = None

    @property
    def room(self) -> int:
        """The bytes up to the next block with memory."""
        behind = self.behind
        return self.size + (0 if behind is None or behind.is_mapped else behind.size)


@dataclass(slots=True)
class CachingAllocator:
    """Hands out blocks and counts their bytes.

    Attributes:
        is_expandable: Whether segments grow.
        limit: The bytes of the device's memory; endless if ``None``.
        allocated: The bytes of the blocks handed out.
        reserved: The bytes of all segments.
        allocated_peak: The most that `allocated` has been.
        reserved_peak: The most that `reserved` has been.
    """

    is_expandable: bool
    limit: int | None = None
    allocated: int = 0
    reserved: int = 0
    allocated_peak: int = 0
    reserved_peak: int = 0
    _free: dict[tuple[bool, bool], list[tuple[int, int, Block]]] = field(init=False)
    _addresses: int = 0

    def __post_init__(self) -> None:
        """Give each pool its range of addresses, without memory."""
        flags = (True, False)
        self._free = {(is_small, is_mapped): [] for is_small in flags for is_mapped in flags}
        for is_small in flags if self.is_expandable else ():
            self._add_free(Block(0, _ADDRESSES, is_small, is_mapped=False))

    def allocate(self, size: int) -> Block:
        """Return a block of at least `size` bytes.

        Raises:
            MemoryError: The limit leaves no room for it.
        """
        size = -(-size // _ROUNDING) * _ROUNDING
        is_small = size <= _SMALL
        block = self._best_fit(size, is_small=is_small)
        if block is None:
            reserve = self._mapped if self.is_expandable else self._segment
            try:
                block = reserve(size, is_small=is_small)
            except MemoryError:
                self._give_back()
                block = reserve(size, is_small=is_small)
        self._remove_free(block)
        rest = block.size - size
        if rest >= _ROUNDING if is_small or self.is_expandable else rest > _SMALL:
            self._add_free(self._cut(block, size))
        block.is_free = False
        self.allocated += block.size
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        return block

    def free(self, block: Block) -> None:
        """Take a block back."""
        self.allocated -= block.size
        block.is_free = True
        self._add_joined(block)

    def _best_fit(self, size: int, *, is_small: bool) -> Block | None:
        blocks = self._free[is_small, True]
        found = bisect_left(blocks, (size,))
        while found + 1 < len(blocks) and blocks[found + 1][2].room < blocks[found][2].room:
            found += 1
        return blocks[found][2] if found < len(blocks) else None

    def _segment(self, size: int, *, is_small: bool) -> Block:
        """Reserve a segment; return it as a free block."""
        page = _SMALL_PAGE if is_small or size >= _HUGE else _LARGE_PAGE
        size = -(-size // page) * page
        self._take(size)
        block = Block(self._addresses, size, is_small)
        self._addresses += size
        self._add_free(block)
        return block

    def _mapped(self, size: int, *, is_small: bool) -> Block:
        """Map memory where there is room for a block first; return the free block there."""
        for _, _, place in sorted(self._free[is_small, False], key=lambda entry: entry[1]):
            block = place
            if block.before is not None and block.before.is_free:
                block = block.before
            if _free_bytes_from(block, size) >= size:
                break
        while block.size < size or not block.is_mapped:
            place = block if not block.is_mapped else _behind(block)
            missing = size if place is block else size - block.size
            page = _page_of(place)
            mapped = min(-(-missing // page) * page, place.size)
            self._take(mapped)
            self._remove_free(place)
            if mapped < place.size:
                self._add_free(self._cut(place, mapped))
            place.is_mapped = True
            block = self._add_joined(place)
        return block

    def _take(self, size: int) -> None:
        if self.limit is not None and self.reserved + size > self.limit:
            raise MemoryError
        self.reserved += size
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def _give_back(self) -> None:
        """Give free segments or, of expandable ones, free pages back to the device."""
        for _, _, block in [*self._free[True, True], *self._free[False, True]]:
            if self.is_expandable:
                self._unmap(block)
            elif block.before is None and block.behind is None:
                self._remove_free(block)
                self.reserved -= block.size

    def _unmap(self, block: Block) -> None:
        """Give the pages that lie within a free block back."""
        page = _page_of(block)
        start = -(-block.start // page) * page
        end = (block.start + block.size) // page * page
        if start >= end:
            return
        self._remove_free(block)
        pages = block
        if block.start < start:
            pages = self._cut(block, start - block.start)
            self._add_free(block)
        if pages.size > end - start:
            self._add_free(self._cut(pages, end - start))
        pages.is_mapped = False
        self.reserved -= pages.size
        self._add_joined(pages)

    def _cut(self, block: Block, size: int) -> Block:
        """Cut what is behind `size` bytes off a block that is in no list, and return it."""
        rest = Block(
            block.start + size,
            block.size - size,
            block.is_small,
            is_mapped=block.is_mapped,
            before=block,
            behind=block.behind,
        )
        if block.behind is not None:
            block.behind.before = rest
        block.behind, block.size = rest, size
        return rest

    def _add_joined(self, block: Block) -> Block:
        """Put a block into its list, joined with free neighbours of its kind; return the whole."""
        for neighbour in (block.before, block.behind):
            if neighbour is None or not neighbour.is_free:
                continue
            if neighbour.is_mapped is block.is_mapped:
                self._remove_free(neighbour)
                one, other = sorted((block, neighbour), key=lambda part: part.start)
                one.size += other.size
                one.behind = other.behind
                if one.behind is not None:
                    one.behind.before = one
                block = one
        self._add_free(block)
        return block

    def _add_free(self, block: Block) -> None:
        insort(self._free[block.is_small, block.is_mapped], (block.size, block.start, block))

    def _remove_free(self, block: Block) -> None:
        blocks = self._free[block.is_small, block.is_mapped]
        del blocks[bisect_left(blocks, (block.size, block.start))]


def _page_of(block: Block) -> int:
    return _SMALL_PAGE if block.is_small else _LARGE_PAGE


def _behind(block: Block) -> Block:
    assert block.behind is not None, "a range of addresses ends with a place without memory"
    return block.behind


def _free_bytes_from(block: Block, wanted: int) -> int:
    """Return the bytes of this and the next blocks that nobody has, as far as they are wanted."""
    found = 0
    for part in _from(block):
        if not part.is_free or found >= wanted:
            break
        found += part.size
    return found


def _from(block: Block | None) -> Iterator[Block]:
    while block is not None:
        yield block
        block = block.behind
