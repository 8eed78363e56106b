"""The weakly persistent program for free discards: its inner loops, compiled with numba.

The recurrence stands in `solver`. The fronts of all states stand in one pool; those of one (s, t)
that are alike in held and left stand side by side, ends ascending.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit, cutoff_within, store_useful
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, Array
from chainstay.dp.step_functions import (
    Buffer,
    Cutoff,
    Pool,
    RunningMinimum,
    StepFunction,
    StepSum,
    merge_shifted,
    merge_sum,
    new_buffer,
    value_at,
)
from chainstay.dp.weak.moving_checkpoint import (
    MovingFronts,
    front_of,
    merge_position,
    no_fronts,
)

__all__ = [
    "MOVE",
    "RECORD_AND_DROP",
    "RESTART",
    "WeakFreeDiscardsChain",
    "WeakFreeDiscardsFrontPool",
    "WeakFreeDiscardsState",
    "choose",
    "fill",
]

MOVE: Final = -3
"""The decision to run stage s and drop its input."""
RECORD_AND_DROP: Final = -4
"""The decision to record stage s and drop its input."""
RESTART: Final = -5
"""The decision to keep the input of stage s and start there again later."""

_NO_DECISION: Final = -2
_INFINITE: Final = 2**61
_FIRST_CAPACITY: Final = 1024


class WeakFreeDiscardsState(NamedTuple):
    """A sub-chain: from a^s, δ^{end+1} and, if `held`, ā_end to δ^t and, if `left`, ā_{t-1}."""

    s: int
    t: int
    end: int
    held: int
    left: int


class WeakFreeDiscardsChain(NamedTuple):
    """A chain without skips.

    Attributes:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        activation: Shape (n + 1,), bytes of ``a^s``.
        saved: Shape (n,), bytes of ``ā_s``.
        transit: Shape (n, n), at [s, k-1]: bytes that running ``s..k-1`` needs besides ``δ``.
        record: Shape (n,), bytes: recording a stage, its saved data included.
        backward: Shape (n,), bytes: its backward, with its saved data and both gradients.
        besides: Shape (2, n), at [held, end], bytes that are there while forwards run: δ^{end+1}
            and, if held, ā_end.
    """

    elapsed: Array
    activation: Array
    saved: Array
    transit: Array
    record: Array
    backward: Array
    besides: Array


class WeakFreeDiscardsFrontPool(NamedTuple):
    """Fronts of all states, in one pool of breakpoints.

    Attributes:
        memory: Bytes of all breakpoints of all fronts.
        overhead: Ns of all breakpoints of all fronts.
        row: Shape (n, n + 1): where the fronts of (s, t) start, less their first end.
        first: Shape (4 fronts,): index of a front's first breakpoint.
        size: Shape (4 fronts,): how many breakpoints it has.
        least: Shape (4 fronts,): bytes of its first, `_INFINITE` without breakpoints.
        best: Shape (4 fronts,): ns of its last.
    """

    memory: Array
    overhead: Array
    row: Array
    first: Array
    size: Array
    least: Array
    best: Array


class WeakFreeDiscardsTask(NamedTuple):
    """A state whose front is being computed, and the limits outside of which it is of no use."""

    state: WeakFreeDiscardsState
    cutoff: Cutoff


@kernel
def _no_fronts_yet(n: int) -> WeakFreeDiscardsFrontPool:
    """Return the pool of a chain of `n` stages without any breakpoint."""
    row, fronts = np.zeros((n, n + 1), dtype=np.int64), 0
    for s in range(n):
        for t in range(s, n + 1):
            least_end = max(s, t - 1)
            row[s, t] = fronts - least_end
            fronts += n - least_end
    pool = new_buffer(_FIRST_CAPACITY)
    return WeakFreeDiscardsFrontPool(
        pool[0],
        pool[1],
        row,
        np.zeros(4 * fronts, dtype=np.int64),
        np.zeros(4 * fronts, dtype=np.int64),
        np.full(4 * fronts, _INFINITE, dtype=np.int64),
        np.zeros(4 * fronts, dtype=np.int64),
    )


@kernel
def _number(fronts: WeakFreeDiscardsFrontPool, state: WeakFreeDiscardsState) -> int:
    """Return the number of a state's front."""
    count = len(fronts.first) // 4
    return int(fronts.row[state.s, state.t] + state.end + (2 * state.held + state.left) * count)


