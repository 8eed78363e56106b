"""3-Partition and 2-Partition as offloading: yes and no told apart, witnesses both ways."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.schedule import Schedule
from chainstay.solve.offload import solve_offload
from chainstay.validation.offload.partition_reductions import (
    halves_from_schedule,
    three_partition_gadget,
    three_partition_schedule,
    triples_from_schedule,
    two_partition_gadget,
    two_partition_schedule,
)
from chainstay.validation.offload.search import offload_optimum
from golden_offloads import GOLDEN, GoldenOffload, require_solvers

require_solvers()

THREE_YES = ([8, 9, 9], [6, 6, 8, 7, 7, 6], [26, 27, 28, 29, 35, 35])
THREE_NO = ([6, 6, 6, 6, 7, 9], [11, 11, 11, 11, 11, 15])
TWO_YES = ([1, 1], [1, 2, 3], [2, 3, 5], [1, 2, 2, 3], [4, 5, 6, 7, 8])
TWO_NO = ([1, 3], [1, 2], [1, 1, 4], [3, 3, 3, 5], [5, 5, 5, 5, 2])


def triples(numbers: list[int]) -> list[frozenset[int]] | None:
    """Positions that split `numbers` into triples of equal sum, by looking at all of them."""
    target = 3 * sum(numbers) // len(numbers)

    def split(left: frozenset[int]) -> list[frozenset[int]] | None:
        if not left:
            return []
        for pair in combinations(sorted(left - {min(left)}), 2):
            triple = frozenset({min(left), *pair})
            if sum(numbers[j] for j in triple) == target:
                rest = split(left - triple)
                if rest is not None:
                    return [triple, *rest]
        return None

    return split(frozenset(range(len(numbers))))


def splits(numbers: list[int]) -> list[frozenset[int]]:
    """All halves of equal sum."""
    positions = range(len(numbers))
    return [
        frozenset(chosen)
        for size in range(len(numbers) + 1)
        for chosen in combinations(positions, size)
        if 2 * sum(numbers[k] for k in chosen) == sum(numbers)
    ]


def of_category(name: str) -> list[GoldenOffload]:
    return [golden for golden in GOLDEN if golden.category.startswith(name)]


@pytest.mark.parametrize("golden", of_category("3-partition"), ids=lambda golden: golden.name)
def test_golden_gadgets_of_three_partition(golden: GoldenOffload) -> None:
    numbers = list(golden.profile.activations[: 3 * len(golden.profile) // 5])
    gadget = three_partition_gadget(numbers)
    assert gadget == (golden.profile, golden.budget, golden.link, gadget.deadline)
    assert golden.integral is not None
    assert (golden.integral <= gadget.deadline) == (triples(numbers) is not None)
    assert golden.category.endswith("yes") == (triples(numbers) is not None)


@pytest.mark.parametrize("golden", of_category("2-partition"), ids=lambda golden: golden.name)
def test_golden_gadgets_of_two_partition(golden: GoldenOffload) -> None:
    numbers = list(golden.profile.activations[: len(golden.profile) - 3])
    gadget = two_partition_gadget([number // (1 + sum(numbers) % 2) for number in numbers])
    assert golden.integral is not None
    assert (golden.integral <= 2) == bool(splits(numbers)) == golden.category.endswith("yes")
    assert gadget.profile == golden.profile or sum(numbers) % 2


@pytest.mark.parametrize("numbers", THREE_YES, ids=str)
def test_triples_meet_the_deadline_and_come_back(numbers: list[int]) -> None:
    found = triples(numbers)
    assert found is not None
    gadget = three_partition_gadget(numbers)
    assert set(triples_from_schedule(three_partition_schedule(numbers, found), numbers)) == set(
        found
    )
    solution = solve_offload(gadget.profile, gadget.budget, link=gadget.link, method="cpsat")
    assert solution.makespan == solution.lower_bound == gadget.deadline
    decoded = triples_from_schedule(solution.schedule, numbers)
    assert {sum(numbers[j] for j in triple) for triple in decoded} == {
        3 * sum(numbers) // len(numbers)
    }
    assert sorted(j for triple in decoded for j in triple) == list(range(len(numbers)))


@pytest.mark.parametrize("numbers", THREE_NO, ids=str)
def test_without_triples_whole_transfers_are_late_and_interruptible_ones_are_not(
    numbers: list[int],
) -> None:
    assert triples(numbers) is None
    gadget = three_partition_gadget(numbers)
    solution = solve_offload(gadget.profile, gadget.budget, link=gadget.link, method="cpsat")
    assert solution.lower_bound > gadget.deadline
    fluid = solve_offload(
        gadget.profile, gadget.budget, link=gadget.link, transfers="interruptible"
    )
    assert fluid.makespan == gadget.deadline
    with pytest.raises(InvalidScheduleError, match=f"takes {solution.makespan}, the deadline is"):
        triples_from_schedule(solution.schedule, numbers)


@pytest.mark.parametrize("numbers", [*TWO_YES, *TWO_NO], ids=str)
@pytest.mark.parametrize(("transfers", "method"), [("integral", "cpsat"), ("interruptible", "mip")])
def test_two_partition_by_exact_solvers(numbers: list[int], transfers: str, method: str) -> None:
    gadget = two_partition_gadget(numbers)
    solution = solve_offload(
        gadget.profile, gadget.budget, link=gadget.link, transfers=transfers, method=method
    )
    assert solution.is_optimal
    assert (solution.makespan == gadget.deadline) == (numbers in TWO_YES) == bool(splits(numbers))
    if numbers in TWO_YES and transfers == "integral":
        assert halves_from_schedule(solution.schedule, numbers)[0] in splits(numbers)


@settings(max_examples=20)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_small_two_partitions_by_exhaustive_search(numbers: list[int]) -> None:
    gadget = two_partition_gadget(numbers)
    found = offload_optimum(gadget.profile, budget=gadget.budget, link=gadget.link)
    assert (found.makespan == gadget.deadline) == bool(splits(numbers))


@settings(max_examples=200)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=7), st.data())
def test_whatever_else_moves_is_late_or_does_not_fit(
    numbers: list[int], data: st.DataObject
) -> None:
    moved = data.draw(st.sets(st.integers(0, len(numbers) - 1)))
    try:
        halves = halves_from_schedule(two_partition_schedule(numbers, moved), numbers)
    except InvalidScheduleError:
        assert frozenset(moved) not in splits(numbers)
    else:
        assert halves[0] == moved
        assert frozenset(moved) in splits(numbers)


def test_what_does_not_move_in_time_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="waits for ever: it needs 26 bytes"):
        triples_from_schedule(Schedule.keep_all(5), [8, 9, 9])


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [
        ([1, 2], "2 numbers of sum 3 are no triples"),
        ([], "0 numbers of sum 0 are no triples"),
        ([5, 6, 7, 6, 6, 7], "6 numbers of sum 37 are no triples"),
        ([1, 6, 6], "1 is not between a quarter and a half of 13"),
        ([4, 4, 8], "4 is not between a quarter and a half of 16"),
    ],
)
def test_triples_must_be_possible(numbers: list[int], reason: str) -> None:
    with pytest.raises(InvalidProfileError, match=reason):
        three_partition_gadget(numbers)


@pytest.mark.parametrize("numbers", [[], [1, 0], [3, -1]])
def test_numbers_to_halve_must_be_positive(numbers: list[int]) -> None:
    with pytest.raises(InvalidProfileError, match=r"numbers to split are \[.*\], must be positive"):
        two_partition_gadget(numbers)
