"""The envelope of a sieve against sums taken one after another, and against every byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.dp.jit import interpreted
from chainstay.dp.priced_pruning import PricedLimit, without_limit
from chainstay.dp.sieve import Sieve, gather, offer_sum, sieve_of, with_entries
from chainstay.dp.steps import Pair, Steps, add_term, buffers, value_at

CAP = 400
TOO_MANY = 10**6
LIMITS = (CAP, TOO_MANY)


@st.composite
def fronts(draw: st.DrawFn, shift: int | None = 0) -> Steps:
    """Up to 12 corners within the first 300 bytes."""
    memory = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=12)))
    drops = draw(st.lists(st.integers(1, 40), min_size=len(memory), max_size=len(memory)))
    overhead = np.cumsum(drops[::-1])[::-1]
    moved = draw(st.integers(0, 50)) if shift is None else shift
    return Steps(np.array(memory), overhead.astype(np.int64), 0, len(memory) - 1, moved)


Sums = list[tuple[Steps, Steps, int, int]]
SUMS = st.lists(
    st.tuples(fronts(None), fronts(None), st.integers(0, 60), st.integers(0, 60)), max_size=6
)


def starts(one: Steps, other: Steps, more: int) -> int:
    """From where on both count, and some bytes more."""
    return more + max(int(steps.memory[0]) + steps.shift for steps in (one, other))


def corners(pair: Pair, size: int) -> list[tuple[int, int]]:
    return list(zip(pair[0][:size].tolist(), pair[1][:size].tolist(), strict=True))


def sieved(sieve: Sieve, lowest: Steps, sums: Sums) -> list[tuple[int, int]]:
    used = lowest.last + 1
    for one, other, constant, more in sums:
        start = starts(one, other, more)
        sieve = with_entries(sieve, used, one.last + other.last + 3)
        used = offer_sum(sieve, used, one, other, constant, start, CAP)
    pair = buffers(used)
    return corners(pair, gather(sieve, *pair))


@pytest.mark.parametrize("cells", [1, 7, 4096])
@settings(max_examples=80)
@given(lowest=fronts(), sums=SUMS)
def test_envelope_equals_sums_merged_one_after_another(
    cells: int, lowest: Steps, sums: Sums
) -> None:
    limit = without_limit(CAP, np.zeros((1, 1), dtype=np.int64))
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("chainstay.dp.sieve._LEAST_CELLS", cells)
        patch.setattr("chainstay.dp.sieve._CELLS_PER_CORNER", 0)
        sieve = sieve_of(limit, np.zeros(1), lowest, LIMITS, 0)
        found = sieved(sieve, lowest, sums)
        merged, spare = lowest, buffers(16)
        for one, other, constant, more in sums:
            start = starts(one, other, more)
            merged, spare = add_term(merged, one, other, constant, start, LIMITS, spare)
    assert found == corners((merged.memory, merged.overhead), merged.last + 1)
    for m in range(CAP + 1):
        values = [
            constant + value_at(one, m, TOO_MANY) + value_at(other, m, TOO_MANY)
            for one, other, constant, more in sums
            if m >= starts(one, other, more)
        ]
        least = min([value_at(lowest, m, TOO_MANY), *values])
        assert least == min((value for at, value in found if at <= m), default=TOO_MANY)


@settings(max_examples=150)
@given(
    lowest=fronts(),
    sums=SUMS,
    lines=st.lists(st.integers(-200, 100), min_size=2, max_size=4),
    overhead=st.integers(0, 400),
)
def test_no_corner_that_the_rest_of_the_chain_can_afford_is_lost(
    lowest: Steps, sums: Sums, lines: list[int], overhead: int
) -> None:
    falling = np.array(sorted(lines, reverse=True), dtype=np.float64)
    least = np.zeros((1, 1), dtype=np.int64)
    limit = PricedLimit(overhead, CAP, 0.25, falling[None, None], least)

    def affordable(corner: tuple[int, int]) -> bool:
        m, value = corner
        outside = max(line + rung * limit.step * m for rung, line in enumerate(falling))
        return bool(value + outside <= overhead)

    with interpreted():
        everything = sieved(
            sieve_of(without_limit(CAP, least), np.zeros(1), lowest, LIMITS, 0), lowest, sums
        )
        found = sieved(sieve_of(limit, falling, lowest, LIMITS, 0), lowest, sums)
    assert set(filter(affordable, everything)) <= set(found)
