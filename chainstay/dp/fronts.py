"""The recursion on step functions: exact in bytes, without any grid of memory.

For fixed stages s..t, ``O(s, t, m)`` is a non-increasing step function of `m`. A *front*
holds its corners: memories ascending, overheads strictly descending. Sums of fronts are
taken for all restart points at once, by one search in keys ``(k, memory)``.

Corners that cannot be part of a schedule with overhead at most a limit are dropped
(`outside`), which is what makes chains of hundreds of stages fit; `Fronts.solve` raises
the limit until the optimum lies below it.
"""

from __future__ import annotations

import math
from typing import Final, Self

import numpy as np

from chainstay.dp.deepening import limits
from chainstay.dp.feasibility import LeastMemory
from chainstay.dp.outside import Limit, OutsideBound
from chainstay.dp.recursion import KEEP, Array, Front, Recursion
from chainstay.errors import InvalidProfileError

__all__ = ["Fronts"]

_KEY_BITS: Final = 62
_FIRST_CAPACITY: Final = 64


_NOTHING: Final = Front(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


class Fronts:
    """Fronts of all sub-chains, as far as they matter below a limit.

    Args:
        recursion: In bytes and ns.
        memory: Bytes besides the network's input.
        least: Least memory of every sub-chain.
        limit: What can be part of a schedule that matters; ``None`` keeps every corner.

    Attributes:
        recursion: As given.

    Raises:
        InvalidProfileError: Sizes too large for exact 64-bit arithmetic on this chain.
    """

    def __init__(
        self,
        recursion: Recursion,
        memory: int,
        least: LeastMemory,
        limit: Limit | None = None,
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
        """Fronts that hold an optimal schedule for `memory`, which must be feasible."""
        for limit in limits(OutsideBound(recursion, memory), recursion):
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
        """The optimal decision for stages s..t with m bytes."""
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
        """Fronts of all sub-chains that end at stage t."""
        recursion = self.recursion
        front = _NOTHING
        for s in range(t, -1, -1):
            front = self._front(s, t, front, column)
            self._rows[s].append(front)
            memory = front.memory + self._nearest[s]
            fits = memory <= self._memory
            column.prepend(Front(memory[fits], front.overhead[fits] + recursion.elapsed[s]))

    def _front(self, s: int, t: int, after: Front, column: _Column) -> Front:
        """The front of stages s..t, given that of s+1..t and the column of t so far."""
        recursion = self.recursion
        cap, slack = self._room(s, t)
        if slack < 0 or self._least.of[s, t] > cap:
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
        """The most memory and the most overhead with which stages s..t can matter."""
        cap = self._memory
        if s > 0:  # the input of stage s is stored, by itself or inside the saved data before it
            cap -= int(min(self._nearest[s], self.recursion.saved[s - 1]))
        if self._limit is None:
            return cap, math.inf
        return min(cap, self._limit.largest_memory(s, t)), self._limit.largest_overhead(s, t)

    def _restarts(self, s: int, t: int, cap: int, slack: float, column: _Column) -> Front:
        """Corners of ``rerun(s..k-1) + O(k, t, m - a[s, k]) + O(s, k-1, m)`` over all k."""
        recursion = self.recursion
        rerun = recursion.rerun(s, t)
        last = s + int(np.searchsorted(rerun, slack, side="right"))
        if last <= s:
            return _NOTHING
        # A corner of the sum is a corner of one term: evaluate each term at the other's.
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
        """Corners of the column with what each restart point stores besides ``a^s``."""
        assert self._farther is not None, "without skips a column serves all stages as it is"
        keys, overhead = column.until(last)
        more = self._farther[s, column.restart_of(keys)]
        fits = column.memory_of(keys) + more <= self._memory
        return np.stack([(keys + more)[fits], overhead[fits]])


class _Keyed:
    """Corners of several fronts in one array, sorted by key: restart point, then memory."""

    def __init__(self, shift: int) -> None:
        self._shift = shift
        self._corners = np.empty((2, _FIRST_CAPACITY), dtype=np.int64)

    def restart_of(self, keys: Array) -> Array:
        restarts: Array = keys >> self._shift
        return restarts

    def memory_of(self, keys: Array) -> Array:
        memory: Array = keys & ((1 << self._shift) - 1)
        return memory


class _Row(_Keyed):
    """Fronts of stages s..t for t = s, s+1, …; the key's restart point is t + 1."""

    def __init__(self, s: int, shift: int) -> None:
        super().__init__(shift)
        self._first = s
        self._ends = [0]

    def append(self, front: Front) -> None:
        start, end = self._ends[-1], self._ends[-1] + len(front.memory)
        if end > self._corners.shape[1]:
            self._corners = np.concatenate([self._corners, np.empty((2, end), np.int64)], axis=1)
        restart = self._first + len(self._ends)
        self._corners[0, start:end] = front.memory + (restart << self._shift)
        self._corners[1, start:end] = front.overhead
        self._ends.append(end)

    def until(self, restart: int) -> Array:
        """Corners with restart points up to `restart`."""
        return self._corners[:, : self._ends[restart - self._first]]

    def front(self, t: int) -> Front:
        start, end = self._ends[t - self._first : t - self._first + 2]
        keys, overhead = self._corners[:, start:end]
        return Front(self.memory_of(keys), overhead)

    def value(self, t: int, m: int) -> int | None:
        """O(s, t, m), or ``None`` where no corner is kept."""
        if m < 0:
            return None
        start, end = self._ends[t - self._first : t - self._first + 2]
        key = m + (t + 1 << self._shift)
        corner = int(np.searchsorted(self._corners[0, start:end], key, side="right")) - 1
        return int(self._corners[1, start + corner]) if corner >= 0 else None


class _Column(_Keyed):
    """Fronts of stages k..t for k = t, t-1, …, shifted by ``a[k-1, k]``; it grows to the left."""

    def __init__(self, t: int, shift: int) -> None:
        super().__init__(shift)
        self._last = t
        self._sizes = [0]

    def prepend(self, front: Front) -> None:
        size = self._sizes[-1] + len(front.memory)
        if size > self._corners.shape[1]:
            self._corners = np.concatenate([np.empty((2, size), np.int64), self._corners], axis=1)
        start, end = (self._corners.shape[1] - length for length in (size, self._sizes[-1]))
        restart = self._last + 1 - len(self._sizes)
        self._corners[0, start:end] = front.memory + (restart << self._shift)
        self._corners[1, start:end] = front.overhead
        self._sizes.append(size)

    def until(self, restart: int) -> Array:
        """Corners with restart points up to `restart`."""
        capacity = self._corners.shape[1]
        beyond = self._sizes[max(0, self._last - restart)]
        return self._corners[:, capacity - self._sizes[-1] : capacity - beyond]


def _values(corners: Array, at: Array, shift: int) -> tuple[Array, Array]:
    """Values of keyed step functions at the keys `at`, and which of them are finite."""
    index = np.searchsorted(corners[0], at, side="right") - 1
    index = np.maximum(index, 0)
    finite = (corners[0, index] <= at) & (corners[0, index] >> shift == at >> shift)
    return corners[1, index], finite


def _sums(one: Array, other: Array, shift: int) -> tuple[Array, Array]:
    """Keys and sums of two sets of keyed step functions, wherever either has a corner."""
    if not (one.size and other.size):
        return _NOTHING
    of_other, in_other = _values(other, one[0], shift)
    of_one, in_one = _values(one, other[0], shift)
    return (
        np.concatenate([one[0, in_other], other[0, in_one]]),
        np.concatenate([(one[1] + of_other)[in_other], (other[1] + of_one)[in_one]]),
    )


def _envelope(fronts: list[Front]) -> Front:
    """The lowest of several step functions, given by corners in any order."""
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
