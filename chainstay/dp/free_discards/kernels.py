"""The program for free discards: its inner loops, compiled where numba is installed.

The recurrence stands in `solver`. The fronts of all states stand in one pool.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit, cutoff_within, store_useful
from chainstay.dp.free_discards.sizes import Sizes
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array
from chainstay.dp.step_functions import (
    Buffer,
    Cutoff,
    RunningMinimum,
    StepFunction,
    StepSum,
    merge_one,
    merge_sum,
    new_buffer,
    new_pool,
    value_at,
)

__all__ = [
    "NO_DECISION",
    "RECORD",
    "FreeDiscardsFrontPool",
    "FreeDiscardsState",
    "choose",
    "fill",
]

RECORD: Final = -1
"""The decision to record stage s now; any other is the stage at which a restart's sweep ends."""
NO_DECISION: Final = -2

_INFINITE: Final = 2**61
_FIRST_CAPACITY: Final = 1024


class FreeDiscardsState(NamedTuple):
    """A sub-chain: from the input of stage s, δ^{end+1} and, if `held`, ā_end.

    Nodes up to n - 1 go to δ^s, others to δ^{s+1} and ā_s; see `Sizes`.
    """

    node: int
    s: int
    end: int
    held: int


class FreeDiscardsFrontPool(NamedTuple):
    """Fronts of all states, in one pool of breakpoints.

    Attributes:
        memory: Bytes of all breakpoints of all fronts.
        overhead: Ns of all breakpoints of all fronts.
        first: Shape (2, nodes, n), at [held, node, end]: index of a front's first breakpoint.
        size: Shape (2, nodes, n): how many breakpoints it has.
        least: Shape (2, nodes, n): bytes of its first, `_INFINITE` without breakpoints.
        best: Shape (2, nodes, n): ns of its last.
    """

    memory: Array
    overhead: Array
    first: Array
    size: Array
    least: Array
    best: Array


class FreeDiscardsTask(NamedTuple):
    """A state whose front is being computed, and the limits outside of which it is of no use."""

    state: FreeDiscardsState
    cutoff: Cutoff


@kernel
def _front(fronts: FreeDiscardsFrontPool, state: FreeDiscardsState, shift: int) -> StepFunction:
    """Return the front of a state, moved right by `shift` bytes."""
    first = fronts.first[state.held, state.node, state.end]
    last = first + fronts.size[state.held, state.node, state.end] - 1
    return StepFunction(fronts.memory, fronts.overhead, first, last, shift)


@kernel
def _record(sizes: Sizes, state: FreeDiscardsState) -> tuple[int, int]:
    """Return the bytes that recording stage s and its backward need, and those that it takes."""
    node, s, end, held = state
    besides = sizes.gradient[end + 1]
    if held and s < end:
        besides += sizes.held[s + 1, end]
    taken = sizes.saved[s] - sizes.freed[node]
    if node >= len(sizes.saved):
        return besides + sizes.record[s], taken
    if held and s == end:
        return sizes.backward[s], taken
    return max(besides + sizes.record[s], sizes.backward[s]), taken


@kernel
def _sweep(sizes: Sizes, state: FreeDiscardsState, i: int) -> int:
    """Return the bytes besides ``a^s`` while stage i runs and keeps nothing but its output."""
    besides = sizes.gradient[state.end + 1] + sizes.fresh[state.s, i] + sizes.forward[i]
    return int(besides + (sizes.held[i + 1, state.end] if state.held else 0))


@kernel
def _recorded(
    sizes: Sizes, fronts: FreeDiscardsFrontPool, task: FreeDiscardsTask, minimum: RunningMinimum
) -> RunningMinimum:
    """Return the minimum of `minimum` and recording stage s, whose input stays or is dropped."""
    state, cutoff = task
    floor, taken = _record(sizes, state)
    if state.s == state.end:
        after = StepFunction(fronts.memory, fronts.overhead, 0, 0, taken)
    else:
        following = FreeDiscardsState(state.s + 1, state.s + 1, state.end, state.held)
        after = _front(fronts, following, taken)
    return merge_one(minimum, after, 0, floor, cutoff)


