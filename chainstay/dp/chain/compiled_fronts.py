"""The engine for long chains: `NumpyFronts` with its inner loops compiled.

`engines` decides when to use it; without numba it would be right, but slow.
"""

from __future__ import annotations

from typing import Self

from chainstay.dp.bounds.bound_pruning import PruningLimit, pruning_limit, without_limit
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.bounds.overhead_limits import growing_limits
from chainstay.dp.chain.kernels import choose, fill
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.chain.recursion_arrays import least_memory_table, recursion_arrays
from chainstay.dp.recursion import Front, Recursion

__all__ = ["CompiledFronts", "compiled_least_memory"]


class CompiledFronts:
    """Fronts of all sub-chains that can be part of a schedule below a limit; see `NumpyFronts`.

    Args:
        recursion: Sizes in bytes, times in ns.
        memory: Bytes besides the network's input.
        least: Least memory of every sub-chain.
        limit: The limit on whole schedules; ``None`` keeps every breakpoint.

    Attributes:
        recursion: Sizes in bytes, times in ns.
    """

    def __init__(
        self,
        recursion: Recursion,
        memory: int,
        least: LeastMemory,
        limit: PruningLimit | None = None,
    ) -> None:
        self.recursion = recursion
        self._chain = recursion_arrays(recursion)
        self._fronts = fill(self._chain, limit or without_limit(memory, least.table))

    @classmethod
    def solve(cls, recursion: Recursion, memory: int, least: LeastMemory) -> Self:
        """Return fronts that hold an optimal schedule for `memory`, which must be feasible."""
        bound = LagrangianBound(recursion_arrays(recursion), memory, least.table)
        for limit in growing_limits(bound.root, recursion.rerun_time):
            fronts = cls(recursion, memory, least, pruning_limit(bound, limit))
            overhead = fronts.root.overhead
            if len(overhead) and overhead[-1] <= limit:
                return fronts
        raise AssertionError("limits never end")

    @property
    def root(self) -> Front:
        """The front of the whole chain."""
        fronts = self._fronts
        kept = slice(fronts.first[0, -1], fronts.last[0, -1] + 1)
        return Front(fronts.memory[kept], fronts.overhead[kept])

    def decide(self, s: int, t: int, m: int) -> int:
        """Return the optimal decision for stages s..t with m bytes."""
        decision = int(choose(self._chain, self._fronts, s, t, m))
        if decision < -1:
            raise AssertionError(f"no decision reaches O({s}, {t}, {m})")
        return decision


def compiled_least_memory(recursion: Recursion) -> LeastMemory:
    """Return `LeastMemory` of `recursion`, its table filled by compiled loops."""
    return LeastMemory(recursion, least_memory_table(recursion_arrays(recursion)))
