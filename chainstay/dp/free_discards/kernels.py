"""The program for free discards: its inner loops, compiled where numba is installed.

The recurrence stands in `solver`. The fronts of all states stand in one pool.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit, cutoff_within, store_useful
from chainstay.dp.forward_costs import Array
from chainstay.dp.free_discards.sizes import HELD, STAYS, Sizes, SizesByKind
from chainstay.dp.jit import kernel
from chainstay.dp.step_functions import (
    FIRST_CAPACITY,
    INFINITE,
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

RECORD: Final = -1
"""The decision to record stage s now; any other is the stage at which a restart's sweep ends."""
NO_DECISION: Final = -2


class FreeDiscardsState(NamedTuple):
    """A sub-chain: from the input of stage s, δ^{end+1} and, if `held`, ā_end.

    Nodes up to n - 1 go to δ^s, others to δ^{s+1} and ā_s; see `Sizes`. `held` is 0, or 1 for the
    first option of stage `end`, 2 for the second, and so on.
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
        first: Shape (most options + 1, nodes, n), at [held, node, end]: index of a front's first
            breakpoint.
        size: Shape (most options + 1, nodes, n): how many breakpoints it has.
        least: Shape (most options + 1, nodes, n): bytes of its first, `INFINITE` without
            breakpoints.
        best: Shape (most options + 1, nodes, n): ns of its last.
    """

    memory: Array
    overhead: Array
    first: Array
    size: Array
    least: Array
    best: Array


class FreeDiscardsTask(NamedTuple):
    """A state whose front is being computed.

    Attributes:
        state: The state.
        cutoff: Breakpoints outside of it are of no use.
        besides: Bytes of the gradient, and of saved data held, besides ``a^{s+1}``.
    """

    state: FreeDiscardsState
    cutoff: Cutoff
    besides: int


class RecordSizes(NamedTuple):
    """The part of `Sizes` that recording stages needs: fewer arguments make calls faster."""

    start: Array
    under: Array
    freed: Array
    extra: Array
    saved: Array
    record: Array
    backward: Array


class RestartSizes(NamedTuple):
    """The part of `Sizes` that restarts need."""

    elapsed: Array
    gradient: Array
    fresh: Array
    forward: Array
    start: Array
    outlives: Array
    held: Array
    returned: Array
    node: Array


@kernel
def _split(sizes: Sizes) -> tuple[RecordSizes, RestartSizes]:
    """Return what recording stages needs, and what restarts need."""
    return RecordSizes(
        sizes.start,
        sizes.under,
        sizes.freed,
        sizes.extra,
        sizes.saved,
        sizes.record,
        sizes.backward,
    ), RestartSizes(
        sizes.elapsed,
        sizes.gradient,
        sizes.fresh,
        sizes.forward,
        sizes.start,
        sizes.outlives,
        sizes.held,
        sizes.returned,
        sizes.node,
    )


@kernel
def _front(fronts: FreeDiscardsFrontPool, state: FreeDiscardsState, shift: int) -> StepFunction:
    """Return the front of a state, moved right by `shift` bytes."""
    first = fronts.first[state.held, state.node, state.end]
    last = first + fronts.size[state.held, state.node, state.end] - 1
    return StepFunction(fronts.memory, fronts.overhead, first, last, shift)


