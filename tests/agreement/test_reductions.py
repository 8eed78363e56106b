"""2-Partition as a chain: yes and no told apart by every exact solver, witnesses both ways."""

from __future__ import annotations

import dataclasses
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError, InvalidScheduleError
from chainstay.formulations import CPSAT, MIP
from chainstay.schedule import Schedule
from chainstay.solution import Method
from chainstay.validation import search
from chainstay.validation.partition_reduction import (
    partition_chain,
    partition_from_schedule,
    partition_schedule,
)
from chainstay.validation.simulate import simulate
from golden_chains import GOLDEN, GoldenChain

GADGETS = [golden for golden in GOLDEN if golden.name.startswith("partition_")]
METHODS: tuple[Method, ...] = (DP(), MIP(), CPSAT(), CPSAT(discards="tape"), CPSAT(discards="free"))
YES = ([1, 1], [1, 2, 3], [2, 3, 5], [1, 2, 2, 3], [4, 5, 6, 7, 8], [3, 1, 1, 2, 2, 1])
NO = ([1, 3], [1, 2], [1, 1, 4], [2, 2, 6], [3, 3, 3, 5], [5, 5, 5, 5, 2], [2, 2, 2, 2, 2])
NUMBERS = st.lists(st.integers(1, 9), min_size=1, max_size=2)


def splits(numbers: list[int]) -> set[frozenset[int]]:
    """All sets of positions that sum to half of the whole, by counting."""
    positions = range(len(numbers))
    return {
        frozenset(chosen)
        for size in range(len(numbers) + 1)
        for chosen in combinations(positions, size)
        if 2 * sum(numbers[k] for k in chosen) == sum(numbers)
    }


@pytest.mark.parametrize("golden", GADGETS, ids=lambda golden: golden.name)
def test_golden_gadgets(golden: GoldenChain) -> None:
    numbers = [int(word) for word in golden.name.split("@")[0].split("_")[1:]]
    profile, budget, deadline = partition_chain(numbers)
    nameless = [dataclasses.replace(stage, name="") for stage in golden.profile.stages]
    assert list(profile.stages) == nameless
    assert budget == golden.budget
    optimum = golden.optimum["table1"]
    assert optimum is not None
    assert (optimum <= deadline) == bool(splits(numbers))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("numbers", YES, ids=str)
def test_yes_instances_meet_the_deadline_and_give_their_halves(
    method: Method, numbers: list[int]
) -> None:
    profile, budget, deadline = partition_chain(numbers)
    claim = method(profile, budget)
    assert claim.makespan == claim.lower_bound == deadline
    saved, others = partition_from_schedule(claim.schedule, numbers)
    assert saved in splits(numbers)
    assert others in splits(numbers)
    assert saved | others == set(range(len(numbers)))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("numbers", NO, ids=str)
def test_no_instances_are_late(method: Method, numbers: list[int]) -> None:
    profile, budget, deadline = partition_chain(numbers)
    claim = method(profile, budget)
    assert claim.lower_bound > deadline
    with pytest.raises(InvalidScheduleError, match=f"{claim.makespan} ns, the deadline is"):
        partition_from_schedule(claim.schedule, numbers)


@settings(max_examples=12)
@given(NUMBERS)
@pytest.mark.long
def test_small_instances_by_exhaustive_search(numbers: list[int]) -> None:
    profile, budget, deadline = partition_chain(numbers)
    try:
        optimum = search.optimum(profile, budget)
    except InfeasibleBudgetError:
        assert 4 * max(numbers) > 3 * sum(numbers)
        return
    assert (optimum.makespan <= deadline) == bool(splits(numbers))
    if splits(numbers):
        assert partition_from_schedule(optimum.schedule, numbers)[0] in splits(numbers)


@settings(max_examples=300)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9))
def test_halves_become_a_schedule_and_come_back(numbers: list[int]) -> None:
    for half in splits(numbers):
        schedule = partition_schedule(numbers, half)
        assert partition_from_schedule(schedule, numbers) == (
            half,
            frozenset(range(len(numbers))) - half,
        )


@settings(max_examples=300)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=9), st.data())
def test_whatever_else_is_kept_is_over_budget_or_late(
    numbers: list[int], data: st.DataObject
) -> None:
    kept = data.draw(st.sets(st.integers(0, len(numbers) - 1)))
    schedule = partition_schedule(numbers, kept)
    profile, budget, deadline = partition_chain(numbers)
    replay = simulate(profile, schedule)
    fits = replay.peak_bytes <= budget and replay.makespan <= deadline
    assert fits == (frozenset(kept) in splits(numbers))


def test_discarded_saved_data_does_not_count() -> None:
    schedule = Schedule.parse("Fa0 Fa1 Fa2 Fc3 Db2 Fa4 Fa5 B5 B4 Fa2 Fa3 B3 B2 B1 B0")
    assert partition_from_schedule(schedule, [1, 1]) == (frozenset({0}), frozenset({1}))


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("numbers", [[1], [1, 4]], ids=str)
def test_a_number_over_three_quarters_does_not_even_fit(method: Method, numbers: list[int]) -> None:
    chain = partition_chain(numbers)
    with pytest.raises(InfeasibleBudgetError, match=r"no .*schedule of this"):
        method(chain.profile, chain.budget)


def test_what_exceeds_the_budget_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="needs 4 bytes, the budget is 3"):
        partition_from_schedule(Schedule.keep_all(6), [1, 1])


@pytest.mark.parametrize("numbers", [[], [1, 0], [3, -1]])
def test_numbers_must_be_positive(numbers: list[int]) -> None:
    with pytest.raises(InvalidProfileError, match=r"numbers to split are \[.*\], must be positive"):
        partition_chain(numbers)
