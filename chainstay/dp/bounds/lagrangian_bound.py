"""A Lagrangian lower bound on the overhead around a sub-chain: memory at so many ns per byte.

A schedule pays with reruns for the memory it does not have. So a lower bound on overhead
needs no table over memory: for each multiplier ``0, step, 2 step …`` it is enough to know the
least ``overhead + multiplier * memory``, and these numbers obey short recursions: `_after` for the
first sweep from a stage to the loss, `_before` for what happens before a stage is reached,
`_outside` for all that is outside of a sub-chain. The proof is in
``docs/derivations/outside-bound.md``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import MULTIPLIER_COUNT, ROOT_MULTIPLIER
from chainstay.dp.bounds.knapsack_bound import KeepPrices, KeptCosts, maximiser, option_multiplier
from chainstay.dp.chain.recursion_arrays import ArraysByKind, RecursionArrays, has_options
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]

_MULTIPLIER_RANGE: Final = 8.0
SLACK_WITH_OPTIONS: Final = 2.0**-13
"""With options overheads are small, and the bound is within this share on many chains."""
_FINER_WITH_OPTIONS: Final = 2
"""With options there are so many multipliers for one: four times the time, half the breakpoints."""


class LagrangianBound:
    """The bounds of a `MultiplierBound` by a relaxed recurrence.

    Args:
        by_kind: Sizes in bytes, times in ns.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least.
        moves_checkpoints: Whether a checkpoint may move on while a later part runs, as in weakly
            persistent schedules.

    Attributes:
        restarted: Shape (n + 1, multipliers): at [k, i], at most the least, over m, of what stages
            k..n-1 cost after a restart at k with m bytes, plus ``i * step * m``, in ns.

    Complexity:
        O(n^2) time and memory for each pair of multipliers.
    """

    slack: float = 2.0**-11.5  # measured gaps: most between 2**-13 and 2**-9

    def __init__(
        self, by_kind: ArraysByKind, memory: int, least: Array, *, moves_checkpoints: bool = False
    ) -> None:
        first, again = by_kind
        self.memory, self.least = memory, least
        self.rerun_time = max(int(first.elapsed[-1]), int(again.elapsed[-1]))
        first_prices = KeepPrices(first, _priced_sizes(first), memory)
        again_prices = KeepPrices(again, again.saved, memory)

        def relaxed(step: float, count: int) -> _RelaxedChain:
            multipliers: _Floats = step * np.arange(count, dtype=np.float64)
            stored = _stored(again, multipliers, moves_checkpoints=moves_checkpoints)
            kept_first = first_prices.at(multipliers)
            kept_again = kept_first if first is again else again_prices.at(multipliers)
            spared = kept_again.spared(again.elapsed)
            return _RelaxedChain(step, memory, least, stored, spared, kept_first, kept_again)

        def root(step: float) -> float:
            total = _after(first.elapsed, relaxed(step, ROOT_MULTIPLIER + 1))
            return float(total[0, -1]) - ROOT_MULTIPLIER * step * memory

        # All memory at the usual price is worth less than all forwards: no sum below loses
        # more to rounding than `PruningLimit` covers.
        if has_options(by_kind):
            self.slack, finer = SLACK_WITH_OPTIONS, _FINER_WITH_OPTIONS
            usual = option_multiplier(by_kind, memory) / ROOT_MULTIPLIER
        else:
            saved, finer = int(again.saved.sum()), 1
            usual = max(1, self.rerun_time) / max(1, memory, saved) / ROOT_MULTIPLIER
        best = maximiser(root, usual / _MULTIPLIER_RANGE, usual * _MULTIPLIER_RANGE)
        self.step, count = best / finer, (MULTIPLIER_COUNT - 1) * finer + 1
        relaxed_chain = relaxed(self.step, count)
        after = _after(first.elapsed, relaxed_chain)
        self.root = float(np.max(after[0] - np.arange(count) * self.step * memory))
        self.restarted: _Floats = after + relaxed_chain.stored
        self.outside: _Floats = _outside(
            (first.elapsed, again.elapsed),
            relaxed_chain,
            _before(first.elapsed, relaxed_chain),
            self.restarted,
        )


class _RelaxedChain(NamedTuple):
    """A chain whose memory costs a multiplier per byte, for all multipliers.

    Attributes:
        step: Ns per byte between two multipliers.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least.
        stored: Shape (n + 1, multipliers), ns: at [k, i], least cost of what a restart at k stores.
        spared: Shape (n + 1, multipliers), ns: at [k, i], the sum over stages before k of what each
            costs at least in a sub-chain: its saved data, or its forward a second time.
        first: What it costs to keep stages in their first run; up to the loss, with all that the
            option needs then.
        again: What it costs to keep stages in a later run.
    """

    step: float
    memory: int
    least: Array
    stored: _Floats
    spared: _Floats
    first: KeptCosts
    again: KeptCosts


def _stored(chain: RecursionArrays, multipliers: _Floats, *, moves_checkpoints: bool) -> _Floats:
    stored = chain.activation[:, None] * multipliers
    if moves_checkpoints:  # an earlier activation may stand in, and then has to come here again
        for k, time in enumerate(np.diff(chain.elapsed), start=1):
            stored[k] = np.minimum(stored[k], stored[k - 1] + time)
    return stored


def _priced_sizes(chain: RecursionArrays) -> Array:
    """Return the bytes to be paid for with each option: up to the loss, all that it needs then."""
    return np.where(chain.end == len(chain.start) - 1, chain.keep_floor[:, -1], chain.saved)


@kernel
def _inside(relaxed: _RelaxedChain, s: int, t: int, i: int) -> float:
    """Return a bound, in ns, below ``O(s, t, m) + multiplier * m`` for every m."""
    knapsack = relaxed.spared[t + 1, i] - relaxed.spared[s, i]
    return float(max(knapsack, i * relaxed.step * relaxed.least[s, t]))


@kernel
def _keep_stages_from(s: int, kept: KeptCosts, cost: _Floats, keep: _Floats) -> None:
    """Write to `keep` the least of keeping stage s on, and then what ``cost[k]`` is from k on."""
    spans, time = kept
    keep[:] = np.inf
    for j in range(len(spans)):
        k = s + spans[j]
        if k < len(cost):
            for i in range(len(keep)):
                keep[i] = min(keep[i], cost[k, i] + time[j, s, i])


@kernel
def _keep_stages_before(
    part: tuple[int, int], kept: KeptCosts, cost: _Floats, keep: _Floats
) -> None:
    """Write to `keep` the least, over s, of ``cost[s, t]`` and keeping stages s..k-1 together.

    `part` is k and t.
    """
    (k, t), (spans, time) = part, kept
    keep[:] = np.inf
    for j in range(len(spans)):
        s = k - spans[j]
        if s >= 0:
            for i in range(len(keep)):
                keep[i] = min(keep[i], cost[s, t, i] + time[j, s, i])


@kernel
def _after(elapsed: Array, relaxed: _RelaxedChain) -> _Floats:
    """Return at [s, i] a bound, in ns, below ``O(s, n-1, m) + multiplier * m`` for every m.

    The shape is (n + 1, multipliers).
    """
    (n, count), step, stored = relaxed.stored.shape, relaxed.step, relaxed.stored
    n -= 1
    cost, keep = np.zeros((n + 1, count)), np.zeros(count)
    for s in range(n - 1, -1, -1):
        _keep_stages_from(s, relaxed.first, cost, keep)
        for i in range(count):
            best = keep[i]
            for k in range(s + 1, n):
                rerun = float(elapsed[k] - elapsed[s])
                rest = best - rerun
                if rest <= 0:
                    break
                # the price is shared by the two sub-chains, in the least favourable way
                value = max(cost[k, i] + stored[k, i], cost[k, 0] + _inside(relaxed, s, k - 1, i))
                for j in range(1, i):
                    if value >= rest:
                        break
                    later = cost[k, j] + stored[k, j]
                    value = max(value, later + _inside(relaxed, s, k - 1, i - j))
                best = min(best, rerun + value)
            cost[s, i] = best
        for i in range(1, count):  # no less memory than this: a bound on the slope
            cost[s, i] = max(cost[s, i], cost[s, i - 1] + step * relaxed.least[s, n - 1])
    return cost


@kernel
def _before(elapsed: Array, relaxed: _RelaxedChain) -> _Floats:
    """Return at [k, i] a bound below the overhead of stages before k + multiplier * what they hold.

    They hold ``M - m`` bytes when m are left besides the input of stage k. In ns; the shape is
    (n, multipliers).
    """
    (n, count), stored = relaxed.stored.shape, relaxed.stored
    n -= 1
    memory_cost = relaxed.step * relaxed.memory
    cost, keep = np.zeros((n, count)), np.zeros(count)
    for k in range(1, n):
        _keep_stages_before((k, 0), relaxed.first, cost.reshape(n, 1, count), keep)
        for i in range(count):
            best = keep[i]
            for s in range(k - 1, -1, -1):
                fixed = float(elapsed[k] - elapsed[s]) + stored[k, i]
                value = cost[s, i]
                if fixed >= best:
                    break
                for j in range(1, count - i):
                    if fixed + value >= best:
                        break
                    value = max(
                        value, cost[s, i + j] + _inside(relaxed, s, k - 1, j) - j * memory_cost
                    )
                best = min(best, fixed + value)
            cost[k, i] = best
    return cost


@kernel
def _outside(
    times: tuple[Array, Array], relaxed: _RelaxedChain, before: _Floats, restarted: _Floats
) -> _Floats:
    """Return the table `LagrangianBound.outside`."""
    (n, count), step, stored = relaxed.stored.shape, relaxed.step, relaxed.stored
    n -= 1
    first_elapsed, elapsed = times
    cost, keep = np.zeros((n, n, count)), np.zeros(count)
    passing = np.full((n, count), np.inf)  # at [t]: on the way to s, nothing kept since a restart
    for s in range(n):
        for i in range(count):
            cost[s, n - 1, i] = before[s, i] - i * step * relaxed.memory
        again = np.full(count, np.inf)  # least of s..T for T > t
        for t in range(n - 2, s - 1, -1):
            rerun = float(elapsed[t + 1] - elapsed[s])
            first_rerun = float(first_elapsed[t + 1] - first_elapsed[s])
            _keep_stages_before((s, t), relaxed.again, cost, keep)
            for i in range(count):
                best = -np.inf
                for j in range(count - i):
                    best = max(best, cost[s, n - 1, i + j] + restarted[t + 1, j])
                best += first_rerun
                if s > 0:
                    time = float(elapsed[s] - elapsed[s - 1])
                    passing[t, i] = min(passing[t, i], cost[s - 1, t, i]) + time
                    best = min(best, keep[i], passing[t, i] + stored[s, i])
                cost[s, t, i] = min(best, again[i] + rerun)
                again[i] = min(again[i], best)
    return cost
