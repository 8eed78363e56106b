"""The persistent recursion on step functions, in loops to be compiled."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import (
    PruningLimit,
    cutoff_within,
    root_multiplier,
    store_useful,
)
from chainstay.dp.bucketed_envelope import (
    bucketed_envelope,
    insert_sum,
    with_entries,
    write_envelope,
)
from chainstay.dp.chain.recursion_arrays import (
    ArraysByKind,
    ChainFrontPool,
    OptionArrays,
    RecursionArrays,
    SweepArrays,
    split_arrays,
)
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, NO_DECISION
from chainstay.dp.step_functions import (
    FIRST_CAPACITY,
    INFINITE,
    Cutoff,
    Pool,
    RunningMinimum,
    StepFunction,
    StepSum,
    merge_one,
    merge_sum,
    new_buffer,
    new_pool,
    value_at,
)

_LONG: Final = 16
"""Breakpoints from which on making a bucketed envelope is worth its time."""
_CROWD: Final = 16
"""Breakpoints in one bucket with which a bucketed envelope would be slow."""


class FrontEnds(NamedTuple):
    """The least that fronts cost: in bytes, in ns, and in both at a price of memory.

    Attributes:
        least: Shape (n, n), at [s, t]: the first memory, in bytes; `INFINITE` without breakpoints.
        best: Shape (n, n), at [s, t]: the last overhead, in ns.
        stored_least: Shape (n,), at [k]: bytes of k..t and, at least, of a restart at k
            together, for the t that is being computed.
        stored_best: Shape (n,), at [k]: ns of k..t.
        price: Ns per byte.
        priced: Shape (n + 1,), at [k]: the least of overhead and priced memory of k..t, in ns.
    """

    least: Array
    best: Array
    stored_least: Array
    stored_best: Array
    price: float
    priced: NDArray[np.float64]


class SubChain(NamedTuple):
    """A sub-chain whose front is being computed.

    Attributes:
        s: First stage.
        t: Last stage.
        cutoff: Breakpoints outside of it are of no use.
        most: Nor are those whose overhead and priced memory are more than that, in ns.
    """

    s: int
    t: int
    cutoff: Cutoff
    most: float


class SubChainTask(NamedTuple):
    """A sub-chain, and the limit on whole schedules."""

    part: SubChain
    limit: PruningLimit


@kernel
def _stored_at(activation: Array, fresh: Array, s: int, k: int) -> int:
    """Return the bytes that a restart at k stores besides ``a^s``."""
    return int(fresh[s, k] if len(fresh) else activation[k])


@kernel
def _front(fronts: ChainFrontPool, s: int, t: int, shift: int) -> StepFunction:
    """Return the front of stages s..t, moved right by `shift` bytes."""
    return StepFunction(
        fronts.memory, fronts.overhead, fronts.first[s, t], fronts.last[s, t], shift
    )


@kernel
def _restarts(
    chain: SweepArrays,
    fronts: ChainFrontPool,
    ends: FrontEnds,
    part: SubChain,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and all restarts of a sub-chain."""
    s, t, cutoff, most = part
    lowest, spare = minimum.lowest, minimum.spare
    least, best, transit = ends.least[s], ends.best[s], chain.transit[s]
    gradient, elapsed = chain.gradient[t + 1], chain.elapsed[s]
    for k in range(s + 1, t + 1):
        rerun = chain.elapsed[k] - elapsed
        if rerun >= cutoff.overhead:
            break
        # cheap: at this price of memory all of the sum costs too much
        if rerun + best[k - 1] + ends.priced[k] + ends.price * chain.activation[k] > most:
            continue
        # cheap: nowhere does the sum exist and lie below all of `lowest`
        floor = rerun + best[k - 1] + ends.stored_best[k]
        start = max(gradient + transit[k - 1], least[k - 1], ends.stored_least[k])
        if start > cutoff.memory or floor >= cutoff.overhead:
            continue
        if floor >= value_at(lowest, start, cutoff.overhead):
            continue
        stored = _stored_at(chain.activation, chain.fresh, s, k)
        total = StepSum(_front(fronts, s, k - 1, 0), _front(fronts, k, t, stored), rerun)
        start = max(start, ends.stored_least[k] - chain.activation[k] + stored)
        lowest, spare = merge_sum(RunningMinimum(lowest, spare), total, start, cutoff)
    return RunningMinimum(lowest, spare)


