"""The choice of code for the exact recursion: numpy on short chains, compiled loops on long ones.

Loading numba takes half a second, and the first time on a machine it compiles for several
more. Chains that numpy solves sooner than that never wait for it; without numba, numpy
solves them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final, Protocol

from chainstay.dp import jit
from chainstay.dp.chain.fronts import NumpyFronts
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.recursion import Front, Recursion

__all__ = ["ExactEngine", "SolvedRecursion", "exact_engine", "least_memory"]

_LONG: Final = 80
"""Stages from which on compiled code is the faster one, its loading included."""
_SHORT: Final = 20
"""Stages from which on compiled code is the faster one in a process that has loaded it already."""


class SolvedRecursion(Protocol):
    """A solved recursion: all that a schedule is read from."""

    @property
    def recursion(self) -> Recursion:
        """The recursion, its sizes in the units of the engine's memories."""
        ...

    @property
    def root(self) -> Front:
        """The front of the whole chain; its last overhead is the optimum."""
        ...

    def decide(self, s: int, t: int, m: int, /) -> int:
        """Return the optimal decision for stages s..t with m bytes."""
        ...


class ExactEngine(Protocol):
    """The class of an engine: `NumpyFronts`, or `CompiledFronts`."""

    def __call__(self, recursion: Recursion, memory: int, least: LeastMemory) -> SolvedRecursion:
        """Return the fronts of every sub-chain."""
        ...

    def solve(self, recursion: Recursion, memory: int, least: LeastMemory) -> SolvedRecursion:
        """Return fronts that hold an optimal schedule for `memory`, which must be feasible."""
        ...


def exact_engine(stages: int, *, for_numbers: bool = False) -> ExactEngine:
    """Return the faster engine for chains of so many stages.

    With `for_numbers`, nobody reads a schedule from it. Only then may the choice depend on what
    ran before in this process: of two optimal schedules, the engines may find different ones.
    """
    if not _is_long(stages, for_numbers=for_numbers):
        return NumpyFronts
    compiled: ExactEngine = import_module("chainstay.dp.chain.compiled_fronts").CompiledFronts
    return compiled


def least_memory(recursion: Recursion, *, for_numbers: bool = False) -> LeastMemory:
    """Return the least memory of every sub-chain, by the faster code.

    `for_numbers` has the meaning that it has for `exact_engine`.
    """
    if not _is_long(recursion.stages, for_numbers=for_numbers):
        return LeastMemory(recursion)
    least: LeastMemory = import_module("chainstay.dp.chain.compiled_fronts").compiled_least_memory(
        recursion
    )
    return least


def _is_long(stages: int, *, for_numbers: bool) -> bool:
    least = _SHORT if for_numbers and jit.is_warm() else _LONG
    return stages >= least and jit.is_available()
