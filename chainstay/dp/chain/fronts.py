"""The recursion on step functions, in numpy: exact in bytes, without any grid of memory.

For fixed stages s..t, ``O(s, t, m)`` is a non-increasing step function of `m`. A *front*
holds its breakpoints: memories ascending, overheads strictly descending. Sums of fronts are
taken for all restart points at once, by one search in keys ``(k, memory)``.

Breakpoints that cannot be part of a schedule with overhead at most a limit are dropped
(`chainstay.dp.bounds.knapsack_bound`), which is what makes chains of hundreds of stages fit;
`NumpyFronts.solve` raises the limit until the optimum lies below it.
"""

from __future__ import annotations

import math
from typing import Final, Self

import numpy as np

from chainstay.dp.bounds.knapsack_bound import KnapsackBound, OverheadLimit
from chainstay.dp.bounds.overhead_limits import growing_overhead_limits
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.recursion import KEEP, Array, Front, Recursion
from chainstay.errors import InvalidProfileError

__all__ = ["NumpyFronts"]

_KEY_BITS: Final = 62
_FIRST_CAPACITY: Final = 64


_NOTHING: Final = Front(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class NumpyFronts:
    """Fronts of all sub-chains that can be part of a schedule below a limit.

    Args:
        recursion: Sizes in bytes, times in ns.
        memory: Bytes besides the network's input.
        least: Least memory of every sub-chain.
        limit: The limit on whole schedules; ``None`` keeps every breakpoint.

    Attributes:
        recursion: Sizes in bytes, times in ns.

    Raises:
        InvalidProfileError: Sizes too large for exact 64-bit arithmetic on this chain.
    """

    def __init__(
        self,
        recursion: Recursion,
        memory: int,
        least: LeastMemory,
        limit: OverheadLimit | None = None,
    ) -> None:
        self.recursion = recursion
        self._memory = memory
        self._least = least
        self._limit = limit
        n = recursion.stages
        self._nearest, self._farther = recursion.nearest, recursion.farther
        self._shift = memory.bit_length()
        if (n + 1).bit_length() + self._shift > _KEY_BITS:
            raise InvalidProfileError(
                f"{n} stages in {memory} bytes are too large for exact arithmetic in 64 bits; "
                "give sizes in a larger unit, or use DP(slots=500)"
            )
        self._rows = [_Row(s, self._shift) for s in range(n)]
        for t in range(n):
            self._fill_column(t, _Column(t, self._shift))

    @classmethod
    def solve(cls, recursion: Recursion, memory: int, least: LeastMemory) -> Self:
        """Return fronts that hold an optimal schedule for `memory`, which must be feasible."""
        for limit in growing_overhead_limits(KnapsackBound(recursion, memory), recursion):
            fronts = cls(recursion, memory, least, limit)
            overhead = fronts.root.overhead
            if len(overhead) and overhead[-1] <= limit.overhead:
                return fronts
        raise AssertionError("limits never end")

    @property
    def root(self) -> Front:
        """The front of the whole chain."""
        return self._rows[0].front(self.recursion.stages - 1)

    def decide(self, s: int, t: int, m: int) -> int:
        """Return the optimal decision for stages s..t with m bytes."""
        recursion = self.recursion
        target = self._rows[s].value(t, m)
        if m >= recursion.keep_floor[s, t] and (
            s == t or self._rows[s + 1].value(t, m - int(recursion.saved[s])) == target
        ):
            return KEEP
        floors, rerun = recursion.restart_floor(s, t), recursion.rerun(s, t)
        for k in range(s + 1, t + 1):
            if m < floors[k - s - 1] or (earlier := self._rows[s].value(k - 1, m)) is None:
                continue
            later = self._rows[k].value(t, m - int(recursion.fresh[s, k]))
            if later is not None and int(rerun[k - s - 1]) + earlier + later == target:
                return k
        raise AssertionError(f"no decision reaches O({s}, {t}, {m}) = {target}")

    def _fill_column(self, t: int, column: _Column) -> None:
        """Compute the fronts of all sub-chains that end at stage t."""
        recursion = self.recursion
        front = _NOTHING
        for s in range(t, -1, -1):
            front = self._front(s, t, front, column)
            self._rows[s].append(front)
            memory = front.memory + self._nearest[s]
            fits = memory <= self._memory
            column.prepend(Front(memory[fits], front.overhead[fits] + recursion.elapsed[s]))

    def _front(self, s: int, t: int, after: Front, column: _Column) -> Front:
        """Return the front of stages s..t, given that of s+1..t and the column of t so far."""
        recursion = self.recursion
        cap, slack = self._room(s, t)
        if slack < 0 or self._least.table[s, t] > cap:
            return _NOTHING
        floor = int(recursion.keep_floor[s, t])
        if s == t:
            candidates = [Front(np.array([floor]), np.array([0]))]
        else:
            kept = np.maximum(after.memory + recursion.saved[s], floor)
            candidates = [Front(kept, after.overhead), self._restarts(s, t, cap, slack, column)]
        front = _envelope(candidates)
        keep = (front.memory <= cap) & (front.overhead <= slack)
        if self._limit is not None:
            keep &= front.overhead <= self._limit.before(s, t, front.memory)
        return Front(front.memory[keep], front.overhead[keep])

    def _room(self, s: int, t: int) -> tuple[int, float]:
        """Return the most bytes and ns with which stages s..t can be part of a good schedule."""
        cap = self._memory
        if s > 0:  # the input of stage s is stored, by itself or inside the saved data before it
            cap -= int(min(self._nearest[s], self.recursion.saved[s - 1]))
        if self._limit is None:
            return cap, math.inf
        return min(cap, self._limit.largest_memory(s, t)), self._limit.largest_overhead(s, t)

    def _restarts(self, s: int, t: int, cap: int, slack: float, column: _Column) -> Front:
        """Return the front of restarts: ``rerun(s..k-1) + O(k, t, m - a[s, k]) + O(s, k-1, m)``."""
        recursion = self.recursion
        rerun = recursion.rerun(s, t)
        last = s + int(np.searchsorted(rerun, slack, side="right"))
        if last <= s:
            return _NOTHING
        # A breakpoint of the sum is one of either term: evaluate each term at the other's.
        later = column.until(last) if self._farther is None else self._moved(column, s, last)
        keys, total = _sums(self._rows[s].until(last), later, self._shift)
        total -= recursion.elapsed[s]
        memory = self._rows[s].memory_of(keys)
        floors = (
            recursion.gradient[t + 1] + recursion.transit[s, self._rows[s].restart_of(keys) - 1]
        )
        memory = np.maximum(memory, floors)
        matters = (memory <= cap) & (total <= slack)
        return Front(memory[matters], total[matters])

    def _moved(self, column: _Column, s: int, last: int) -> Array:
        """Return the column's breakpoints, moved by what each restart stores besides ``a^s``."""
        assert self._farther is not None, "without skips a column serves all stages as it is"
        keys, overhead = column.until(last)
        more = self._farther[s, column.restart_of(keys)]
        fits = column.memory_of(keys) + more <= self._memory
        return np.stack([(keys + more)[fits], overhead[fits]])


class _Keyed:
    """Breakpoints of several fronts in one array, sorted by key: restart point, then memory."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._breakpoints = np.empty((2, _FIRST_CAPACITY), dtype=np.int64)

    def restart_of(self, keys: Array) -> Array:
        """Return the restart points of `keys`."""
        restarts: Array = keys >> self._shift
        return restarts

    def memory_of(self, keys: Array) -> Array:
        """Return the memories of `keys`, in bytes."""
        memory: Array = keys & ((1 << self._shift) - 1)
        return memory


class _Row(_Keyed):
    """Fronts of stages s..t for t = s, s+1, …; the key's restart point is t + 1."""

    def __init__(self, s: int, shift: int) -> None:
        super().__init__(shift)
        self._first = s
        self._ends = [0]

    def append(self, front: Front) -> None:
        """Add the front of the next t."""
        start, end = self._ends[-1], self._ends[-1] + len(front.memory)
        if end > self._breakpoints.shape[1]:
            self._breakpoints = np.concatenate(
                [self._breakpoints, np.empty((2, end), np.int64)], axis=1
            )
        restart = self._first + len(self._ends)
        self._breakpoints[0, start:end] = front.memory + (restart << self._shift)
        self._breakpoints[1, start:end] = front.overhead
        self._ends.append(end)

    def until(self, restart: int) -> Array:
        """Return the breakpoints with restart points up to `restart`."""
        return self._breakpoints[:, : self._ends[restart - self._first]]

    def front(self, t: int) -> Front:
        """Return the front of stages s..t."""
        start, end = self._ends[t - self._first : t - self._first + 2]
        keys, overhead = self._breakpoints[:, start:end]
        return Front(self.memory_of(keys), overhead)

    def value(self, t: int, m: int) -> int | None:
        """Return O(s, t, m) in ns, or ``None`` where no breakpoint is kept."""
        if m < 0:
            return None
        start, end = self._ends[t - self._first : t - self._first + 2]
        key = m + (t + 1 << self._shift)
        index = int(np.searchsorted(self._breakpoints[0, start:end], key, side="right")) - 1
        return int(self._breakpoints[1, start + index]) if index >= 0 else None


class _Column(_Keyed):
    """Fronts of stages k..t for k = t, t-1, …, shifted by ``a[k-1, k]``; it grows to the left."""

    def __init__(self, t: int, shift: int) -> None:
        super().__init__(shift)
        self._last = t
        self._sizes = [0]

    def prepend(self, front: Front) -> None:
        """Add the front of the next k."""
        size = self._sizes[-1] + len(front.memory)
        if size > self._breakpoints.shape[1]:
            self._breakpoints = np.concatenate(
                [np.empty((2, size), np.int64), self._breakpoints], axis=1
            )
        start, end = (self._breakpoints.shape[1] - length for length in (size, self._sizes[-1]))
        restart = self._last + 1 - len(self._sizes)
        self._breakpoints[0, start:end] = front.memory + (restart << self._shift)
        self._breakpoints[1, start:end] = front.overhead
        self._sizes.append(size)

    def until(self, restart: int) -> Array:
        """Return the breakpoints with restart points up to `restart`."""
        capacity = self._breakpoints.shape[1]
        beyond = self._sizes[max(0, self._last - restart)]
        return self._breakpoints[:, capacity - self._sizes[-1] : capacity - beyond]


def _values(breakpoints: Array, at: Array, shift: int) -> tuple[Array, Array]:
    """Return the values of keyed step functions at the keys `at`, and which of them are finite."""
    index = np.searchsorted(breakpoints[0], at, side="right") - 1
    index = np.maximum(index, 0)
    finite = (breakpoints[0, index] <= at) & (breakpoints[0, index] >> shift == at >> shift)
    return breakpoints[1, index], finite


def _sums(one: Array, other: Array, shift: int) -> tuple[Array, Array]:
    """Return keys and sums of two sets of keyed step functions, at the breakpoints of either."""
    if not (one.size and other.size):
        return _NOTHING
    of_other, in_other = _values(other, one[0], shift)
    of_one, in_one = _values(one, other[0], shift)
    return (
        np.concatenate([one[0, in_other], other[0, in_one]]),
        np.concatenate([(one[1] + of_other)[in_other], (other[1] + of_one)[in_one]]),
    )


def _envelope(fronts: list[Front]) -> Front:
    """Return the minimum of several step functions, given by breakpoints in any order."""
    if len(fronts) == 1:
        return fronts[0]
    memory = np.concatenate([front.memory for front in fronts])
    overhead = np.concatenate([front.overhead for front in fronts])
    if not memory.size:
        return _NOTHING
    order = np.argsort(memory, kind="stable")
    memory, overhead = memory[order], np.minimum.accumulate(overhead[order])
    last_of_memory = np.append(memory[1:] != memory[:-1], True)
    memory, overhead = memory[last_of_memory], overhead[last_of_memory]
    lower = np.insert(overhead[1:] < overhead[:-1], 0, True)
    return Front(memory[lower], overhead[lower])