@kernel
def _bucketed_restarts(
    chain: SweepArrays,
    fronts: ChainFrontPool,
    ends: FrontEnds,
    task: SubChainTask,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return what `_restarts` returns, by a bucketed envelope.

    It is quicker for long fronts whose memories do not lie close together.
    """
    (s, t, cutoff, most), limit = task
    lowest, spare = minimum.lowest, minimum.spare
    envelope = bucketed_envelope(limit, limit.outside[s, t], lowest, cutoff, limit.least[s, t])
    used = lowest.last + 1
    if envelope.fullest > _CROWD:
        return _restarts(chain, fronts, ends, task.part, minimum)
    least, best, transit = ends.least[s], ends.best[s], chain.transit[s]
    gradient, elapsed = chain.gradient[t + 1], chain.elapsed[s]
    for k in range(s + 1, t + 1):
        rerun = chain.elapsed[k] - elapsed
        if rerun >= cutoff.overhead:
            break
        if rerun + best[k - 1] + ends.priced[k] + ends.price * chain.activation[k] > most:
            continue
        floor = rerun + best[k - 1] + ends.stored_best[k]
        start = max(gradient + transit[k - 1], least[k - 1], ends.stored_least[k], envelope.start)
        if start > cutoff.memory:
            continue
        if floor >= envelope.ceiling[(start - envelope.start) >> envelope.bits]:
            continue
        stored = _stored_at(chain.activation, chain.fresh, s, k)
        earlier, later = _front(fronts, s, k - 1, 0), _front(fronts, k, t, stored)
        start = max(start, ends.stored_least[k] - chain.activation[k] + stored)
        more = later.last - later.first + earlier.last - earlier.first + 3
        envelope = with_entries(envelope, used, more)
        total = StepSum(earlier, later, rerun)
        used = insert_sum(envelope, used, total, start, cutoff.memory)
    if used > len(spare[0]):
        spare = new_buffer(2 * used)
    size = write_envelope(envelope, spare)
    merged = StepFunction(spare[0], spare[1], 0, size - 1, 0)
    return RunningMinimum(merged, (lowest.memory, lowest.overhead))


@kernel
def _kept(
    options: OptionArrays,
    fronts: ChainFrontPool,
    ends: FrontEnds,
    part: SubChain,
    minimum: RunningMinimum,
) -> RunningMinimum:
    """Return the minimum of `minimum` and all options of the first stage of a sub-chain."""
    s, t, cutoff, most = part
    for o in range(options.start[s], options.start[s + 1]):
        end, saved, extra = options.end[o], options.saved[o], options.extra[o]
        if end <= t + 1 and ends.priced[end] + ends.price * saved + extra <= most:
            after = _front(fronts, end, t, saved)
            minimum = merge_one(minimum, after, extra, options.keep_floor[o, t], cutoff)
    return minimum


@kernel
def _least_priced(front: StepFunction, price: float) -> float:
    """Return the least of overhead and priced memory over all breakpoints, in ns."""
    least = np.inf
    for i in range(front.first, front.last + 1):
        least = min(least, front.overhead[i] + price * front.memory[i])
    return float(least)


@kernel
def _thinned(pool: Pool, size: int, width: int) -> tuple[Pool, int]:
    """Leave out breakpoints of the last `size` that spare less than `width` ns, but the last."""
    memory, overhead, used = pool
    kept = used - size
    for i in range(used - size + 1, used):
        if overhead[i] <= overhead[kept] - width or i == used - 1:
            kept += 1
            memory[kept], overhead[kept] = memory[i], overhead[i]
    if not size:
        return pool, 0
    return Pool(memory, overhead, kept + 1), size - (used - kept - 1)


@kernel
def fill_by_loops(by_kind: ArraysByKind, limit: PruningLimit, width: int) -> ChainFrontPool:
    """Return the fronts of all sub-chains within the limit.

    Last stages ascend; for each of them, first stages descend. With a `width`, breakpoints are left
    out so that the others differ by so many ns: what is left is attained, but may not be best.
    """
    n = len(by_kind.first.start) - 1
    priced_at = root_multiplier(limit)
    price = priced_at * limit.step
    pool = new_pool()
    here, spare = new_buffer(FIRST_CAPACITY), new_buffer(FIRST_CAPACITY)
    first, last = np.zeros((n + 1, n), dtype=np.int64), np.full((n + 1, n), -1, dtype=np.int64)
    least, best = np.full((n, n), INFINITE, dtype=np.int64), np.zeros((n, n), dtype=np.int64)
    for t in range(n):
        chain = by_kind.first if t == n - 1 else by_kind.again
        sweep, options = split_arrays(chain)
        stored_least = np.full(n, INFINITE, dtype=np.int64)
        priced = np.full(n + 1, np.inf)
        priced[t + 1] = 0
        ends = FrontEnds(least, best, stored_least, np.zeros(n, dtype=np.int64), price, priced)
        last[t + 1, t] = 0  # without stages: the first breakpoint of the pool
        for s in range(t, -1, -1):
            # what can be part of a good schedule
            lines, needed = limit.outside[s, t], limit.least[s, t]
            cutoff = cutoff_within(limit, lines, chain.least_input[s], needed)
            if cutoff.memory < needed or cutoff.overhead <= 0:
                continue
            # keep stage s, or restart it
            fronts = ChainFrontPool(pool.memory, pool.overhead, first, last)
            part = SubChain(s, t, cutoff, limit.overhead - lines[priced_at])
            nothing = RunningMinimum(StepFunction(here[0], here[1], 0, -1, 0), spare)
            o = options.start[s]
            if options.start[s + 1] == o + 1 and options.extra[o] == 0:  # quicker than the loop
                after = _front(fronts, options.end[o], t, options.saved[o])
                kept = merge_one(nothing, after, 0, options.keep_floor[o, t], cutoff)
            else:
                kept = _kept(options, fronts, ends, part, nothing)
            if kept.lowest.last >= _LONG:
                lowest, spare = _bucketed_restarts(
                    sweep, fronts, ends, SubChainTask(part, limit), kept
                )
            else:
                lowest, spare = _restarts(sweep, fronts, ends, part, kept)
            # store what can be part of a whole schedule
            pool, size = store_useful(limit, lines, lowest, pool)
            if width:
                pool, size = _thinned(pool, size, width)
            first[s, t], last[s, t] = pool.used - size, pool.used - 1
            if size:
                least[s, t], best[s, t] = pool.memory[first[s, t]], pool.overhead[last[s, t]]
                ends.stored_least[s] = least[s, t] + chain.activation[s]
                ends.stored_best[s] = best[s, t]
                stored = StepFunction(pool.memory, pool.overhead, first[s, t], last[s, t], 0)
                priced[s] = _least_priced(stored, price)
            here = (lowest.memory, lowest.overhead)
    used = pool.used
    return ChainFrontPool(pool.memory[:used], pool.overhead[:used], first, last)


@kernel
def choose(chain: RecursionArrays, fronts: ChainFrontPool, s: int, t: int, m: int) -> int:
    """Return the optimal decision for stages s..t with `m` bytes, or `NO_DECISION`.

    `chain` has the costs of forwards in sub-chains that end at stage t.
    """
    target = value_at(_front(fronts, s, t, 0), m, -1)
    for o in range(chain.start[s], chain.start[s + 1]):
        end, rest = chain.end[o], target - chain.extra[o]
        if end > t + 1 or rest < 0 or m < chain.keep_floor[o, t]:
            continue
        if value_at(_front(fronts, end, t, chain.saved[o]), m, -1) == rest:
            return int(KEEP - chain.number[o])
    for k in range(s + 1, t + 1):
        rest = target - (chain.elapsed[k] - chain.elapsed[s])
        if rest < 0:
            break
        if m < chain.gradient[t + 1] + chain.transit[s, k - 1]:
            continue
        earlier = value_at(_front(fronts, s, k - 1, 0), m, target + 1)
        if earlier <= rest:
            later = value_at(
                _front(fronts, k, t, _stored_at(chain.activation, chain.fresh, s, k)), m, target + 1
            )
            if earlier + later == rest:
                return k
    return NO_DECISION


@kernel
def choose_all(by_kind: ArraysByKind, fronts: ChainFrontPool, memory: int) -> Array:
    """Return all decisions of an optimal schedule with `memory` bytes.

    The shape is (decisions, 4): first stage, last stage, bytes, and what `choose` returns.
    """
    n, count, pending = len(by_kind.first.start) - 1, 0, 1
    chosen, parts = np.empty((2 * n, 4), dtype=np.int64), np.empty((2 * n, 3), dtype=np.int64)
    parts[0, 0], parts[0, 1], parts[0, 2] = 0, n - 1, memory
    while pending:
        pending -= 1
        s, t, m = parts[pending]
        chain = by_kind.first if t == n - 1 else by_kind.again
        k = choose(chain, fronts, s, t, m)
        if count == len(chosen):
            chosen = np.concatenate((chosen, np.empty_like(chosen)))
        chosen[count, 0], chosen[count, 1], chosen[count, 2], chosen[count, 3] = s, t, m, k
        count += 1
        if k == NO_DECISION:
            break
        if k > 0:
            parts[pending, 0], parts[pending, 1], parts[pending, 2] = s, k - 1, m
            pending += 1
            s, m = k, m - _stored_at(chain.activation, chain.fresh, s, k)
        else:
            o = chain.start[s]
            while chain.number[o] != KEEP - k:
                o += 1
            s, m = chain.end[o], m - chain.saved[o]
        if s <= t:
            parts[pending, 0], parts[pending, 1], parts[pending, 2] = s, t, m
            pending += 1
    return chosen[:count]
