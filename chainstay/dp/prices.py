"""What the surroundings of a sub-chain must cost, with memory at a price per byte.

A schedule pays with reruns for the memory it does not have. So a lower bound on overhead
needs no table over memory: for each price of a ladder ``0, step, 2 step …`` it is enough to
know the least ``overhead + price * memory``, and these numbers obey short recursions:
`after` for the first sweep from a stage to the loss, `before` for what happens before a
stage is reached, `around` for all that is outside of a sub-chain. The proof is in
``docs/derivations/outside-bound.md``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel
from chainstay.dp.pruning import Chain
from chainstay.dp.recursion import Array

__all__ = ["PriceBound"]

_Floats = NDArray[np.float64]

_RUNGS: Final = 17
_ROOT_RUNG: Final = 12  # the price of memory at the root; deeper down it may be higher
_PRICE_RANGE: Final = 8.0
_SEARCH_STEPS: Final = 12


class PriceBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        chain: In bytes and ns.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: no schedule runs stages s..t in less.
        is_floating: Whether activations may move on while a later part runs, as in weakly
            persistent schedules.

    Attributes:
        memory: As given.
        least: As given.
        rerun_time: Every forward once, ns.
        root: Lower bound on the overhead of any schedule, ns.
        step: Between two prices, ns per byte.
        restarted: Shape (n + 1, prices): at [k, i], at most the least, over m, of what stages
            k..n-1 cost after a restart at k with m bytes, plus ``i * step * m``.
        around: Shape (n, n, prices): at [s, t, i], what a schedule spends outside of
            ``O(s, t, m)`` is at least ``around[s, t, i] + i * step * m``.

    Complexity:
        O(n^2) time and memory for each pair of prices.
    """

    def __init__(
        self, chain: Chain, memory: int, least: Array, *, is_floating: bool = False
    ) -> None:
        self.memory, self.least = memory, least
        self.rerun_time = int(chain.elapsed[-1])

        def priced(step: float, rungs: int) -> _Priced:
            prices: _Floats = step * np.arange(rungs, dtype=np.float64)
            stored = _stored(chain, prices, is_floating=is_floating)
            return _Priced(step, memory, least, stored, _spared(chain, prices))

        def root(step: float) -> float:
            total = _after(chain, priced(step, _ROOT_RUNG + 1))
            return float(total[0, -1]) - _ROOT_RUNG * step * memory

        # All memory at the usual price is worth less than all forwards: no sum below loses
        # more to rounding than `PricedLimit` covers.
        usual = max(1, self.rerun_time) / max(1, memory, int(chain.saved.sum())) / _ROOT_RUNG
        self.step = _peak(root, usual / _PRICE_RANGE, usual * _PRICE_RANGE)
        ladder = priced(self.step, _RUNGS)
        after = _after(chain, ladder)
        self.root = float(np.max(after[0] - np.arange(_RUNGS) * self.step * memory))
        self.restarted: _Floats = after + ladder.stored
        self.around: _Floats = _around(chain, ladder, _before(chain, ladder), self.restarted)


class _Priced(NamedTuple):
    """A chain with memory at each price of a ladder.

    Attributes:
        step: Between two prices, ns per byte.
        memory: As in `PriceBound`.
        least: As in `PriceBound`.
        stored: Shape (n + 1, prices), at [k, i]: least price of what restarting at k stores.
        spared: Shape (n + 1, prices): at [k, i], the sum over stages before k of what each
            costs at least in a sub-chain: its saved data, or its forward a second time.
    """

    step: float
    memory: int
    least: Array
    stored: _Floats
    spared: _Floats


def _stored(chain: Chain, prices: _Floats, *, is_floating: bool) -> _Floats:
    stored = chain.activation[:, None] * prices
    if is_floating:  # an earlier activation may stand in, and then has to come here again
        for k, time in enumerate(np.diff(chain.elapsed), start=1):
            stored[k] = np.minimum(stored[k], stored[k - 1] + time)
    return stored


def _spared(chain: Chain, prices: _Floats) -> _Floats:
    cheaper = np.minimum(np.diff(chain.elapsed)[:, None], chain.saved[:, None] * prices)
    return np.concatenate([np.zeros((1, len(prices))), np.cumsum(cheaper, axis=0)])


@kernel
def _inside(priced: _Priced, s: int, t: int, i: int) -> float:
    """At most the least ``O(s, t, m) + price * m`` over m."""
    knapsack = priced.spared[t + 1, i] - priced.spared[s, i]
    return float(max(knapsack, i * priced.step * priced.least[s, t]))


