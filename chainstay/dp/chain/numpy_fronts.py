"""The persistent recursion on step functions, in numpy: what `kernels` does before it is compiled.

Sums of fronts are taken for all restart points at once, by one search in keys ``(k, memory)``. On
short chains that is sooner done than loading compiled code, which the same loops would need.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from chainstay.dp.bounds.bound_pruning import PruningLimit
from chainstay.dp.chain.recursion_arrays import ArraysByKind, ChainFrontPool, RecursionArrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.recursion import Front
from chainstay.dp.step_functions import Cutoff
from chainstay.errors import InvalidProfileError

_KEY_BITS: Final = 62
_FIRST_CAPACITY: Final = 64
_NOTHING: Final = Front(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
_FINISHED: Final = Front(np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))


def fill_by_numpy(by_kind: ArraysByKind, limit: PruningLimit) -> ChainFrontPool:
    """Return the fronts of all sub-chains within the limit.

    Raises:
        InvalidProfileError: Sizes too large for exact 64-bit arithmetic on this chain.
    """
    return _Filling(by_kind, limit).fronts()


class _Filling:
    """The fronts while they are computed: last stages ascend, and first stages descend."""

    def __init__(self, by_kind: ArraysByKind, limit: PruningLimit) -> None:
        self._by_kind, self._limit = by_kind, limit
        chain = by_kind.again
        n = len(chain.start) - 1
        self._shift = limit.memory.bit_length()
        if (n + 1).bit_length() + self._shift > _KEY_BITS:
            raise InvalidProfileError(
                f"{n} stages in {limit.memory} bytes are too large for exact arithmetic in 64 "
                "bits; give sizes in a larger unit, or use DP(slots=500)"
            )
        self._farther = chain.fresh - chain.activation if len(chain.fresh) else None
        self._options = [_options(chain) for chain in by_kind]
        self._multipliers = limit.step * np.arange(limit.outside.shape[2])
        self._largest_memory, self._largest_overhead = self._cutoffs()
        self._rows = [_Row(s, self._shift) for s in range(n)]
        for t in range(n):
            self._fill_column(t, _Column(t, self._shift))

    def fronts(self) -> ChainFrontPool:
        """Return all fronts in one pool."""
        n = len(self._rows)
        nothing = np.zeros((2, 1), dtype=np.int64)
        rows = [row.until(n) for row in self._rows]
        keys, overhead = np.concatenate([nothing, *rows], axis=1)
        size = np.zeros((n + 1, n), dtype=np.int64)
        for s, row in enumerate(self._rows):
            size[s, s:] = row.sizes
        end = 1 + np.cumsum(size).reshape(n + 1, n)
        first, last = end - size, end - 1
        first[np.arange(1, n + 1), np.arange(n)] = last[np.arange(1, n + 1), np.arange(n)] = 0
        return ChainFrontPool(keys & ((1 << self._shift) - 1), overhead, first, last)

    def _cutoffs(self) -> tuple[Array, Array]:
        """Return at [s, t] the most bytes and ns with which stages s..t can be of use."""
        limit = self._limit
        stored = self._by_kind.again.least_input[:-1]
        memory = np.broadcast_to((limit.memory - stored)[:, None], limit.least.shape)
        if limit.step:
            left = (limit.overhead - limit.outside[:, :, 1:]) / self._multipliers[1:]
            memory = np.minimum(memory, left.min(axis=2))
        spent = limit.outside + self._multipliers * limit.least[:, :, None]
        overhead = limit.overhead - spent.max(axis=2)
        # any number below 0 means that nothing is of use, and -1 fits in 64 bits
        memory, overhead = (np.floor(np.maximum(most, -1)) for most in (memory, overhead))
        return memory.astype(np.int64), overhead.astype(np.int64)

    def _fill_column(self, t: int, column: _Column) -> None:
        """Compute the fronts of all sub-chains that end at stage t."""
        chain = self._by_kind.first if t == len(self._rows) - 1 else self._by_kind.again
        fronts = {t + 1: _FINISHED}
        for s in range(t, -1, -1):
            fronts[s] = front = self._front(chain, s, t, fronts, column)
            self._rows[s].append(front)
            memory = front.memory + chain.activation[s]
            fits = memory <= self._limit.memory
            column.prepend(Front(memory[fits], front.overhead[fits] + chain.elapsed[s]))

    def _front(
        self, chain: RecursionArrays, s: int, t: int, after: dict[int, Front], column: _Column
    ) -> Front:
        """Return the front of stages s..t, given those of later ones and the column of t so far."""
        limit = self._limit
        cap, slack = int(self._largest_memory[s, t]), int(self._largest_overhead[s, t])
        if slack < 0 or limit.least[s, t] > cap:
            return _NOTHING
        fronts = []
        for o, end, extra in self._options[chain is self._by_kind.again][s]:
            if end <= t + 1:
                rest = after[end]
                memory = np.maximum(rest.memory + chain.saved[o], chain.keep_floor[o, t])
                fronts.append(Front(memory, rest.overhead + extra if extra else rest.overhead))
        if s < t:
            fronts.append(self._restarts(chain, (s, t), Cutoff(cap, slack), column))
        front = _envelope(fronts)
        front = Front(*(column[front.memory <= cap] for column in front))
        lines = limit.outside[s, t][:, None] + self._multipliers[:, None] * front.memory
        keep = front.overhead + lines.max(axis=0) <= limit.overhead
        return Front(front.memory[keep], front.overhead[keep])

    def _restarts(
        self, chain: RecursionArrays, span: tuple[int, int], cutoff: Cutoff, column: _Column
    ) -> Front:
        """Return the front of restarts: ``rerun(s..k-1) + O(k, t, m - a[s, k]) + O(s, k-1, m)``."""
        (s, t), (cap, slack) = span, cutoff
        row = self._rows[s]
        rerun = chain.elapsed[s + 1 : t + 1] - chain.elapsed[s]
        last = s + int(np.searchsorted(rerun, slack, side="right"))
        if last <= s:
            return _NOTHING
        # A breakpoint of the sum is one of either term: evaluate each term at the other's.
        later = column.until(last) if self._farther is None else self._moved(column, s, last)
        keys, total = _sums(row.until(last), later, self._shift)
        total -= chain.elapsed[s]
        floors = chain.gradient[t + 1] + chain.transit[s, row.restart_of(keys) - 1]
        memory = np.maximum(row.memory_of(keys), floors)
        matters = (memory <= cap) & (total <= slack)
        return Front(memory[matters], total[matters])

    def _moved(self, column: _Column, s: int, last: int) -> Array:
        """Return the column's breakpoints, moved by what each restart stores besides ``a^s``."""
        assert self._farther is not None, "without skips a column serves all stages as it is"
        keys, overhead = column.until(last)
        more = self._farther[s, column.restart_of(keys)]
        fits = column.memory_of(keys) + more <= self._limit.memory
        return np.stack([(keys + more)[fits], overhead[fits]])


def _options(chain: RecursionArrays) -> list[list[tuple[int, int, int]]]:
    """Return number, end and overhead of the options of each stage."""
    start, end, extra = chain.start.tolist(), chain.end.tolist(), chain.extra.tolist()
    return [[(o, end[o], extra[o]) for o in range(i, j)] for i, j in pairwise(start)]


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

    @property
    def sizes(self) -> list[int]:
        """The numbers of breakpoints, for t = s, s+1 and so on."""
        return [end - start for start, end in pairwise(self._ends)]


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
    last_of_memory = np.ones(len(memory), dtype=bool)
    np.not_equal(memory[1:], memory[:-1], out=last_of_memory[:-1])
    memory, overhead = memory[last_of_memory], overhead[last_of_memory]
    lower = np.ones(len(memory), dtype=bool)
    np.less(overhead[1:], overhead[:-1], out=lower[1:])
    return Front(memory[lower], overhead[lower])
