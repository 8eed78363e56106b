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

With stage options, N takes the least of all of them, `D` has one more index, and *held* is the
option of what is held. What needs no input is returned at once: ``D`` and then ``B j``. That
alone is what an autograd tape allows (``discards="tape"``): ``docs/derivations/options.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from typing import Final, TypeAlias

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
from chainstay.dp.free_discards.sizes import HELD, Sizes, sizes_of
from chainstay.dp.recursion import Recursion, unfold
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import ChainProfile, require_no_environments
from chainstay.schedule import Discards, Op, OpKind, Schedule, forwards_dropping_inputs
from chainstay.solution import Claim, Family

_Part: TypeAlias = tuple[FreeDiscardsState, int]
"""A state, and the bytes to solve it with."""

_UNLIMITED: Final = 2**60


def may_drop_inputs(profile: ChainProfile) -> bool:
    """Return whether a tape may drop inputs: an option of the chain needs none."""
    stages = profile.stages
    return not all(option.needs_input for stage in stages for option in stage.all_options)


def keeps_stages_apart(profile: ChainProfile) -> bool:
    """Return whether each option keeps one stage, as this program asks for."""
    return all(option.stages == 1 for stage in profile.stages for option in stage.options)


def solve_free_discards(
    profile: ChainProfile, budget: int, rules: Discards = Discards.FREE
) -> Claim:
    """Return the fastest persistent schedule under `rules` within `budget` bytes.

    Args:
        profile: The chain; each option keeps one stage.
        budget: Bytes.
        rules: `Discards.FREE`, or `Discards.TAPE`: only inputs that nothing needs are dropped.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: An option keeps several stages, or a stage has an environment.

    Complexity:
        O(n^3 p) time for fronts of p breakpoints, before pruning; with skips, times how many
        different ones end at a stage. With K options a stage, times K (K + 1)^2 at most.
    """
    recursion = Recursion.from_profile(profile)
    program = _FreeDiscardsProgram(profile, rules)
    memory = min(budget - profile.input_bytes, recursion.keep_all_need)
    # known at once where a persistent schedule without discards fits
    if memory < least_memory(recursion).root and memory < program.least_memory:
        raise InfeasibleBudgetError(
            budget=budget,
            required=program.least_memory + profile.input_bytes,
            stages=len(profile),
            family=Family.PERSISTENT,
        )
    schedule, makespan = program.solve(memory)
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=makespan,
        family=Family.ALL if makespan == profile.least_time else Family.PERSISTENT,
        discards=rules,
    )


def free_discards_least_budget(profile: ChainProfile, rules: Discards) -> int:
    """Return the least budget, in bytes, in which `solve_free_discards` has a schedule.

    Complexity:
        O(n^3) time.
    """
    return _FreeDiscardsProgram(profile, rules).least_memory + profile.input_bytes


class _FreeDiscardsProgram:
    """The recurrence of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile, rules: Discards) -> None:
        require_no_environments(profile, f"DP(discards='{rules}')")
        if not keeps_stages_apart(profile):
            raise InvalidProfileError(
                "this chain has options that keep several stages together, which "
                "DP(discards='free') does not take; use DP(), or leave them out of the profile"
            )
        self._by_kind, self._base_time = sizes_of(profile, rules)
        self._stages = len(profile)

    @cached_property
    def least_memory(self) -> int:
        """The least bytes besides the input: without times, each front is one breakpoint."""
        n = self._stages
        first, again = (
            sizes._replace(elapsed=np.zeros_like(sizes.elapsed), extra=np.zeros_like(sizes.extra))
            for sizes in self._by_kind
        )
        nothing = np.zeros((2, n, n, 1))
        limit = without_limit(_UNLIMITED, np.zeros((0, 0), dtype=np.int64))
        fronts = fill(
            self._by_kind._replace(first=first, again=again),
            limit._replace(outside=nothing),
            nothing,
        )
        return int(fronts.least[0, 0, -1])

    def solve(self, memory: int) -> tuple[Schedule, int]:
        """Return an optimal schedule for feasible `memory`, in bytes, and its makespan in ns."""
        bound = FreeDiscardsBound(self._by_kind, memory)
        for limit in growing_limits(bound):
            fronts = fill(self._by_kind, pruning_limit(bound, limit), bound.dropped)
            overhead = int(fronts.best[0, 0, -1])
            if fronts.size[0, 0, -1] and overhead <= limit:
                return self._schedule(fronts, memory), self._base_time + overhead
        raise AssertionError("limits never end")

    def _schedule(self, fronts: FreeDiscardsFrontPool, memory: int) -> Schedule:
        """Return the schedule that the fronts describe, with `memory` bytes besides the input."""
        whole = FreeDiscardsState(0, 0, self._stages - 1, 0)
        return unfold((whole, memory), partial(self._decided, fronts))

    def _sizes(self, state: FreeDiscardsState) -> Sizes:
        is_first = state.end == self._stages - 1 and not state.held
        return self._by_kind.first if is_first else self._by_kind.again

    def _decided(self, fronts: FreeDiscardsFrontPool, part: _Part) -> Iterator[Op | _Part]:
        """Yield what to do for a state with so many bytes, in order."""
        state, m = part
        sizes, (node, s, end, held) = self._sizes(state), state
        j, which = choose(sizes, fronts, state, m)
        if j == NO_DECISION:
            raise AssertionError(f"no decision reaches {state} with {m} bytes")
        if j == RECORD:
            if not (held and s == end):
                yield Op(OpKind.FORWARD_KEEP_ALL, s, option=int(sizes.number[which]))
            if node != s:
                yield Op(OpKind.DISCARD_ACTIVATION, s)
            if s < end:
                rest = m - int(sizes.saved[which]) + int(sizes.freed[node])
                yield FreeDiscardsState(s + 1, s + 1, end, held), rest
            if node == s:
                yield Op(OpKind.BACKWARD, s)
            return
        yield from forwards_dropping_inputs(s, j - 1)
        after = int(sizes.node[s, j]) + which - 1 if which else j
        yield FreeDiscardsState(after, j, end, held), m - int(sizes.fresh[s, j])
        if which and sizes.outlives[sizes.start[j] + which - 1] == HELD:
            yield FreeDiscardsState(node, s, j, which), m
            return
        if which:
            yield Op(OpKind.BACKWARD, j)
        yield FreeDiscardsState(node, s, j - 1, 0), m