@kernel
def _after(chain: Chain, priced: _Priced) -> _Floats:
    """At [s, i]: at most the least ``O(s, n-1, m) + price * m`` over m; shape (n + 1, prices)."""
    n, rungs, step, stored = len(chain.saved), priced.stored.shape[1], priced.step, priced.stored
    cost = np.zeros((n + 1, rungs))
    for s in range(n - 1, -1, -1):
        for i in range(rungs):
            if s == n - 1:
                best = i * step * chain.keep_floor[s, s]
            else:
                best = cost[s + 1, i] + i * step * chain.saved[s]
            for k in range(s + 1, n):
                rerun = float(chain.elapsed[k] - chain.elapsed[s])
                rest = best - rerun
                if rest <= 0:
                    break
                # the price is shared by the two sub-chains, in the least favourable way
                value = max(cost[k, i] + stored[k, i], cost[k, 0] + _inside(priced, s, k - 1, i))
                for j in range(1, i):
                    if value >= rest:
                        break
                    later = cost[k, j] + stored[k, j]
                    value = max(value, later + _inside(priced, s, k - 1, i - j))
                best = min(best, rerun + value)
            cost[s, i] = best
        for i in range(1, rungs):  # no less memory than this: a bound on the slope
            cost[s, i] = max(cost[s, i], cost[s, i - 1] + step * priced.least[s, n - 1])
    return cost


@kernel
def _before(chain: Chain, priced: _Priced) -> _Floats:
    """At [k, i]: at most the least overhead of stages before k + price * (what they hold).

    They hold ``M - m`` bytes when m are left besides the input of stage k. Shape (n, prices).
    """
    n, rungs, stored = len(chain.saved), priced.stored.shape[1], priced.stored
    rent = priced.step * priced.memory
    cost = np.zeros((n, rungs))
    for k in range(1, n):
        for i in range(rungs):
            best = cost[k - 1, i] + i * priced.step * chain.saved[k - 1]
            for s in range(k - 1, -1, -1):
                fixed = float(chain.elapsed[k] - chain.elapsed[s]) + stored[k, i]
                value = cost[s, i]
                if fixed >= best:
                    break
                for j in range(1, rungs - i):
                    if fixed + value >= best:
                        break
                    value = max(value, cost[s, i + j] + _inside(priced, s, k - 1, j) - j * rent)
                best = min(best, fixed + value)
            cost[k, i] = best
    return cost


@kernel
def _around(chain: Chain, priced: _Priced, before: _Floats, restarted: _Floats) -> _Floats:
    """The table `PriceBound.around`."""
    n, rungs, step, stored = len(chain.saved), priced.stored.shape[1], priced.step, priced.stored
    cost = np.zeros((n, n, rungs))
    passing = np.full((n, rungs), np.inf)  # at [t]: on the way to s, nothing kept since a restart
    for s in range(n):
        for i in range(rungs):
            cost[s, n - 1, i] = before[s, i] - i * step * priced.memory
        again = np.full(rungs, np.inf)  # least of s..T for T > t
        for t in range(n - 2, s - 1, -1):
            rerun = float(chain.elapsed[t + 1] - chain.elapsed[s])
            for i in range(rungs):
                best = -np.inf
                for j in range(rungs - i):
                    best = max(best, cost[s, n - 1, i + j] + restarted[t + 1, j])
                best += rerun
                if s > 0:
                    time = float(chain.elapsed[s] - chain.elapsed[s - 1])
                    passing[t, i] = min(passing[t, i], cost[s - 1, t, i]) + time
                    best = min(best, cost[s - 1, t, i] + i * step * chain.saved[s - 1])
                    best = min(best, passing[t, i] + stored[s, i])
                cost[s, t, i] = min(best, again[i] + rerun)
                again[i] = min(again[i], best)
    return cost


def _peak(function: Callable[[float], float], low: float, high: float) -> float:
    """Where `function` is largest between two positive numbers, by golden sections of logarithms.

    Found for functions with one peak; others give some point.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(low), math.log(high)
    points = [high - golden * (high - low), low + golden * (high - low)]
    values = [function(math.exp(point)) for point in points]
    for _ in range(_SEARCH_STEPS):
        if values[0] > values[1]:
            high, points[1], values[1] = points[1], points[0], values[0]
            points[0] = high - golden * (high - low)
            values[0] = function(math.exp(points[0]))
        else:
            low, points[0], values[0] = points[0], points[1], values[1]
            points[1] = low + golden * (high - low)
            values[1] = function(math.exp(points[1]))
    return math.exp(points[int(values[1] > values[0])])