@kernel
def _recorded(
    sizes: RecordSizes,
    fronts: FreeDiscardsFrontPool,
    task: FreeDiscardsTask,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and recording stage s, whose input stays or is dropped."""
    state, cutoff = task.state, task.cutoff
    first, after = _ways(sizes, state)
    for o in range(first, after):
        floor, extra = _record(sizes, task, o)
        minimum = merge_one(minimum, _following(sizes, fronts, state, o), extra, floor, cutoff)
    return minimum


@kernel
def _ways(sizes: RecordSizes, state: FreeDiscardsState) -> tuple[int, int]:
    """Return the first of the options under which stage s may be recorded, and the one after."""
    node, s, end, held = state
    if held and s == end:
        o = sizes.start[end] + held - 1
        return o, o + 1
    if node >= len(sizes.start) - 1:
        return sizes.under[node], sizes.under[node] + 1
    return sizes.start[s], sizes.start[s + 1]


@kernel
def _record(sizes: RecordSizes, task: FreeDiscardsTask, o: int) -> tuple[int, int]:
    """Return the bytes that recording stage s and its backward need, and the overhead in ns."""
    node, s, end, held = task.state
    if held and s == end:
        return sizes.backward[o], 0
    floor = task.besides + sizes.record[o]
    if node < len(sizes.start) - 1:
        floor = max(floor, sizes.backward[o])
    return floor, sizes.extra[o]


@kernel
def _following(
    sizes: RecordSizes, fronts: FreeDiscardsFrontPool, state: FreeDiscardsState, o: int
) -> StepFunction:
    """Return the front of what follows stage s under option o; 0 ns if it was the last."""
    node, s, end, held = state
    taken = sizes.saved[o] - sizes.freed[node]
    if s == end:
        return StepFunction(fronts.memory, fronts.overhead, 0, 0, taken)
    return _front(fronts, FreeDiscardsState(s + 1, s + 1, end, held), taken)


@kernel
def _besides(sizes: RestartSizes, state: FreeDiscardsState, i: int) -> int:
    """Return the bytes of the gradient, and of the saved data held, besides ``a^i``."""
    besides = sizes.gradient[state.end + 1]
    if state.held and i <= state.end:
        besides += sizes.held[i, sizes.start[state.end] + state.held - 1]
    return int(besides)


@kernel
def _left(
    sizes: RestartSizes, state: FreeDiscardsState, j: int, left: int
) -> tuple[int, int, int, int]:
    """Return the parts of a restart at j that leaves saved data of stage j, if `left` is not 0.

    Returns:
        The node of the later part, last stage and `held` of the earlier one, and the least bytes.
        The last stage is -1 where there is no such restart.
    """
    if left == 0:
        return j, j - 1, 0, 0
    o = sizes.start[j] + left - 1
    if (state.held and j == state.end) or sizes.outlives[o] == STAYS:
        return j, -1, 0, 0
    node = sizes.node[state.s, j] + left - 1
    if sizes.outlives[o] == HELD:
        return node, j, left, 0
    return node, j - 1, 0, sizes.returned[state.s, o]


@kernel
def _restarts(
    sizes: RestartSizes,
    fronts: FreeDiscardsFrontPool,
    column: Buffer,
    task: FreeDiscardsTask,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and all restarts."""
    state, cutoff = task.state, task.cutoff
    node, s, end, held = state
    lowest, spare = minimum.lowest, minimum.spare
    floor, h = 0, sizes.start[end] + held - 1
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        running = sizes.fresh[s, j - 1] + sizes.forward[j - 1] + sizes.gradient[end + 1]
        if held:
            running += sizes.held[j, h]
        floor = max(floor, running)
        if rerun >= cutoff.overhead or floor > cutoff.memory:
            break
        stored = sizes.fresh[s, j]
        for left in range(sizes.start[j + 1] - sizes.start[j] + 1):
            after, stop, held_then, least = _left(sizes, state, j, left)
            if stop < 0:
                continue
            # cheap: nowhere does the sum exist and lie below all of `lowest`
            start = max(floor, least, fronts.least[held_then, node, stop])
            start = max(start, column[0][after] + stored)
            lower = rerun + fronts.best[held_then, node, stop] + column[1][after]
            if start > cutoff.memory or lower >= cutoff.overhead:
                continue
            if lower >= value_at(lowest, start, cutoff.overhead):
                continue
            later = _front(fronts, FreeDiscardsState(after, j, end, held), stored)
            earlier = _front(fronts, FreeDiscardsState(node, s, stop, held_then), 0)
            total = StepSum(earlier, later, rerun)
            lowest, spare = merge_sum(RunningMinimum(lowest, spare), total, start, cutoff)
    return RunningMinimum(lowest, spare)


@kernel
def fill(
    by_kind: SizesByKind, limit: PruningLimit, dropped: NDArray[np.float64]
) -> FreeDiscardsFrontPool:
    """Return the fronts of all states within the limit.

    Last stages ascend; for each of them, held comes first, and first stages descend.

    Args:
        by_kind: The chain.
        limit: The limit on whole schedules; its `outside` is that of `FreeDiscardsBound`, for
            nodes that keep ``a^s``.
        dropped: Shape of ``limit.outside``, ns: the same for nodes that drop ``a^s``.
    """
    sizes = by_kind.again
    n, nodes = len(sizes.node), len(sizes.freed)
    shape = (np.diff(sizes.start).max() + 1, nodes, n)
    first, count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    least, best = np.full(shape, INFINITE, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    pool = new_pool()
    here, spare = new_buffer(FIRST_CAPACITY), new_buffer(FIRST_CAPACITY)
    for end in range(n):
        for held in range(sizes.start[end + 1] - sizes.start[end], -1, -1):
            if held and sizes.outlives[sizes.start[end] + held - 1] != HELD:
                continue
            sizes = by_kind.again if held or end < n - 1 else by_kind.first
            record, restart = _split(sizes)
            column = np.full(nodes, INFINITE, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
            for s in range(end, -1, -1):
                besides = _besides(restart, FreeDiscardsState(s, s, end, held), s + 1)
                dropping = sizes.first_node[s + 1] - sizes.first_node[s]
                for number in range(1 if held and s == end else 1 + dropping):
                    node = s if number == 0 else sizes.first_node[s] + number - 1
                    state, is_held = FreeDiscardsState(node, s, end, held), min(held, 1)
                    lines = (dropped if number else limit.outside)[is_held, s, end]
                    needed = sizes.least_backward[node]
                    if s < end or not held:
                        needed = max(needed, besides + sizes.least_record[node])
                    if s < end:
                        needed = min(needed, besides + sizes.forward[s])
                    cutoff = cutoff_within(limit, lines, sizes.least_input[s], needed)
                    if cutoff.memory < needed or cutoff.overhead <= 0:
                        continue
                    fronts = FreeDiscardsFrontPool(
                        pool.memory, pool.overhead, first, count, least, best
                    )
                    task = FreeDiscardsTask(state, cutoff, besides)
                    nothing = RunningMinimum(StepFunction(here[0], here[1], 0, -1, 0), spare)
                    recorded = _recorded(record, fronts, task, nothing)
                    lowest, spare = _restarts(restart, fronts, column, task, recorded)
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
        `RECORD` and the option; or the stage at which a restart's sweep ends, and 0 or, if it
        leaves saved data of that stage, 1 for its first option, and so on; or `NO_DECISION` and 0.
    """
    node, s, end, held = state
    record, restart = _split(sizes)
    task = FreeDiscardsTask(state, Cutoff(m, 0), _besides(restart, state, s + 1))
    target = value_at(_front(fronts, state, 0), m, -1)
    first, last = _ways(record, state)
    for o in range(first, last):
        floor, extra = _record(record, task, o)
        after = value_at(_following(record, fronts, state, o), m, -1)
        if m >= floor and after >= 0 and after + extra == target:
            return RECORD, o
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        running = sizes.fresh[s, j - 1] + sizes.forward[j - 1]
        if rerun > target or m < _besides(restart, state, j) + running:
            break
        for left in range(sizes.start[j + 1] - sizes.start[j] + 1):
            node_after, stop, held_then, least = _left(restart, state, j, left)
            if stop < 0 or m < least:
                continue
            earlier = _front(fronts, FreeDiscardsState(node, s, stop, held_then), 0)
            rest = target - rerun - value_at(earlier, m, target + 1)
            later = _front(fronts, FreeDiscardsState(node_after, j, end, held), sizes.fresh[s, j])
            if rest >= 0 and value_at(later, m, -1) == rest:
                return j, left
    return NO_DECISION, 0
