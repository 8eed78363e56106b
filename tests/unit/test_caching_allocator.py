"""The allocator's model, by steps that were worked by hand from the policy of PyTorch's source."""

from __future__ import annotations

import pytest

from caching_allocator import CachingAllocator

MIB = 2**20


def both() -> tuple[CachingAllocator, CachingAllocator]:
    return CachingAllocator(is_expandable=False), CachingAllocator(is_expandable=True)


@pytest.mark.parametrize(
    ("size", "allocated", "reserved", "allocated_grown", "reserved_grown"),
    [
        (1, 512, 2 * MIB, 512, 2 * MIB),
        (513, 1024, 2 * MIB, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB, 10 * MIB - 512, 20 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB, 11 * MIB, 20 * MIB),  # the rest of 1 MiB is kept
        (21 * MIB, 22 * MIB, 22 * MIB, 21 * MIB, 40 * MIB),
    ],
)
def test_a_first_block_takes_its_segment(
    size: int, allocated: int, reserved: int, allocated_grown: int, reserved_grown: int
) -> None:
    plain, expandable = both()
    plain.allocate(size)
    expandable.allocate(size)
    assert (plain.allocated, plain.reserved) == (allocated, reserved)
    assert (expandable.allocated, expandable.reserved) == (allocated_grown, reserved_grown)


def test_the_smallest_free_block_that_is_large_enough_is_taken() -> None:
    for allocator in both():
        held = [allocator.allocate(size * MIB) for size in (4, 2, 3, 2)]
        first, second, third, _ = held
        allocator.free(first)
        allocator.free(third)
        assert allocator.allocate(3 * MIB).start == third.start
        allocator.free(second)  # and joins the first
        assert allocator.allocate(6 * MIB).start == first.start
        assert allocator.reserved == 20 * MIB


def test_free_blocks_join_on_both_sides() -> None:
    for allocator in both():
        one, two, three = (allocator.allocate(MIB // 2) for _ in range(3))
        for block in (one, three, two):
            allocator.free(block)
        assert allocator.allocated == 0
        assert allocator.allocate(MIB).start == one.start
        assert allocator.reserved == 2 * MIB


def test_an_expandable_segment_grows_at_its_end() -> None:
    """What is left at the end counts; without expanding, nothing joins over segments."""
    plain, expandable = both()
    for allocator in (plain, expandable):
        for size in (16, 30):
            allocator.allocate(size * MIB)
    assert plain.reserved == 46 * MIB
    assert expandable.reserved == 60 * MIB
    assert expandable.allocate(14 * MIB).start == 46 * MIB
    assert expandable.reserved == 60 * MIB


def test_the_end_of_an_expandable_segment_is_taken_last() -> None:
    allocator = CachingAllocator(is_expandable=True)
    hole, _ = allocator.allocate(8 * MIB), allocator.allocate(6 * MIB)
    allocator.free(hole)  # of 8 MiB, and 6 MiB are at the end
    assert allocator.allocate(2 * MIB).start == hole.start


def test_a_device_without_room_for_a_page_has_none_for_a_block() -> None:
    for allocator in both():
        allocator.limit = 39 * MIB
        allocator.allocate(2 * MIB)
        allocator.allocate(18 * MIB)  # in 18 MiB of their own, or in the same page
        with pytest.raises(MemoryError):
            allocator.allocate(21 * MIB)
        assert allocator.allocated == 20 * MIB


def test_whole_segments_that_are_free_are_given_back_for_another_size() -> None:
    plain, _ = both()
    plain.limit = 40 * MIB
    one, _ = plain.allocate(12 * MIB), plain.allocate(5 * MIB)  # the latter in 20 MiB
    plain.free(one)
    assert plain.allocate(20 * MIB).size == 20 * MIB
    assert plain.reserved == plain.reserved_peak == 40 * MIB


def test_pages_of_free_blocks_are_given_back_and_mapped_anew() -> None:
    """Blocks lie at 0 to 15, 15 to 65 and 65 to 70 MiB; the pages from 20 to 60 MiB are free."""
    _, expandable = both()
    expandable.limit = 100 * MIB
    _, hole, _ = (expandable.allocate(size * MIB) for size in (15, 50, 5))
    assert expandable.reserved == 80 * MIB
    expandable.free(hole)
    behind = expandable.allocate(51 * MIB)
    assert behind.start == 70 * MIB
    assert expandable.reserved == 100 * MIB == expandable.limit  # 140 without the free pages
    with pytest.raises(MemoryError):
        expandable.allocate(50 * MIB)
    edges = [expandable.allocate(5 * MIB) for _ in range(2)]  # in pages of other blocks
    assert [edge.start for edge in edges] == [60 * MIB, 15 * MIB]
    for edge in edges:
        expandable.free(edge)
    expandable.limit += 40 * MIB
    assert expandable.allocate(50 * MIB).start == hole.start  # 10 MiB of it had memory
    assert expandable.reserved == expandable.limit


def test_memory_of_many_sizes_is_given_back_whole() -> None:
    for allocator in both():
        blocks = [allocator.allocate(997 * number * number) for number in range(1, 120)]
        peak = allocator.allocated
        for block in (*blocks[::3], *blocks[1::3], *blocks[2::3]):
            allocator.free(block)
        assert allocator.allocated == 0
        assert allocator.allocated_peak == peak <= allocator.reserved
        reserved = allocator.reserved
        for number in range(1, 120):
            allocator.allocate(997 * number * number)
        if allocator.is_expandable:
            assert allocator.reserved == reserved
