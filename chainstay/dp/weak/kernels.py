"""The weakly persistent program's inner loops, compiled where numba is installed.

The recurrence stands in `solver`. Fronts of ``W(s, t, l, ·)`` for all s <= t <= l stand in one
pool; ``row[s, t] + l`` is the number of the front. In the code, l is called `end`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit, cutoff_within, store_useful
from chainstay.dp.chain.recursion_arrays import (
    ArraysByKind,
    OptionArrays,
    SweepArrays,
    split_arrays,
)
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, NO_DECISION
from chainstay.dp.step_functions import (
    FIRST_CAPACITY,
    INFINITE,
    Buffer,
    Cutoff,
    Pool,
    RunningMinimum,
    StepFunction,
    StepSum,
    gain_within,
    merge_one,
    merge_sum,
    new_buffer,
    new_pool,
    restricted,
    value_at,
)
from chainstay.dp.weak.least_memory import front_numbers
from chainstay.dp.weak.move_bound import MoveBound, WeakState, write_move_lines
from chainstay.dp.weak.moving_checkpoint import MovingFronts, front_of, merge_position, no_fronts

__all__ = ["MOVE", "WeakFrontPool", "WeakState", "choose_weak", "fill_weak"]

MOVE: Final = -(2**31)
"""The decision to run stage s and drop its input; none that keeps a stage is as low."""


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
        least: Shape (fronts,): bytes of the first breakpoint, `INFINITE` without breakpoints.
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
def _front(chain: SweepArrays, fronts: WeakFrontPool, state: WeakState, shift: int) -> StepFunction:
    """Return the front of a state, moved right by `shift` bytes."""
    number = fronts.row[state.s, state.t] + state.end
    first = fronts.first[number]
    last = first + fronts.size[number] - 1
    shift += chain.activation[fronts.origin[number]] - chain.activation[state.s]
    return StepFunction(fronts.memory, fronts.overhead, first, last, shift)


@kernel
def _following(
    chain: SweepArrays, options: OptionArrays, fronts: WeakFrontPool, o: int, end: int
) -> StepFunction:
    """Return the front of what follows option o, beside what it saves; 0 ns if nothing is left."""
    k = options.end[o]
    if k > end:
        return StepFunction(fronts.memory, fronts.overhead, 0, 0, options.saved[o])
    return _front(chain, fronts, WeakState(k, k, end), options.saved[o])


@kernel
def _merge_positions(
    chain: SweepArrays,
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
def _least_floor(options: OptionArrays, s: int, end: int) -> int:
    """Return the least bytes for keeping stage s under any option."""
    floor = INFINITE
    for o in range(options.start[s], options.start[s + 1]):
        if options.end[o] <= end + 1:
            floor = min(floor, options.keep_floor[o, end])
    return int(floor)


@kernel
def _kept(
    chain: SweepArrays,
    options: OptionArrays,
    fronts: WeakFrontPool,
    task: WeakTask,
    minimum: RunningMinimum,
) -> WeakDraft:
    """Return the minimum of `minimum` and all options of stage s, where s = t."""
    s, _, end = task.state
    for o in range(options.start[s], options.start[s + 1]):
        if options.end[o] <= end + 1:
            after, floor = _following(chain, options, fronts, o, end), options.keep_floor[o, end]
            minimum = merge_one(minimum, after, options.extra[o], floor, task.cutoff)
    lowest, spare = minimum
    return WeakDraft(lowest, s, (lowest.memory, lowest.overhead), spare)


@kernel
def _moved_on(
    chain: SweepArrays, fronts: WeakFrontPool, task: WeakTask, nothing: RunningMinimum
) -> WeakDraft:
    """Return the front of moving the checkpoint on, where s < t; `nothing` has the buffers."""
    (s, t, end), cutoff, _ = task
    shift = chain.activation[s + 1] - chain.activation[s]
    after = restricted(_front(chain, fronts, WeakState(s + 1, t, end), shift), cutoff)
    floor = chain.gradient[end + 1] + chain.transit[s, s]
    lowest, spare = nothing
    if after.first <= after.last and after.memory[after.first] + after.shift >= floor:
        origin = int(fronts.origin[fronts.row[s + 1, t] + end])
        return WeakDraft(after, origin, (lowest.memory, lowest.overhead), spare)
    lowest, spare = merge_one(nothing, after, 0, floor, cutoff)
    return WeakDraft(lowest, s, (lowest.memory, lowest.overhead), spare)


@kernel
def _first_start(rerun: Array, end: int, limit: float) -> int:
    """Return the first stage from which a sub-chain to `end` is run again within the limit.

    `rerun` has the least times of stages in ns; a sub-chain to the loss need not run again.
    """
    s = 0 if end == len(rerun) - 1 else end + 1
    while s > 0 and rerun[s - 1] <= limit:
        s, limit = s - 1, limit - rerun[s - 1]
    return s


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
    chain: SweepArrays,
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
    rerun = np.minimum(np.diff(by_kind.first.elapsed), np.diff(again))
    row = front_numbers(n)
    count = row[n - 1, n - 1] + n
    first, sizes = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int32)
    origin = np.zeros(count, dtype=np.int64)
    least, best = np.full(count, INFINITE, dtype=np.int64), np.zeros(count, dtype=np.int64)
    pool = new_pool()
    here, spare = new_buffer(FIRST_CAPACITY), new_buffer(FIRST_CAPACITY)
    rows = np.empty((n, 16), dtype=np.int64), np.empty((n, 16), dtype=np.int64)
    move_lines = np.zeros(limit.outside.shape[2])
    for end in range(n):
        arrays = by_kind.first if end == n - 1 else by_kind.again
        chain, options = split_arrays(arrays)
        moving = no_fronts(rows)
        for s in range(end, _first_start(rerun, end, limit.overhead) - 1, -1):
            fronts = WeakFrontPool(
                pool.memory, pool.overhead, row, first, sizes, origin, least, best
            )
            if s < end:
                position = (s + 1, end, limit.memory)
                moving, spare = _merge_positions(chain, fronts, position, moving, spare)
            for t in range(s, end + 1):
                state = WeakState(s, t, end)
                needed = chain.gradient[end + 1] + chain.transit[s, s]
                if s == t:
                    needed = min(needed, _least_floor(options, s, end))
                    lines = limit.outside[s, end]
                elif write_move_lines(chain, limit, bound, state, move_lines):
                    lines = move_lines
                else:
                    continue
                cutoff = cutoff_within(limit, lines, arrays.least_input[s], needed)
                if cutoff.memory < needed or cutoff.overhead <= 0:
                    continue
                fronts = WeakFrontPool(
                    pool.memory, pool.overhead, row, first, sizes, origin, least, best
                )
                task = WeakTask(state, cutoff, again[t] - again[s])
                nothing = RunningMinimum(StepFunction(here[0], here[1], 0, -1, 0), spare)
                if s == t:
                    draft = _kept(chain, options, fronts, task, nothing)
                else:
                    draft = _moved_on(chain, fronts, task, nothing)
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
    chain: SweepArrays, fronts: WeakFrontPool, state: WeakState, m: int, target: int
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
    arrays: tuple[SweepArrays, OptionArrays],
    fronts: WeakFrontPool,
    state: WeakState,
    m: int,
    moved: int,
) -> tuple[int, int]:
    """Return the optimal decision for a state with `m` bytes; `moved` is that of `WeakTask`.

    Returns:
        ``(k, j)`` for restarting at k with the moving checkpoint staying at j; or ``KEEP - o`` for
        keeping stages under option o of the arrays, or `MOVE`, and 0; or `NO_DECISION` and 0.
    """
    (s, t, end), (chain, options) = state, arrays
    target = value_at(_front(chain, fronts, state, 0), m, -1)
    if s == t:
        for o in range(options.start[s], options.start[s + 1]):
            if options.end[o] <= end + 1 and m >= options.keep_floor[o, end]:
                after = value_at(_following(chain, options, fronts, o, end), m, -1)
                if after >= 0 and after + options.extra[o] == target:
                    return KEEP - o, 0
    elif m >= chain.gradient[end + 1] + chain.transit[s, s]:
        shift = chain.activation[s + 1] - chain.activation[s]
        if value_at(_front(chain, fronts, WeakState(s + 1, t, end), shift), m, -1) == target:
            return MOVE, 0
    return _choose_restart(chain, fronts, state, m, target - moved)
