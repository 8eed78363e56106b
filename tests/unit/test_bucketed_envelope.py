"""The bucketed envelope against sums taken one after another, and against every byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.dp.bounds.bound_pruning import PruningLimit, without_limit
from chainstay.dp.bucketed_envelope import (
    BucketedEnvelope,
    bucketed_envelope,
    insert_sum,
    with_entries,
    write_envelope,
)
from chainstay.dp.jit import interpreted
from chainstay.dp.step_functions import (
    Buffer,
    Cutoff,
    RunningMinimum,
    StepFunction,
    StepSum,
    merge_sum,
    new_buffer,
    value_at,
)

CAP = 400
TOO_MANY = 10**6
CUTOFF = Cutoff(CAP, TOO_MANY)


@st.composite
def fronts(draw: st.DrawFn, shift: int | None = 0) -> StepFunction:
    """Up to 12 breakpoints within the first 300 bytes."""
    memory = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=12)))
    drops = draw(st.lists(st.integers(1, 40), min_size=len(memory), max_size=len(memory)))
    overhead = np.cumsum(drops[::-1])[::-1]
    moved = draw(st.integers(0, 50)) if shift is None else shift
    return StepFunction(np.array(memory), overhead.astype(np.int64), 0, len(memory) - 1, moved)


Sums = list[tuple[StepFunction, StepFunction, int, int]]
SUMS = st.lists(
    st.tuples(fronts(None), fronts(None), st.integers(0, 60), st.integers(0, 60)), max_size=6
)


def starts(one: StepFunction, other: StepFunction, more: int) -> int:
    """From where on both count, and some bytes more."""
    return more + max(int(steps.memory[0]) + steps.shift for steps in (one, other))


def breakpoints(pair: Buffer, size: int) -> list[tuple[int, int]]:
    return list(zip(pair[0][:size].tolist(), pair[1][:size].tolist(), strict=True))


def enveloped(
    envelope: BucketedEnvelope, lowest: StepFunction, sums: Sums
) -> list[tuple[int, int]]:
    used = lowest.last + 1
    for one, other, constant, more in sums:
        start = starts(one, other, more)
        envelope = with_entries(envelope, used, one.last + other.last + 3)
        used = insert_sum(envelope, used, StepSum(one, other, constant), start, CAP)
    pair = new_buffer(used)
    return breakpoints(pair, write_envelope(envelope, pair))


@pytest.mark.parametrize("buckets", [1, 7, 4096])
@settings(max_examples=80)
@given(lowest=fronts(), sums=SUMS)
def test_envelope_equals_sums_merged_one_after_another(
    buckets: int, lowest: StepFunction, sums: Sums
) -> None:
    limit = without_limit(CAP, np.zeros((1, 1), dtype=np.int64))
    with interpreted(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("chainstay.dp.bucketed_envelope._LEAST_BUCKETS", buckets)
        patch.setattr("chainstay.dp.bucketed_envelope._BUCKETS_PER_BREAKPOINT", 0)
        envelope = bucketed_envelope(limit, np.zeros(1), lowest, CUTOFF, 0)
        found = enveloped(envelope, lowest, sums)
        minimum = RunningMinimum(lowest, new_buffer(16))
        for one, other, constant, more in sums:
            start = starts(one, other, more)
            total = StepSum(one, other, constant)
            minimum = merge_sum(minimum, total, start, CUTOFF)
    merged = minimum.lowest
    assert found == breakpoints((merged.memory, merged.overhead), merged.last + 1)
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
def test_no_breakpoint_that_the_rest_of_the_chain_can_afford_is_lost(
    lowest: StepFunction, sums: Sums, lines: list[int], overhead: int
) -> None:
    falling = np.array(sorted(lines, reverse=True), dtype=np.float64)
    least = np.zeros((1, 1), dtype=np.int64)
    limit = PruningLimit(overhead, CAP, 0.25, falling[None, None], least)

    def affordable(breakpoint_: tuple[int, int]) -> bool:
        m, value = breakpoint_
        outside = max(line + index * limit.step * m for index, line in enumerate(falling))
        return bool(value + outside <= overhead)

    with interpreted():
        everything = enveloped(
            bucketed_envelope(without_limit(CAP, least), np.zeros(1), lowest, CUTOFF, 0),
            lowest,
            sums,
        )
        found = enveloped(bucketed_envelope(limit, falling, lowest, CUTOFF, 0), lowest, sums)
    assert set(filter(affordable, everything)) <= set(found)
