"""The exact recursion on step functions: the fronts of all sub-chains, and decisions from them.

For fixed stages s..t, ``O(s, t, m)`` is a non-increasing step function of `m`. A *front*
holds its breakpoints: memories ascending, overheads strictly descending. Breakpoints that cannot be
part of a schedule with overhead at most a limit are dropped (`chainstay.dp.bounds`), which is what
makes chains of hundreds of stages fit; the limit is raised until the optimum lies below it.

`kernels` has the loops that fill the fronts, to be compiled, and `numpy_fronts` the same in numpy.
Loading numba takes half a second, and the first time on a machine it compiles for several more.
Chains that numpy solves sooner than that never wait for it: short ones, unless their fronts turn
out to have very many breakpoints. Without numba, numpy solves them all.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

from chainstay.dp import jit
from chainstay.dp.bounds.bound_pruning import (
    MultiplierBound,
    PruningLimit,
    growing_limits,
    pruning_limit,
    without_limit,
)
from chainstay.dp.bounds.knapsack_bound import KnapsackBound
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain.kernels import choose, choose_all, fill_by_loops
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.chain.numpy_fronts import fill_by_numpy
from chainstay.dp.chain.recursion_arrays import (
    ArraysByKind,
    ChainFrontPool,
    has_options,
    recursion_arrays,
)
from chainstay.dp.recursion import NO_DECISION, Decide, Front, Recursion

_LONG: Final = 80
"""Stages from which on compiled code is the faster one, its loading included."""
_MANY: Final = 20_000
"""Breakpoints above which compiled code is the faster one for shorter chains, too."""
_THIN: Final = (2.0**-14, 2.0**-16, 2.0**-18)
"""Least differences of overheads in the thin passes, as shares of every forward once."""
_ENOUGH: Final = 0.8
"""A narrower pass that leaves more than this share of the gap above the bound is the last one."""
_THIN_GROWTH: Final = 4
_VERY_LONG: Final = 200
"""Stages above which the errors of a thin pass add up, and narrower ones pay."""
_SHORT: Final = 20
"""Stages from which on compiled code is the faster one in a process that has loaded it already."""


@dataclass(frozen=True, slots=True)
class ChainFronts:
    """Fronts of all sub-chains that can be part of a schedule below a limit.

    Attributes:
        recursion: Sizes in bytes, times in ns.
    """

    recursion: Recursion
    _by_kind: ArraysByKind
    _pool: ChainFrontPool
    _compiled: bool

    @classmethod
    def all(cls, recursion: Recursion, memory: int, *, compiled: bool) -> ChainFronts:
        """Return fronts with every breakpoint up to `memory` bytes besides the network's input.

        Raises:
            InvalidProfileError: Sizes too large for exact 64-bit arithmetic on this chain.
        """
        by_kind = recursion_arrays(recursion)
        limit = without_limit(memory, LeastMemory(recursion, compiled=compiled).table)
        return cls(recursion, by_kind, _fill(by_kind, limit, compiled=compiled), compiled)

    @classmethod
    def solve(
        cls, recursion: Recursion, memory: int, least: LeastMemory, *, compiled: bool
    ) -> ChainFronts:
        """Return fronts that hold an optimal schedule for `memory`, which must be feasible.

        Args:
            recursion: Sizes in bytes, times in ns.
            memory: Bytes besides the network's input.
            least: Least memory of every sub-chain.
            compiled: Whether to wait for compiled code, as `is_compiled` advises; otherwise only
                where numpy meets more than `_MANY` breakpoints before it is done.

        Raises:
            InvalidProfileError: Sizes too large for exact 64-bit arithmetic on this chain.
        """
        by_kind = recursion_arrays(recursion)
        # the sharper bound takes loops of its own, which pay where they are compiled
        sharpest = LagrangianBound if compiled else KnapsackBound
        bound: MultiplierBound = sharpest(by_kind, memory, least.table)

        def filled(limit: float, width: int = 0) -> ChainFronts:
            pruning = pruning_limit(bound, int(limit))
            pool = _fill(by_kind, pruning, compiled=compiled, width=width)
            return cls(recursion, by_kind, pool, compiled)

        # what a thin pass finds is attained, so it is the limit of the next one
        is_thin = compiled and has_options(by_kind)
        first, *narrower = [int(share * bound.rerun_time) for share in _THIN] if is_thin else [0]
        limits = growing_limits(bound, growth=_THIN_GROWTH if is_thin else 2)
        fronts = filled(limit := next(limits), first)
        while fronts.best > limit:
            if not compiled and len(fronts) > _MANY and jit.is_available():
                return cls.solve(recursion, memory, least, compiled=True)
            fronts = filled(limit := next(limits), first)
        if is_thin:
            best = fronts.best
            for width in narrower if recursion.stages > _VERY_LONG else ():
                before, best = best, min(best, filled(best, width).best)
                if best - bound.root > _ENOUGH * (before - bound.root):
                    break
            fronts = filled(best)
        return fronts

    def __len__(self) -> int:
        return len(self._pool.memory)

    @property
    def best(self) -> float:
        """The least overhead that the fronts have for the whole chain, in ns; infinite if none."""
        overhead = self.root.overhead
        return int(overhead[-1]) if len(overhead) else math.inf

    @property
    def root(self) -> Front:
        """The front of the whole chain; its last overhead is the optimum."""
        pool = self._pool
        kept = slice(pool.first[0, -1], pool.last[0, -1] + 1)
        return Front(pool.memory[kept], pool.overhead[kept])

    def decisions(self, memory: int) -> Decide:
        """Return `decide` for the sub-chains of the optimal schedule with `memory` bytes only.

        Compiled code makes all its decisions at once, which is faster.
        """
        if not self._compiled:
            return self.decide
        chosen: list[list[int]] = choose_all(self._by_kind, self._pool, memory).tolist()
        known = {(s, t, m): k for s, t, m, k in chosen}

        def decide(s: int, t: int, m: int) -> int:
            k = known[s, t, m]
            if k == NO_DECISION:
                raise AssertionError(f"no decision reaches O({s}, {t}, {m})")
            return k

        return decide

    def decide(self, s: int, t: int, m: int) -> int:
        """Return the optimal decision for stages s..t with m bytes."""
        first, again = self._by_kind
        chain = first if t == self.recursion.stages - 1 else again
        with nullcontext() if self._compiled else jit.interpreted():
            decision = int(choose(chain, self._pool, s, t, m))
        if decision == NO_DECISION:
            raise AssertionError(f"no decision reaches O({s}, {t}, {m})")
        return decision


def is_compiled(stages: int, *, for_numbers: bool = False) -> bool:
    """Return whether compiled code is the faster one for chains of so many stages.

    With `for_numbers`, nobody reads a schedule from it. Only then may the choice depend on what
    ran before in this process: of two optimal schedules, the codes may find different ones.
    """
    least = _SHORT if for_numbers and jit.is_warm() else _LONG
    return stages >= least and jit.is_available()


def least_memory(recursion: Recursion, *, for_numbers: bool = False) -> LeastMemory:
    """Return the least memory of every sub-chain, by the faster code."""
    return LeastMemory(recursion, compiled=is_compiled(recursion.stages, for_numbers=for_numbers))


def _fill(
    by_kind: ArraysByKind, limit: PruningLimit, *, compiled: bool, width: int = 0
) -> ChainFrontPool:
    """Return the fronts of all sub-chains within the limit; those of compiled code thinned."""
    return fill_by_loops(by_kind, limit, width) if compiled else fill_by_numpy(by_kind, limit)
