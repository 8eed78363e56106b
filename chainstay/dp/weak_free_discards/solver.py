"""The dynamic program for free discards in which checkpoints may move on: exact in bytes.

It is the wider of two (`chainstay.dp.free_discards` is the other): a checkpoint may move on before
its backward, too. A sub-chain then starts with the saved data of its last stage *held* or not,
and ends with those of the stage before its last backward *left* or not.
``F(s, t, l, held, left, m)`` is the least time from ``{a^s, δ^{l+1}}`` and, if held, ``ā_l``
to ``{δ^t}`` and, if left, ``ā_{t-1}``, with `m` bytes besides ``a^s``::

    F = min(
        u_b[s]                                        s = t = l, held
        u_f[s] + F(s+1, s+1, l, held, no, m - ā[s])   keep all of s           s = t, not left
            + u_b[s]
        u_f[s] + F(s+1, s+1, l, held, no,             record s, drop a^s      s = t-1, left
                   m + a[s] - ā[s])
        u_f[s] + F(s+1, t, l, held, left,             move a^s on             s < t
                   m + a[s] - a[s+1])
        u_f[s] + .. + u_f[j-1]                        keep a^s, move a copy on to j, take the
            + F(j, k, l, held, left', m - a[j])       backwards l..k, maybe leaving ā_{k-1},
            + F(s, t, k-1, left', left, m) )          then k-1..t;  s < j <= k, t < k

With held, left and left' never true this is the weakly persistent program (`chainstay.dp.weak`).
With t = s, or s + 1 if left, checkpoints never move: that is `chainstay.dp.free_discards`.
``docs/derivations/free-discards.md`` has the derivation, the pruning and what it is worth.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from chainstay.dp.bounds.bound_pruning import pruning_limit, without_limit
from chainstay.dp.bounds.overhead_limits import growing_limits
from chainstay.dp.bounds.relaxed_knapsack_bound import RelaxedKnapsackBound
from chainstay.dp.free_discards.solver import solve_free_discards
from chainstay.dp.recursion import KEEP, Recursion, require_no_skips
from chainstay.dp.weak_free_discards.kernels import (
    MOVE,
    RECORD_AND_DROP,
    RESTART,
    WeakFreeDiscardsChain,
    WeakFreeDiscardsFrontPool,
    WeakFreeDiscardsState,
    choose,
    fill,
)
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["solve_weak_free_discards", "weak_free_discards_least_budget"]

_Step: TypeAlias = Op | tuple[WeakFreeDiscardsState, int]
"""An operation, or a state and the bytes to solve it with."""

_SETTING: Final = "persistence='weak', discards='free'"
_UNLIMITED: Final = 2**60


def solve_weak_free_discards(profile: ChainProfile, budget: int) -> Claim:
    """Return the fastest weakly persistent schedule under free discards within `budget` bytes.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The chain has skips.

    Complexity:
        O(n^4 p) time for fronts of p breakpoints, before pruning.
    """
    program = _WeakFreeDiscardsProgram(profile)
    memory = min(budget - profile.input_bytes, program.recursion.keep_all_need)
    known = _free_discards_overhead(profile, memory + profile.input_bytes)
    if known is None and memory < program.least_memory:
        raise InfeasibleBudgetError(
            budget=budget,
            required=program.least_memory + profile.input_bytes,
            stages=len(profile),
            family=Family.WEAKLY_PERSISTENT,
        )
    schedule, overhead = program.solve(memory, known)
    makespan = profile.least_time + overhead
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=makespan,
        family=Family.WEAKLY_PERSISTENT if overhead else Family.ALL,
        discards=Discards.FREE,
    )


def weak_free_discards_least_budget(profile: ChainProfile) -> int:
    """Return the least budget, in bytes, in which `solve_weak_free_discards` has a schedule.

    Complexity:
        O(n^4) time.
    """
    return _WeakFreeDiscardsProgram(profile).least_memory + profile.input_bytes


def _free_discards_overhead(profile: ChainProfile, budget: int) -> int | None:
    """Return the least overhead, in ns, without moving checkpoints; ``None`` if nothing fits."""
    try:
        return solve_free_discards(profile, budget).makespan - profile.least_time
    except InfeasibleBudgetError:
        return None


class _WeakFreeDiscardsProgram:
    """The recurrence of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile) -> None:
        require_no_skips(profile, _SETTING)
        arrays = profile.arrays()
        gradient, saved = arrays.gradient, arrays.saved
        self.recursion = Recursion.from_profile(profile)
        self._chain = WeakFreeDiscardsChain(
            elapsed=self.recursion.elapsed,
            activation=self.recursion.activation,
            saved=saved,
            transit=self.recursion.transit,
            record=saved + arrays.forward_overhead,
            backward=saved + arrays.backward_overhead + gradient[1:] + gradient[:-1],
            besides=np.stack([gradient[1:], gradient[1:] + saved]),
        )

    @cached_property
    def least_memory(self) -> int:
        """The least bytes besides the input: without times, each front is one breakpoint."""
        timeless = self._chain._replace(elapsed=np.zeros_like(self._chain.elapsed))
        nothing = np.zeros((self.recursion.stages + 1,) * 2, dtype=np.int64)
        fronts = fill(timeless, without_limit(_UNLIMITED, nothing))
        return int(fronts.least[self._whole])

    def solve(self, memory: int, known: int | None) -> tuple[Schedule, int]:
        """Return an optimal schedule for feasible `memory`, in bytes, and its overhead in ns.

        `known` is the overhead of some schedule, in ns, if one is known.
        """
        fronts = self._fronts(memory, known)
        return self._schedule(fronts, memory), int(fronts.best[self._whole])

    def _fronts(self, memory: int, known: int | None) -> WeakFreeDiscardsFrontPool:
        """Return fronts that hold an optimal schedule."""
        bound = RelaxedKnapsackBound(self.recursion.elapsed, self.recursion.saved, memory)
        limits = growing_limits(bound.root, self.recursion.rerun_time)
        for limit in limits if known is None else [known]:
            fronts = fill(self._chain, pruning_limit(bound, limit))
            if fronts.size[self._whole] and fronts.best[self._whole] <= limit:
                return fronts
        raise AssertionError(f"no schedule within an overhead of {known} ns")

    @property
    def _whole(self) -> int:
        """The number of the front of the whole chain."""
        return self.recursion.stages - 1

    def _schedule(self, fronts: WeakFreeDiscardsFrontPool, memory: int) -> Schedule:
        """Return the schedule that the fronts describe, with `memory` bytes besides the input."""
        ops: list[Op] = []
        pending: list[_Step] = [
            (WeakFreeDiscardsState(0, 0, self.recursion.stages - 1, 0, 0), memory)
        ]
        while pending:
            step = pending.pop()
            if isinstance(step, Op):
                ops.append(step)
            else:
                pending.extend(reversed(self._expand(fronts, *step)))
        return Schedule(tuple(ops))

    def _expand(
        self, fronts: WeakFreeDiscardsFrontPool, state: WeakFreeDiscardsState, m: int
    ) -> list[_Step]:
        """Return what to do for a state with `m` bytes, in order."""
        activation, saved = self.recursion.activation, self.recursion.saved
        s, t, end, held, left = state
        decision, k, j, is_left = choose(self._chain, fronts, state, m)
        if decision == RESTART:
            return [
                Op(OpKind.FORWARD_KEEP_INPUT, s),
                *(Op(OpKind.FORWARD_DROP, i) for i in range(s + 1, j)),
                (WeakFreeDiscardsState(j, k, end, held, is_left), m - int(activation[j])),
                (WeakFreeDiscardsState(s, t, k - 1, is_left, left), m),
            ]
        if decision == MOVE:
            more = int(activation[s] - activation[s + 1])
            return [
                Op(OpKind.FORWARD_DROP, s),
                (WeakFreeDiscardsState(s + 1, t, end, held, left), m + more),
            ]
        if decision not in {KEEP, RECORD_AND_DROP}:
            raise AssertionError(f"no decision reaches {state} with {m} bytes")
        record = [] if held and s == end else [Op(OpKind.FORWARD_KEEP_ALL, s)]
        dropped = [Op(OpKind.DISCARD_ACTIVATION, s)] if decision == RECORD_AND_DROP else []
        less = int(saved[s]) - (int(activation[s]) if decision == RECORD_AND_DROP else 0)
        inner = [(WeakFreeDiscardsState(s + 1, s + 1, end, held, 0), m - less)] if s < end else []
        back = [Op(OpKind.BACKWARD, s)] if decision == KEEP else []
        return [*record, *dropped, *inner, *back]
