"""The recursion on a grid of memory slots: the textbook table, one entry per slot.

**Read this first; all else in `chainstay.dp` is speed.** `Table.fill` is Theorem 4.8 of [BEHJS24]
as `recursion` states it, and `Table.decide` reads a schedule from the table. It is exact when a
slot is one byte; otherwise sizes are rounded (`Recursion.rounded`). The code knows nothing of the
step functions in `chainstay.dp.chain`, so each checks the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.forward_costs import Array
from chainstay.dp.recursion import KEEP, Front, Recursion
from chainstay.errors import InvalidProfileError

INFEASIBLE: Final = 2**60
"""Overhead of a sub-chain that does not fit; the sum of two still fits in int64."""
_LARGEST_TABLE: Final = 2**28
"""Table entries that fit in memory: 1 GiB of them, or 2 GiB where times are long."""


def require_table(entries: int, network: str, slots: int) -> None:
    """Refuse tables of so many entries that they would not fit in memory.

    Raises:
        InvalidProfileError: They would not; the text names the entries and the limit.
    """
    if entries > _LARGEST_TABLE:
        raise InvalidProfileError(
            f"{network} and {slots} slots need a table of {entries:.2g} entries, at most "
            f"{_LARGEST_TABLE:.2g} fit; cut the model into coarser stages, or ask for fewer slots "
            "as in DP(slots=50)"
        )


@dataclass(frozen=True, slots=True)
class Table:
    """The least overhead of every sub-chain for every number of slots.

    Attributes:
        recursion: Sizes in slots, times in ns.
        rows: ``rows[s]`` has shape (n - s, slots + 1); its entry [t - s, m] is O(s, t, m), in ns.
    """

    recursion: Recursion
    rows: tuple[NDArray[np.signedinteger], ...]

    @classmethod
    def fill(cls, recursion: Recursion, slots: int) -> Table:
        """Return the table for 0 .. `slots` slots besides the input.

        Complexity:
            O(n^3 slots) time, O(n^2 slots) memory.
        """
        n = recursion.stages
        rows = tuple(np.full((n - s, slots + 1), INFEASIBLE, dtype=np.int64) for s in range(n))
        nearest, farther = recursion.nearest, recursion.farther
        # columns[k] is O(k, t, m - a[k-1, k]): what is left after the restart point is stored.
        columns = np.full((n, slots + 1), INFEASIBLE, dtype=np.int64)
        for t in range(n):
            for s in range(t, -1, -1):
                best, costs = rows[s][t - s], recursion.costs(t)
                for o in costs.options(s, t):
                    end = int(costs.end[o])
                    kept = rows[end][t - end] if end <= t else np.zeros_like(best)
                    under = np.full_like(best, INFEASIBLE)
                    floor = int(costs.keep_floor[o, t])
                    _shift_into(under, kept + costs.extra[o], int(costs.saved[o]), floor=floor)
                    np.minimum(best, under, out=best)
                if s < t:
                    later = columns[s + 1 : t + 1]
                    if farther is not None:
                        later = _moved(later, farther[s, s + 1 : t + 1])
                    restart = _restart(recursion, rows[s][: t - s], later, s, t)
                    np.minimum(best, restart, out=best)
                columns[s] = INFEASIBLE
                _shift_into(columns[s], best, int(nearest[s]), floor=0)
        return cls(recursion, rows)

    @property
    def root(self) -> Front:
        """The breakpoints of the whole chain's overhead: slots ascending, overheads descending."""
        overhead = self.rows[0][-1]
        breakpoints = np.flatnonzero(overhead < np.insert(overhead[:-1], 0, INFEASIBLE))
        return Front(breakpoints, overhead[breakpoints])

    def overhead(self, s: int, t: int, m: int) -> int:
        """Return O(s, t, m) in ns, or `INFEASIBLE` (also for a negative m)."""
        return int(self.rows[s][t - s, m]) if m >= 0 else INFEASIBLE

    def decide(self, s: int, t: int, m: int) -> int:
        """Return the optimal decision for stages s..t with m slots."""
        recursion, target = self.recursion, self.overhead(s, t, m)
        costs = recursion.costs(t)
        for o in costs.options(s, t):
            end = int(costs.end[o])
            after = self.overhead(end, t, m - int(costs.saved[o])) if end <= t else 0
            if m >= costs.keep_floor[o, t] and after + costs.extra[o] == target:
                return KEEP - int(costs.number[o])
        floors, rerun = recursion.restart_floor(s, t), recursion.rerun(s, t)
        for k in range(s + 1, t + 1):
            later = self.overhead(k, t, m - int(recursion.fresh[s, k]))
            total = int(rerun[k - s - 1]) + later + self.overhead(s, k - 1, m)
            if m >= floors[k - s - 1] and total == target:
                return k
        raise AssertionError(f"no decision reaches O({s}, {t}, {m}) = {target}")


def _shift_into(target: Array, source: Array, shift: int, *, floor: int) -> None:
    """Set ``target[m] = source[m - shift]`` for m >= max(shift, floor)."""
    start = max(shift, floor)
    if start < len(target):
        target[start:] = source[start - shift : len(source) - shift]


def _moved(columns: Array, more: Array) -> Array:
    """Return the columns, each moved right by its number of slots in `more`."""
    moved = np.full_like(columns, INFEASIBLE)
    for target, source, shift in zip(moved, columns, more, strict=True):
        _shift_into(target, source, int(shift), floor=0)
    return moved


def _restart(recursion: Recursion, earlier: Array, later: Array, s: int, t: int) -> Array:
    """Return the least overhead of all restart points, for every number of slots.

    The shape is (slots + 1,). `earlier` [k-s-1, m] is O(s, k-1, m), and `later` [k-s-1, m] is
    O(k, t, m - a[s, k]).
    """
    total = earlier + later
    total += recursion.rerun(s, t)[:, None]
    too_small = np.arange(total.shape[1])[None, :] < recursion.restart_floor(s, t)[:, None]
    total[too_small] = INFEASIBLE
    least: Array = np.minimum(total.min(axis=0), INFEASIBLE)
    return least
