"""The engine for long chains: `Fronts` with its inner loops compiled.

`engines` decides when to use it; without numba it would be right, but slow.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from chainstay.dp.deepening import growing_limits
from chainstay.dp.feasibility import LeastMemory
from chainstay.dp.kernels import choose, fill
from chainstay.dp.priced_pruning import PricedLimit, priced_limit, without_limit
from chainstay.dp.prices import PriceBound
from chainstay.dp.pruning import Chain, least_memory
from chainstay.dp.recursion import Front, Recursion

__all__ = ["CompiledFronts", "chain_of", "compiled_least_memory"]


class CompiledFronts:
    """Fronts of all sub-chains, as far as they matter below a limit; see `Fronts`.

    Args:
        recursion: In bytes and ns.
        memory: Bytes besides the network's input.
        least: Least memory of every sub-chain.
        limit: What can be part of a schedule that matters; ``None`` keeps every corner.

    Attributes:
        recursion: As given.
    """

    def __init__(
        self,
        recursion: Recursion,
        memory: int,
        least: LeastMemory,
        limit: PricedLimit | None = None,
    ) -> None:
        self.recursion = recursion
        self._chain = chain_of(recursion)
        self._corners = fill(self._chain, limit or without_limit(memory, least.of))

    @classmethod
    def solve(cls, recursion: Recursion, memory: int, least: LeastMemory) -> Self:
        """Fronts that hold an optimal schedule for `memory`, which must be feasible."""
        bound = PriceBound(chain_of(recursion), memory, least.of)
        for limit in growing_limits(bound.root, recursion.rerun_time):
            fronts = cls(recursion, memory, least, priced_limit(bound, limit))
            overhead = fronts.root.overhead
            if len(overhead) and overhead[-1] <= limit:
                return fronts
        raise AssertionError("limits never end")

    @property
    def root(self) -> Front:
        """The front of the whole chain."""
        corners = self._corners
        kept = slice(corners.first[0, -1], corners.last[0, -1] + 1)
        return Front(corners.memory[kept], corners.overhead[kept])

    def decide(self, s: int, t: int, m: int) -> int:
        """The optimal decision for stages s..t with m bytes."""
        decision = int(choose(self._chain, self._corners, s, t, m))
        if decision < -1:
            raise AssertionError(f"no decision reaches O({s}, {t}, {m})")
        return decision


def compiled_least_memory(recursion: Recursion) -> LeastMemory:
    """`LeastMemory` by compiled loops."""
    return LeastMemory(recursion, least_memory(chain_of(recursion)))


def chain_of(recursion: Recursion) -> Chain:
    """`recursion` for compiled code."""
    return Chain(
        elapsed=recursion.elapsed,
        activation=recursion.nearest,
        fresh=recursion.fresh if recursion.has_skips else np.empty((0, 0), dtype=np.int64),
        saved=recursion.saved,
        gradient=recursion.gradient,
        keep_floor=recursion.keep_floor,
        transit=recursion.transit,
    )
