"""Which code runs the exact recursion: plain numpy on short chains, compiled on long ones.

Loading numba takes half a second, and the first time on a machine it compiles for several
more. Chains that numpy solves sooner than that never wait for it; without numba, numpy
solves them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol

from chainstay.dp import jit
from chainstay.dp.feasibility import LeastMemory
from chainstay.dp.fronts import Fronts
from chainstay.dp.recursion import Front, Recursion

__all__ = ["Engine", "ExactEngine", "exact_engine", "least_memory"]

_LONG: Final = 80
"""Stages from which compiled code is the faster one, the wait included."""
_SHORT: Final = 20
"""Likewise, where this process has waited already."""


class Engine(Protocol):
    """A solved recursion: all that a schedule is read from."""

    @property
    def recursion(self) -> Recursion:
        """In the units of its memories."""
        ...

    @property
    def root(self) -> Front:
        """The front of the whole chain; its last overhead is the optimum."""
        ...

    def decide(self, s: int, t: int, m: int, /) -> int:
        """The optimal decision for stages s..t with m bytes."""
        ...


class ExactEngine(Protocol):
    """The class of an engine: `Fronts`, or its compiled double."""

    def __call__(self, recursion: Recursion, memory: int, least: LeastMemory) -> Engine:
        """Fronts of every sub-chain."""
        ...

    def solve(self, recursion: Recursion, memory: int, least: LeastMemory) -> Engine:
        """Fronts that hold an optimal schedule for `memory`, which must be feasible."""
        ...


def exact_engine(stages: int, *, for_numbers: bool = False) -> ExactEngine:
    """The faster engine for chains of so many stages.

    With `for_numbers`, nobody reads a schedule from it. Only then may the choice depend on what
    ran before in this process: of two optimal schedules, the engines may find different ones.
    """
    if not _is_long(stages, for_numbers=for_numbers):
        return Fronts
    compiled: ExactEngine = import_module("chainstay.dp.compiled").CompiledFronts
    return compiled


def least_memory(recursion: Recursion, *, for_numbers: bool = False) -> LeastMemory:
    """Least memory of every sub-chain, the faster way; `for_numbers` as of `exact_engine`."""
    if not _is_long(recursion.stages, for_numbers=for_numbers):
        return LeastMemory(recursion)
    least: LeastMemory = import_module("chainstay.dp.compiled").compiled_least_memory(recursion)
    return least


def _is_long(stages: int, *, for_numbers: bool) -> bool:
    least = _SHORT if for_numbers and jit.is_warm() else _LONG
    return stages >= least and jit.is_available()