@kernel
def _restarts(
    sizes: Sizes,
    fronts: FreeDiscardsFrontPool,
    column: Buffer,
    task: FreeDiscardsTask,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and all restarts."""
    state, cutoff = task
    node, s, end, held = state
    lowest, spare = minimum.lowest, minimum.spare
    floor = 0
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        floor = max(floor, _sweep(sizes, state, j - 1))
        if rerun >= cutoff.overhead or floor > cutoff.memory:
            break
        stored = sizes.fresh[s, j]
        for left in range(2):
            if left and held and j == end:
                continue  # its saved data are there already
            stop, after = (j, sizes.node[s, j]) if left else (j - 1, j)
            # cheap: nowhere does the sum exist and lie below all of `lowest`
            start = max(floor, fronts.least[left, node, stop], column[0][after] + stored)
            lower = rerun + fronts.best[left, node, stop] + column[1][after]
            if start > cutoff.memory or lower >= cutoff.overhead:
                continue
            if lower >= value_at(lowest, start, cutoff.overhead):
                continue
            later = _front(fronts, FreeDiscardsState(after, j, end, held), stored)
            earlier = _front(fronts, FreeDiscardsState(node, s, stop, left), 0)
            total = StepSum(earlier, later, rerun)
            lowest, spare = merge_sum(RunningMinimum(lowest, spare), total, start, cutoff)
    return RunningMinimum(lowest, spare)


@kernel
def fill(sizes: Sizes, limit: PruningLimit, dropped: NDArray[np.float64]) -> FreeDiscardsFrontPool:
    """Return the fronts of all states within the limit.

    Last stages ascend; for each of them, held comes first, and first stages descend.

    Args:
        sizes: The chain.
        limit: The limit on whole schedules; its `outside` is that of `FreeDiscardsBound`, for
            nodes that keep ``a^s``.
        dropped: Shape of ``limit.outside``, ns: the same for nodes that drop ``a^s``.
    """
    n, nodes = len(sizes.saved), len(sizes.freed)
    shape = (2, nodes, n)
    first, count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    least, best = np.full(shape, _INFINITE, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    pool = new_pool(_FIRST_CAPACITY)
    here, spare = new_buffer(_FIRST_CAPACITY), new_buffer(_FIRST_CAPACITY)
    for end in range(n):
        for held in range(1, -1, -1):
            column = np.full(nodes, _INFINITE, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
            for s in range(end, -1, -1):
                least_input = min(sizes.nearest[s], sizes.saved[s - 1]) if s > 0 else 0
                dropping = sizes.first_node[s + 1] - sizes.first_node[s]
                for number in range(1 if held and s == end else 1 + dropping):
                    node = s if number == 0 else sizes.first_node[s] + number - 1
                    state = FreeDiscardsState(node, s, end, held)
                    lines = limit.outside[held, s, end] if node == s else dropped[held, s, end]
                    needed = _record(sizes, state)[0]
                    if s < end:
                        needed = min(needed, _sweep(sizes, state, s))
                    cutoff = cutoff_within(limit, lines, least_input, needed)
                    if cutoff.memory < needed or cutoff.overhead <= 0:
                        continue
                    fronts = FreeDiscardsFrontPool(
                        pool.memory, pool.overhead, first, count, least, best
                    )
                    task = FreeDiscardsTask(state, cutoff)
                    nothing = RunningMinimum(StepFunction(here[0], here[1], 0, -1, 0), spare)
                    recorded = _recorded(sizes, fronts, task, nothing)
                    lowest, spare = _restarts(sizes, fronts, column, task, recorded)
                    # store what can be part of a whole schedule
                    pool, size = store_useful(limit, lines, lowest, pool)
                    start = pool.used - size
                    first[held, node, end], count[held, node, end] = start, size
                    if size:
                        column[0][node] = least[held, node, end] = pool.memory[start]
                        column[1][node] = best[held, node, end] = pool.overhead[pool.used - 1]
                    here = (lowest.memory, lowest.overhead)
    memory, overhead = pool.memory[: pool.used], pool.overhead[: pool.used]
    return FreeDiscardsFrontPool(memory, overhead, first, count, least, best)


@kernel
def choose(
    sizes: Sizes, fronts: FreeDiscardsFrontPool, state: FreeDiscardsState, m: int
) -> tuple[int, int]:
    """Return the optimal decision with `m` bytes.

    Returns:
        `RECORD` and 0; or the stage at which a restart's sweep ends, and whether it leaves that
        stage's saved data; or `NO_DECISION` and 0.
    """
    node, s, end, held = state
    target = value_at(_front(fronts, state, 0), m, -1)
    floor, taken = _record(sizes, state)
    if m >= floor:
        after = 0
        if s < end:
            following = FreeDiscardsState(s + 1, s + 1, end, held)
            after = value_at(_front(fronts, following, taken), m, -1)
        if after == target:
            return RECORD, 0
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        if rerun > target or m < _sweep(sizes, state, j - 1):
            break
        for left in range(2):
            if left and held and j == end:
                continue
            stop, node_after = (j, sizes.node[s, j]) if left else (j - 1, j)
            earlier = _front(fronts, FreeDiscardsState(node, s, stop, left), 0)
            rest = target - rerun - value_at(earlier, m, target + 1)
            later = _front(fronts, FreeDiscardsState(node_after, j, end, held), sizes.fresh[s, j])
            if rest >= 0 and value_at(later, m, -1) == rest:
                return j, left
    return NO_DECISION, 0
