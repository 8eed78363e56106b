"""The dynamic program for free discards, where saved data may outlive their input: exact in bytes.

Under the rules of ``discards="free"``, saved data ``ā_k`` may stay while their input
``a^k`` is dropped; it is made again, by somebody who needs it anyway, before ``B k``. A sub-chain
``s..l`` then has two more states: it may start with the saved data of its last stage *held*, and
end with those of its first stage *left* instead of ``B s``. With `m` bytes besides ``a^s`` (those
held count in `m`)

    N(s, l, held, m)   from {a^s, δ^{l+1}}, and ā_l if held, to {δ^s},
    D(s, l, held, m)   from the same to {δ^{s+1}, ā_s}

take, as least time::

    N = min( u_b[s]                                                          s = l, held
             u_f[s] + N(s+1, l, held, m - ā[s]) + u_b[s]                     keep all of s
             restart )
    D = min( u_f[s] + N(s+1, l, held, m + freed[s] - ā[s])                   record s, drop a^s
             restart )

where *restart* keeps ``a^s``, sweeps on to a stage j, s < j <= l, takes the backwards from l
down to there, maybe leaving ``ā_j``, and goes back to s; `X` stands for N or D::

    u_f[s] + .. + u_f[j-1] + min( N(j, l, held, m - a[s, j]) + X(s, j-1, no, m),
                                  D(j, l, held, m - a[s, j]) + X(s, j, yes, m) )

``a[s, j]`` is what ``a^j`` adds to ``a^s``. With skips, dropping ``a^s`` frees what neither
``ā_s`` nor the activation kept before it has: `sizes` has a node for each case.
``docs/derivations/free-discards.md`` has the derivation, the pruning and what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import TypeAlias

import numpy as np

from chainstay.dp.bounds.bound_pruning import growing_limits, pruning_limit, without_limit
from chainstay.dp.chain.fronts import least_memory
from chainstay.dp.free_discards.kernels import (
    NO_DECISION,
    RECORD,
    FreeDiscardsFrontPool,
    FreeDiscardsState,
    choose,
    fill,
)
from chainstay.dp.free_discards.lagrangian_bound import FreeDiscardsBound
from chainstay.dp.free_discards.sizes import sizes_of
from chainstay.dp.recursion import Recursion, forwards_dropping_inputs, unfold
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.profiles.chain import require_plain
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["free_discards_least_budget", "solve_free_discards"]

_Part: TypeAlias = tuple[FreeDiscardsState, int]
"""A state, and the bytes to solve it with."""

_UNLIMITED = 2**60


def solve_free_discards(profile: ChainProfile, budget: int) -> Claim:
    """Return the fastest persistent schedule under free discards within `budget` bytes.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.

    Complexity:
        O(n^3 p) time for fronts of p breakpoints, before pruning; with skips, times how many
        different ones end at a stage.
    """
    recursion = Recursion.from_profile(profile)
    program = _FreeDiscardsProgram(profile)
    memory = min(budget - profile.input_bytes, recursion.keep_all_need)
    # known at once where a persistent schedule without free discards fits
    if memory < least_memory(recursion).root and memory < program.least_memory:
        raise InfeasibleBudgetError(
            budget=budget,
            required=program.least_memory + profile.input_bytes,
            stages=len(profile),
            family=Family.PERSISTENT,
        )
    schedule, overhead = program.solve(memory)
    makespan = profile.least_time + overhead
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=makespan,
        family=Family.PERSISTENT if overhead else Family.ALL,
        discards=Discards.FREE,
    )


def free_discards_least_budget(profile: ChainProfile) -> int:
    """Return the least budget, in bytes, in which `solve_free_discards` has a schedule.

    Complexity:
        O(n^3) time.
    """
    return _FreeDiscardsProgram(profile).least_memory + profile.input_bytes


class _FreeDiscardsProgram:
    """The recurrence of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile) -> None:
        require_plain(profile, "DP(discards='free')")
        self._sizes = sizes_of(profile)
        self._stages = len(profile)

    @cached_property
    def least_memory(self) -> int:
        """The least bytes besides the input: without times, each front is one breakpoint."""
        n = self._stages
        timeless = self._sizes._replace(elapsed=np.zeros_like(self._sizes.elapsed))
        nothing = np.zeros((2, n, n, 1))
        limit = without_limit(_UNLIMITED, np.zeros((0, 0), dtype=np.int64))
        fronts = fill(timeless, limit._replace(outside=nothing), nothing)
        return int(fronts.least[0, 0, -1])

    def solve(self, memory: int) -> tuple[Schedule, int]:
        """Return an optimal schedule for feasible `memory`, in bytes, and its overhead in ns."""
        bound = FreeDiscardsBound(self._sizes, memory)
        for limit in growing_limits(bound):
            fronts = fill(self._sizes, pruning_limit(bound, limit), bound.dropped)
            overhead = int(fronts.best[0, 0, -1])
            if fronts.size[0, 0, -1] and overhead <= limit:
                return self._schedule(fronts, memory), overhead
        raise AssertionError("limits never end")

    def _schedule(self, fronts: FreeDiscardsFrontPool, memory: int) -> Schedule:
        """Return the schedule that the fronts describe, with `memory` bytes besides the input."""
        whole = FreeDiscardsState(0, 0, self._stages - 1, 0)
        return unfold((whole, memory), partial(self._decided, fronts))

    def _decided(self, fronts: FreeDiscardsFrontPool, part: _Part) -> Iterator[Op | _Part]:
        """Yield what to do for a state with so many bytes, in order."""
        sizes, (state, m) = self._sizes, part
        node, s, end, held = state
        j, is_left = choose(sizes, fronts, state, m)
        if j == NO_DECISION:
            raise AssertionError(f"no decision reaches {state} with {m} bytes")
        if j != RECORD:
            after = int(sizes.node[s, j]) if is_left else j
            yield from forwards_dropping_inputs(s, j - 1)
            yield FreeDiscardsState(after, j, end, held), m - int(sizes.fresh[s, j])
            yield FreeDiscardsState(node, s, j - 1 + is_left, is_left), m
            return
        keeps_input = node == s
        if not (held and s == end):
            yield Op(OpKind.FORWARD_KEEP_ALL, s)
        if not keeps_input:
            yield Op(OpKind.DISCARD_ACTIVATION, s)
        if s < end:
            rest = m - int(sizes.saved[s]) + int(sizes.freed[node])
            yield FreeDiscardsState(s + 1, s + 1, end, held), rest
        if keeps_input:
            yield Op(OpKind.BACKWARD, s)