@kernel
def _front(
    fronts: WeakFreeDiscardsFrontPool, state: WeakFreeDiscardsState, shift: int
) -> StepFunction:
    """Return the front of a state, moved right by `shift` bytes."""
    number = _number(fronts, state)
    first = fronts.first[number]
    last = first + fronts.size[number] - 1
    return StepFunction(fronts.memory, fronts.overhead, first, last, shift)


@kernel
def _merge_positions(
    chain: WeakFreeDiscardsChain,
    fronts: WeakFreeDiscardsFrontPool,
    position: tuple[int, int, int, int],
    moving: MovingFronts,
    spare: Buffer,
) -> tuple[MovingFronts, Buffer]:
    """Compute R(j, ·) from R(j+1, ·): the moving checkpoint stays at j or moves on.

    Args:
        chain: The chain.
        fronts: Has the fronts of all states from j to this end.
        position: The position j, the end, whether the end's saved data are held, and the largest
            useful number of bytes.
        moving: The fronts of position j + 1.
        spare: A buffer to write to.
    """
    j, end, held, memory = position
    floor = chain.besides[held, end] + chain.transit[j, j] + chain.activation[j]
    for left in range(2):
        for k in range(j + left, end + 1 + left * (1 - held)):
            index = 2 * k + left
            moving.least[index] = max(moving.least[index], floor)
            at = WeakFreeDiscardsState(j, k, end, held, left)
            here = _front(fronts, at, chain.activation[j])
            if here.last >= here.first:
                moving, spare = merge_position(moving, index, here, memory, spare)
    return moving, spare


@kernel
def _first_step(chain: WeakFreeDiscardsChain, state: WeakFreeDiscardsState) -> tuple[int, int, int]:
    """Return the decision that runs stage s only once, the bytes it needs, and those it takes."""
    s, t, end, held, left = state
    besides = chain.besides[held, end]
    if s == t:
        if held and s == end:
            return KEEP, chain.backward[s], 0
        return KEEP, max(besides + chain.record[s], chain.backward[s]), chain.saved[s]
    if left and t == s + 1:
        taken = chain.saved[s] - chain.activation[s]
        return RECORD_AND_DROP, besides + chain.record[s], taken
    return MOVE, besides + chain.transit[s, s], chain.activation[s + 1] - chain.activation[s]


@kernel
def _after(state: WeakFreeDiscardsState, decision: int) -> WeakFreeDiscardsState:
    """Return the state that is left to solve after the first step."""
    s, t, end, held, left = state
    if decision == MOVE:
        return WeakFreeDiscardsState(s + 1, t, end, held, left)
    return WeakFreeDiscardsState(s + 1, s + 1, end, held, 0)


@kernel
def _first_case(
    chain: WeakFreeDiscardsChain,
    fronts: WeakFreeDiscardsFrontPool,
    task: WeakFreeDiscardsTask,
    here: Buffer,
) -> StepFunction:
    """Return the front of keeping or recording stage s, or of moving the checkpoint to s+1.

    `here` is a buffer to write to; a larger one is made if needed.
    """
    state, cutoff = task
    decision, floor, size = _first_step(chain, state)
    if state.s == state.end:
        here[0][0], here[1][0] = floor, 0
        return StepFunction(here[0], here[1], 0, 0, 0)
    after = _front(fronts, _after(state, decision), size)
    if after.last - after.first >= len(here[0]):
        here = new_buffer(2 * (after.last - after.first + 1))
    nothing = StepFunction(here[0], here[1], 0, -1, 0)
    count = merge_shifted(nothing, after, floor, cutoff, here)
    return StepFunction(here[0], here[1], 0, count - 1, 0)


