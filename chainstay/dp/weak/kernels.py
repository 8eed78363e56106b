"""The weakly persistent program's inner loops, compiled where numba is installed.

The recurrence stands in `solver`. Fronts of ``W(s, t, l, ·)`` for all s <= t <= l stand in one
pool; ``row[s, t] + l`` is the number of the front. In the code, l is called `end`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit, cutoff_within, store_useful
from chainstay.dp.chain.recursion_arrays import ArraysByKind, RecursionArrays
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, NO_DECISION, Array
from chainstay.dp.step_functions import (
    Buffer,
    Cutoff,
    Pool,
    RunningMinimum,
    StepFunction,
    StepSum,
    front_from,
    gain_within,
    merge_one,
    merge_sum,
    new_buffer,
    new_pool,
    restricted,
    value_at,
)
from chainstay.dp.weak.move_bound import MoveBound, WeakState, write_move_lines
from chainstay.dp.weak.moving_checkpoint import (
    MovingFronts,
    front_of,
    merge_position,
    no_fronts,
)

__all__ = [
    "MOVE",
    "WeakFrontPool",
    "WeakState",
    "choose_weak",
    "fill_weak",
    "least_weak_memory",
]

_INFINITE: Final = 2**61
MOVE: Final = -(2**31)
"""The decision to run stage s and drop its input; none that keeps a stage is as low."""

_FIRST_CAPACITY: Final = 1024


class WeakFrontPool(NamedTuple):
    """Fronts of all W(s, t, l, ·), in one pool of breakpoints.

    Attributes:
        memory: Bytes of all breakpoints of all fronts.
        overhead: Ns of all breakpoints of all fronts.
        row: Shape (n, n): the number of the front of (s, t, l) is ``row[s, t] + l``.
        first: Shape (fronts,): index of the first breakpoint of a front.
        size: Shape (fronts,): how many breakpoints it has.
        origin: Shape (fronts,): the front of (s, t, l) is that of (origin, t, l), as the moving
            checkpoint has nothing better to do than to move on to there.
        least: Shape (fronts,): bytes of the first breakpoint, `_INFINITE` without breakpoints.
        best: Shape (fronts,): ns of the last breakpoint.
    """

    memory: Array
    overhead: Array
    row: Array
    first: Array
    size: Array
    origin: Array
    least: Array
    best: Array


class WeakTask(NamedTuple):
    """A state whose front is being computed.

    Attributes:
        state: The state.
        cutoff: Breakpoints outside of it are of no use.
        moved: Ns of stages ``s..t-1``, which run once more if the chain restarts before ``a^s``
            moves on.
    """

    state: WeakState
    cutoff: Cutoff
    moved: int


class WeakDraft(NamedTuple):
    """A front while it is being made.

    Attributes:
        lowest: The front; not shifted and from index 0, unless it is that of another state.
        origin: The stage s of the state among whose breakpoints it stands.
        here: The buffer it stands in if it is not that of another state; to write to if it is.
        spare: A buffer to write to.
    """

    lowest: StepFunction
    origin: int
    here: Buffer
    spare: Buffer


@kernel
def _rows(n: int) -> Array:
    """Return `WeakFrontPool.row`."""
    row, count = np.zeros((n, n), dtype=np.int64), 0
    for s in range(n):
        for t in range(s, n):
            row[s, t] = count - t
            count += n - t
    return row


@kernel
def _front(
    chain: RecursionArrays, fronts: WeakFrontPool, state: WeakState, shift: int
) -> StepFunction:
    """Return the front of a state, moved right by `shift` bytes."""
    number = fronts.row[state.s, state.t] + state.end
    first = fronts.first[number]
    last = first + fronts.size[number] - 1
    shift += chain.activation[fronts.origin[number]] - chain.activation[state.s]
    return StepFunction(fronts.memory, fronts.overhead, first, last, shift)


@kernel
def _following(chain: RecursionArrays, fronts: WeakFrontPool, o: int, end: int) -> StepFunction:
    """Return the front of what follows option o, beside what it saves; 0 ns if nothing is left."""
    k = chain.end[o]
    if k > end:
        return StepFunction(fronts.memory, fronts.overhead, 0, 0, chain.saved[o])
    return _front(chain, fronts, WeakState(k, k, end), chain.saved[o])


@kernel
def _least_need(chain: RecursionArrays, state: WeakState) -> int:
    """Return the least bytes for the first operation of a state."""
    s, t, end = state
    needed = chain.gradient[end + 1] + chain.transit[s, s]
    if s == t:
        for o in range(chain.start[s], chain.start[s + 1]):
            if chain.end[o] <= end + 1:
                needed = min(needed, chain.keep_floor[o, end])
    return int(needed)


@kernel
def least_weak_memory(by_kind: ArraysByKind) -> int:
    """Return the least bytes, besides its input, for a weakly persistent schedule of the chain."""
    n = len(by_kind.first.start) - 1
    row = _rows(n)
    least = np.full(row[n - 1, n - 1] + n, _INFINITE, dtype=np.int64)
    for end in range(n):
        chain = by_kind.first if end == n - 1 else by_kind.again
        gradient = chain.gradient[end + 1]
        rest = np.full(n, _INFINITE, dtype=np.int64)
        for s in range(end, -1, -1):
            first_step = gradient + chain.transit[s, s]
            for t in range(s, end + 1):
                best = _INFINITE
                if s == t:
                    for o in range(chain.start[s], chain.start[s + 1]):
                        k, need = chain.end[o], chain.keep_floor[o, end]
                        if k <= end:
                            need = max(need, least[row[k, k] + end] + chain.saved[o])
                        if k <= end + 1:
                            best = min(best, need)
                else:
                    after = least[row[s + 1, t] + end]
                    moved = after + chain.activation[s + 1] - chain.activation[s]
                    best = max(first_step, moved)
                earlier = least[row[s, t] + t : row[s, t] + end]
                for k in range(t + 1, end + 1):
                    best = min(best, max(first_step, rest[k], earlier[k - 1 - t]))
                least[row[s, t] + end] = best
            moving = first_step + chain.activation[s]
            for t in range(s, end + 1):
                stored = least[row[s, t] + end] + chain.activation[s]
                rest[t] = min(stored, max(rest[t], moving))
    return int(least[row[0, 0] + n - 1])


@kernel
def _merge_positions(
    chain: RecursionArrays,
    fronts: WeakFrontPool,
    position: tuple[int, int, int],
    moving: MovingFronts,
    spare: Buffer,
) -> tuple[MovingFronts, Buffer]:
    """Compute R(j, ·, end, ·) from R(j+1, ·, end, ·): the checkpoint stays at j or moves on."""
    j, end, memory = position
    floor = chain.gradient[end + 1] + chain.transit[j, j] + chain.activation[j]
    for t in range(j, end + 1):
        moving.least[t] = max(moving.least[t], floor)
        here = _front(chain, fronts, WeakState(j, t, end), chain.activation[j])
        # what moves on at once is known from where it goes
        if here.last >= here.first and fronts.origin[fronts.row[j, t] + end] == j:
            moving, spare = merge_position(moving, t, here, memory, spare)
    return moving, spare


@kernel
def _first_case(
    chain: RecursionArrays, fronts: WeakFrontPool, task: WeakTask, here: Buffer, spare: Buffer
) -> WeakDraft:
    """Return the front of keeping stage s on (s = t), or of moving the checkpoint on (s < t).

    `here` and `spare` are buffers to write to.
    """
    (s, t, end), cutoff, _ = task
    if s == t:
        kept = RunningMinimum(StepFunction(here[0], here[1], 0, -1, 0), spare)
        for o in range(chain.start[s], chain.start[s + 1]):
            if chain.end[o] <= end + 1:
                after, floor = _following(chain, fronts, o, end), chain.keep_floor[o, end]
                kept = merge_one(kept, after, chain.extra[o], floor, cutoff)
        lowest, spare = kept
        return WeakDraft(lowest, s, (lowest.memory, lowest.overhead), spare)
    shift = chain.activation[s + 1] - chain.activation[s]
    after = restricted(_front(chain, fronts, WeakState(s + 1, t, end), shift), cutoff)
    floor = chain.gradient[end + 1] + chain.transit[s, s]
    if after.first <= after.last and after.memory[after.first] + after.shift >= floor:
        origin = int(fronts.origin[fronts.row[s + 1, t] + end])
        return WeakDraft(after, origin, here, spare)
    lowest = front_from(after, floor, cutoff, here)
    return WeakDraft(lowest, s, (lowest.memory, lowest.overhead), spare)


@kernel
def _with_size(buffer: Buffer, size: int) -> Buffer:
    """Return `buffer`, or a larger one, with room for so many breakpoints."""
    return buffer if size <= len(buffer[0]) else new_buffer(2 * size)


@kernel
def _own_copy(lowest: StepFunction, here: Buffer) -> StepFunction:
    """Return a copy of a front, not shifted, in `here` or a larger buffer."""
    size = lowest.last - lowest.first + 1
    here = _with_size(here, size)
    here[0][:size] = lowest.memory[lowest.first : lowest.last + 1] + lowest.shift
    here[1][:size] = lowest.overhead[lowest.first : lowest.last + 1]
    return StepFunction(here[0], here[1], 0, size - 1, 0)


@kernel
def _restarts(
    chain: RecursionArrays,
    fronts: WeakFrontPool,
    task: WeakTask,
    moving: MovingFronts,
    draft: WeakDraft,
) -> WeakDraft:
    """Return the minimum of `draft` and ``R(s+1, k, l, ·) + W(s, t, k-1, ·)`` for all k."""
    (s, t, end), cutoff, moved = task
    lowest, origin, here, spare = draft
    floor = chain.gradient[end + 1] + chain.transit[s, s]
    least, best = fronts.least[fronts.row[s, t] :], fronts.best[fronts.row[s, t] :]
    for k in range(t + 1, end + 1):
        rerun = moved + chain.elapsed[k] - chain.elapsed[t]
        if rerun >= cutoff.overhead:
            break
        # cheap: nowhere does the sum exist and lie below all of `lowest`
        start = max(floor, least[k - 1], moving.least[k])
        lower = rerun + best[k - 1] + moving.best[k]
        if start > cutoff.memory or lower >= cutoff.overhead:
            continue
        if lower >= value_at(lowest, start, cutoff.overhead):
            continue
        earlier = _front(chain, fronts, WeakState(s, t, k - 1), 0)
        total = StepSum(earlier, front_of(moving, k), rerun)
        if origin > s:
            start = gain_within(lowest, total, start, cutoff)[0]
            if start < 0:
                continue
            lowest, origin = _own_copy(lowest, here), s
        lowest, spare = merge_sum(RunningMinimum(lowest, spare), total, start, cutoff)
        here = (lowest.memory, lowest.overhead)
    return WeakDraft(lowest, origin, here, spare)


@kernel
def _store(
    limit: PruningLimit, lines: NDArray[np.float64], draft: WeakDraft, s: int, pool: Pool
) -> tuple[Pool, int, int]:
    """Return the pool, where `draft` of stage s stands in it, and how many breakpoints it has."""
    if draft.origin > s:  # among the breakpoints of another state
        lowest = draft.lowest
        return pool, lowest.first, lowest.last - lowest.first + 1
    pool, size = store_useful(limit, lines, draft.lowest, pool)
    return pool, pool.used - size, size


@kernel
def fill_weak(by_kind: ArraysByKind, limit: PruningLimit, bound: MoveBound) -> WeakFrontPool:
    """Return the fronts of all W(s, t, l, ·) within the limit: l ascending, s descending."""
    n, again = len(by_kind.first.start) - 1, by_kind.again.elapsed
    least_rerun = np.minimum(np.diff(by_kind.first.elapsed), np.diff(again))
    row = _rows(n)
    count = row[n - 1, n - 1] + n
    first, sizes = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32)
    origin = np.zeros(count, dtype=np.int64)
    least, best = np.full(count, _INFINITE, dtype=np.int64), np.zeros(count, dtype=np.int64)
    pool = new_pool(_FIRST_CAPACITY)
    pool.memory[0], pool.overhead[0] = 0, 0
    pool = Pool(pool.memory, pool.overhead, 1)
    here, spare = new_buffer(_FIRST_CAPACITY), new_buffer(_FIRST_CAPACITY)
    rows = np.empty((n, 16), dtype=np.int64), np.empty((n, 16), dtype=np.int64)
    move_lines = np.zeros(limit.outside.shape[2])
    for end in range(n):
        chain = by_kind.first if end == n - 1 else by_kind.again
        moving, rerun = no_fronts(rows), 0
        for s in range(end, -1, -1):
            rerun += least_rerun[s]
            if end < n - 1 and rerun > limit.overhead:
                break
            fronts = WeakFrontPool(
                pool.memory, pool.overhead, row, first, sizes, origin, least, best
            )
            if s < end:
                position = (s + 1, end, limit.memory)
                moving, spare = _merge_positions(chain, fronts, position, moving, spare)
            for t in range(s, end + 1):
                state = WeakState(s, t, end)
                needed = _least_need(chain, state)
                if s == t:
                    lines = limit.outside[s, end]
                elif write_move_lines(chain, limit, bound, state, move_lines):
                    lines = move_lines
                else:
                    continue
                cutoff = cutoff_within(limit, lines, chain.least_input[s], needed)
                if cutoff.memory < needed or cutoff.overhead <= 0:
                    continue
                fronts = WeakFrontPool(
                    pool.memory, pool.overhead, row, first, sizes, origin, least, best
                )
                task = WeakTask(state, cutoff, again[t] - again[s])
                draft = _first_case(chain, fronts, task, here, spare)
                draft = _restarts(chain, fronts, task, moving, draft)
                pool, start, size = _store(limit, lines, draft, s, pool)
                here, spare, number = draft.here, draft.spare, row[s, t] + end
                first[number], sizes[number], origin[number] = start, size, draft.origin
                if size:
                    least[number] = pool.memory[start] + draft.lowest.shift
                    best[number] = pool.overhead[start + size - 1]
        rows = (moving.memory, moving.overhead)
    pool = Pool(pool.memory[: pool.used], pool.overhead[: pool.used], pool.used)
    return WeakFrontPool(pool.memory, pool.overhead, row, first, sizes, origin, least, best)


@kernel
def _choose_restart(
    chain: RecursionArrays, fronts: WeakFrontPool, state: WeakState, m: int, target: int
) -> tuple[int, int]:
    """Return the k and j of a restart that attains `target` ns, or `NO_DECISION` and 0."""
    s, t, end = state
    gradient = chain.gradient[end + 1]
    for k in range(t + 1, end + 1):
        rest = target - (chain.elapsed[k] - chain.elapsed[t])
        if rest < 0:
            break
        rest -= value_at(_front(chain, fronts, WeakState(s, t, k - 1), 0), m, target + 1)
        if rest < 0:
            continue
        for j in range(k, s, -1):
            if m >= gradient + chain.transit[s, j - 1]:
                later = _front(chain, fronts, WeakState(j, k, end), chain.activation[j])
                if value_at(later, m, -1) == rest:
                    return k, j
    return NO_DECISION, 0


@kernel
def choose_weak(
    by_kind: ArraysByKind, fronts: WeakFrontPool, state: WeakState, m: int
) -> tuple[int, int]:
    """Return the optimal decision for a state with `m` bytes.

    Returns:
        ``(k, j)`` for restarting at k with the moving checkpoint staying at j; or `KEEP`, less an
        option's number, or `MOVE`, and 0; or `NO_DECISION` and 0.
    """
    (s, t, end), again = state, by_kind.again.elapsed
    chain = by_kind.first if end == len(again) - 2 else by_kind.again
    target = value_at(_front(chain, fronts, state, 0), m, -1)
    if s == t:
        for o in range(chain.start[s], chain.start[s + 1]):
            if chain.end[o] <= end + 1 and m >= chain.keep_floor[o, end]:
                after = value_at(_following(chain, fronts, o, end), m, -1)
                if after >= 0 and after + chain.extra[o] == target:
                    return int(KEEP - chain.number[o]), 0
    gradient = chain.gradient[end + 1]
    if s < t and m >= gradient + chain.transit[s, s]:
        shift = chain.activation[s + 1] - chain.activation[s]
        if value_at(_front(chain, fronts, WeakState(s + 1, t, end), shift), m, -1) == target:
            return MOVE, 0
    return _choose_restart(chain, fronts, state, m, target - (again[t] - again[s]))