@kernel
def _restarts(
    chain: WeakFreeDiscardsChain,
    fronts: WeakFreeDiscardsFrontPool,
    task: WeakFreeDiscardsTask,
    moving: MovingFronts,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and all restarts.

    Args:
        chain: The chain.
        fronts: Has all fronts of parts of this state.
        task: The state and its cutoff.
        moving: The fronts R for position s + 1.
        minimum: The front of the state without restarts.
    """
    (s, t, end, held, left), cutoff = task
    lowest, spare = minimum.lowest, minimum.spare
    floor = chain.besides[held, end] + chain.transit[s, s]
    for is_left in range(2):
        first = max(t + 1, s + 1 + is_left)
        number = _number(fronts, WeakFreeDiscardsState(s, t, first - 1, is_left, left)) - first
        for k in range(first, end + 1 + is_left * (1 - held)):
            rerun = chain.elapsed[k - is_left] - chain.elapsed[s]
            if rerun >= cutoff.overhead:
                break
            # cheap: nowhere does the sum exist and lie below all of `lowest`
            index = 2 * k + is_left
            start = max(floor, fronts.least[number + k], moving.least[index])
            lower = rerun + fronts.best[number + k] + moving.best[index]
            if start > cutoff.memory or lower >= cutoff.overhead:
                continue
            if lower >= value_at(lowest, start, cutoff.overhead):
                continue
            earlier = _front(fronts, WeakFreeDiscardsState(s, t, k - 1, is_left, left), 0)
            total = StepSum(earlier, front_of(moving, index), rerun)
            lowest, spare = merge_sum(RunningMinimum(lowest, spare), total, start, cutoff)
    return RunningMinimum(lowest, spare)


@kernel
def _lines(
    chain: WeakFreeDiscardsChain, limit: PruningLimit, state: WeakFreeDiscardsState
) -> NDArray[np.float64]:
    """Return what is spent outside, in ns, one entry for each multiplier.

    Stages s..t-1 but the one left have their own ``Fa`` to come; held saved data are outside, as
    their stage may have run only once.
    """
    stop = state.end + 1 - state.held
    besides = chain.elapsed[state.t - state.left] - chain.elapsed[state.s]
    lines: NDArray[np.float64] = limit.outside[state.s, stop] + float(besides)
    return lines


@kernel
def _store(
    limit: PruningLimit,
    lines: NDArray[np.float64],
    fronts: WeakFreeDiscardsFrontPool,
    number: int,
    added: tuple[StepFunction, int],
) -> tuple[WeakFreeDiscardsFrontPool, int]:
    """Store what can be part of a whole schedule.

    Args:
        limit: The limit on whole schedules.
        lines: The lines, as for `cutoff_within`.
        fronts: All fronts so far.
        number: The number of the new front.
        added: The new front, and how many breakpoints there are so far.

    Returns:
        All fronts, and how many breakpoints there are now.
    """
    lowest, used = added
    pool, size = store_useful(limit, lines, lowest, Pool(fronts.memory, fronts.overhead, used))
    fronts.first[number], fronts.size[number] = used, size
    if size:
        fronts.least[number] = pool.memory[used]
        fronts.best[number] = pool.overhead[pool.used - 1]
    kept = WeakFreeDiscardsFrontPool(
        pool.memory,
        pool.overhead,
        fronts.row,
        fronts.first,
        fronts.size,
        fronts.least,
        fronts.best,
    )
    return kept, pool.used


@kernel
def fill(chain: WeakFreeDiscardsChain, limit: PruningLimit) -> WeakFreeDiscardsFrontPool:
    """Return the fronts of all states within the limit.

    Last stages ascend; for each of them, held comes first, and first stages descend.

    Args:
        chain: The chain.
        limit: What prunes; its `outside` has shape (n + 1, n + 1, multipliers), at [s, l + 1] what
            is spent outside of stages s..l.
    """
    n = len(chain.saved)
    fronts, used = _no_fronts_yet(n), 0
    here, spare = new_buffer(_FIRST_CAPACITY), new_buffer(_FIRST_CAPACITY)
    rows = np.empty((2 * n + 2, 16), dtype=np.int64), np.empty((2 * n + 2, 16), dtype=np.int64)
    for end in range(n):
        for held in range(1, -1, -1):
            moving, needed = no_fronts(rows), chain.besides[held, end]
            for s in range(end, -1, -1):
                if limit.outside[s, end + 1 - held, 0] > limit.overhead:
                    break
                if s < end:
                    position = (s + 1, end, held, limit.memory)
                    moving, spare = _merge_positions(chain, fronts, position, moving, spare)
                least_input = min(chain.activation[s], chain.saved[s - 1]) if s > 0 else 0
                for left in range(2):
                    for t in range(s + left, end + 1 + left * (1 - held)):
                        state = WeakFreeDiscardsState(s, t, end, held, left)
                        lines = _lines(chain, limit, state)
                        cutoff = cutoff_within(limit, lines, least_input, needed)
                        if cutoff.memory < needed or cutoff.overhead <= 0:
                            break
                        task = WeakFreeDiscardsTask(state, cutoff)
                        first = RunningMinimum(_first_case(chain, fronts, task, here), spare)
                        lowest, spare = _restarts(chain, fronts, task, moving, first)
                        number = _number(fronts, state)
                        fronts, used = _store(limit, lines, fronts, number, (lowest, used))
                        here = (lowest.memory, lowest.overhead)
            rows = (moving.memory, moving.overhead)
    return fronts


@kernel
def _choose_restart(
    chain: WeakFreeDiscardsChain,
    fronts: WeakFreeDiscardsFrontPool,
    state: WeakFreeDiscardsState,
    m: int,
    target: int,
) -> tuple[int, int, int, int]:
    """Return what `choose` returns for a restart that attains `target` ns."""
    s, t, end, held, left = state
    besides = chain.besides[held, end]
    for is_left in range(2):
        for k in range(max(t + 1, s + 1 + is_left), end + 1 + is_left * (1 - held)):
            rest = target - (chain.elapsed[k - is_left] - chain.elapsed[s])
            if rest < 0:
                break
            earlier = _front(fronts, WeakFreeDiscardsState(s, t, k - 1, is_left, left), 0)
            rest -= value_at(earlier, m, target + 1)
            if rest < 0:
                continue
            for j in range(k - is_left, s, -1):
                if m >= besides + chain.transit[s, j - 1]:
                    later = WeakFreeDiscardsState(j, k, end, held, is_left)
                    if value_at(_front(fronts, later, chain.activation[j]), m, -1) == rest:
                        return RESTART, k, j, is_left
    return _NO_DECISION, 0, 0, 0


@kernel
def choose(
    chain: WeakFreeDiscardsChain,
    fronts: WeakFreeDiscardsFrontPool,
    state: WeakFreeDiscardsState,
    m: int,
) -> tuple[int, int, int, int]:
    """Return the optimal decision with `m` bytes.

    Returns:
        `KEEP`, `MOVE` or `RECORD_AND_DROP`, and zeros; or `RESTART`, the stage k down to which
        the first part goes, the stage j at which its moving checkpoint stays, and whether it
        leaves the saved data of stage k - 1. -2 where there is no decision.
    """
    target = value_at(_front(fronts, state, 0), m, -1)
    decision, floor, size = _first_step(chain, state)
    if m >= floor:
        after = 0
        if state.s < state.end:
            after = value_at(_front(fronts, _after(state, decision), size), m, -1)
        if after == target:
            return decision, 0, 0, 0
    return _choose_restart(chain, fronts, state, m, target)
