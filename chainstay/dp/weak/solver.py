"""The weakly persistent dynamic program, corrected: exact in bytes.

A schedule is *weakly persistent* when saved data stay until their backward, but a checkpoint
may move on before ([BEHJS24], Definition 4.3). ``W(s, t, l, m)`` is the least time to go from
memory ``{a^s, δ^{l+1}}`` to ``{δ^t}``, s <= t <= l, with `m` bytes besides ``a^s``; the whole
chain is ``W(0, 0, n-1, m)``::

    W(s, t, l, m) = min(
        u + W(e, e, l, m - ā) + u_b                    keep s .. e-1      s = t, e <= l + 1
                                                       under an option; W(l+1, l+1, l, ·) = 0
        u_f[s] + W(s+1, t, l, m + a[s] - a[s+1])       move a^s on        s < t
        u_f[s] + .. + u_f[j-1] + W(j, k, l, m - a[j])  keep a^s, move a copy on to j, take
            + W(s, t, k-1, m) )                        the backwards l..k, then t..k-1
                                                       s < j <= k, t < k <= l

Theorem 4.7 as printed is wrong; ``docs/derivations/weakly-persistent.md`` shows where, and
why this one costs O(n^4) instead of O(n^6): which j is best does not depend on s. Overheads
are counted above ``Σ u_f[s..t-1]`` and the base times of t..l, so that moving costs nothing.
Forwards are first runs if l is the loss, and later runs otherwise, as in the persistent program;
an option that needs no input keeps it as any other does (``docs/derivations/options.md``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np

from chainstay.dp.bounds.bound_pruning import growing_limits, pruning_limit
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain.fronts import ChainFronts, is_compiled, least_memory
from chainstay.dp.chain.recursion_arrays import recursion_arrays, split_arrays
from chainstay.dp.recursion import (
    KEEP,
    NO_DECISION,
    Recursion,
    unfold,
)
from chainstay.dp.weak.kernels import MOVE, WeakState, choose_weak, fill_weak
from chainstay.dp.weak.least_memory import least_weak_memory
from chainstay.dp.weak.move_bound import move_bound
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.problems.exactness import is_complete, never_needs_a_rerun
from chainstay.profiles import ChainProfile, require_no_environments
from chainstay.schedule import Discards, Op, OpKind, Schedule, forwards_dropping_inputs
from chainstay.solution import Claim, Family

_Part: TypeAlias = tuple[WeakState, int]
"""A state, and the bytes to solve it with."""

_SETTING: Final = "persistence='weak'"


def solve_weak(profile: ChainProfile, budget: int) -> Claim:
    """Return the fastest weakly persistent schedule within `budget` bytes; `DP` documents it.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The chain has skips, or a stage an environment.

    Complexity:
        O(n^4 p) time and O(n^3 p) memory for fronts of p breakpoints, before pruning.
    """
    _require_supported(profile)
    recursion = Recursion.from_profile(profile)
    memory = min(budget - profile.input_bytes, recursion.keep_all_need)
    weak = _WeakProgram(recursion, memory)
    if weak.overhead is None:
        raise InfeasibleBudgetError(
            budget=budget,
            required=weak_least_budget(profile),
            stages=len(profile),
            family=Family.WEAKLY_PERSISTENT,
        )
    makespan = recursion.base_time + weak.overhead
    family, discards = _claim(profile, makespan)
    return Claim(
        schedule=weak.schedule(),
        makespan=makespan,
        lower_bound=makespan,
        family=family,
        discards=discards,
    )


def weak_least_budget(profile: ChainProfile) -> int:
    """Return the least budget, in bytes, for which there is a weakly persistent schedule.

    Complexity:
        O(n^4) time, O(n^3) memory.
    """
    _require_supported(profile)
    by_kind = recursion_arrays(Recursion.from_profile(profile))
    return int(least_weak_memory(by_kind)) + profile.input_bytes


def _require_supported(profile: ChainProfile) -> None:
    """Refuse a chain with skips, or a stage with an environment."""
    if profile.skips:
        raise InvalidProfileError(
            f"this chain has {len(profile.skips)} skips, and DP({_SETTING}) is exact only where "
            "what an activation adds to memory does not depend on what else is kept. Use DP(), "
            "which takes skips, or leave them out of the profile to count each one in full."
        )
    require_no_environments(profile, f"DP({_SETTING})")


class _WeakProgram:
    """The recurrence of one profile, solved for one memory.

    Attributes:
        overhead: Least overhead, in ns; ``None`` if nothing fits.
    """

    overhead: int | None = None

    def __init__(self, recursion: Recursion, memory: int) -> None:
        self._recursion, self._memory = recursion, memory
        self._chain = recursion_arrays(recursion)
        self._split = split_arrays(self._chain.again), split_arrays(self._chain.first)
        # the least memory of persistent schedules says nothing about these: none is assumed
        nothing = np.zeros((recursion.stages, recursion.stages), dtype=np.int64)
        bound = LagrangianBound(self._chain, memory, nothing, moves_checkpoints=True)
        self._bound = bound
        self._move_bound = move_bound(self._chain, bound.outside, bound.restarted)
        least = least_memory(recursion, for_numbers=True)
        if memory >= least.root:  # the persistent optimum is a schedule of this class
            compiled = is_compiled(recursion.stages, for_numbers=True)
            fronts = ChainFronts.solve(recursion, memory, least, compiled=compiled)
            self._fill(int(fronts.root.overhead[-1]))
        elif memory >= least_weak_memory(self._chain):
            for limit in growing_limits(bound):
                self._fill(limit)
                if self.overhead is not None:
                    break

    def schedule(self) -> Schedule:
        """Return the optimal schedule."""
        whole = WeakState(0, 0, self._recursion.stages - 1)
        return unfold((whole, self._memory), self._decided)

    def _decided(self, part: _Part) -> Iterator[Op | _Part]:
        """Yield what to do for a state with so many bytes, in order."""
        recursion, (state, m) = self._recursion, part
        activation = recursion.activation
        s, t, end = state
        costs = recursion.costs(end)
        arrays = self._split[costs is recursion.first]
        rerun = recursion.again.elapsed
        k, j = choose_weak(arrays, self._fronts, state, m, rerun[t] - rerun[s])
        if k == NO_DECISION:
            raise AssertionError(f"no decision reaches W({s}, {t}, {end}, {m})")
        if k == MOVE:
            yield Op(OpKind.FORWARD_DROP, s)
            yield WeakState(s + 1, t, end), m + int(activation[s] - activation[s + 1])
        elif k <= KEEP:
            o = KEEP - k
            after = int(costs.end[o])
            yield Op(OpKind.FORWARD_KEEP_ALL, s, option=int(costs.number[o]))
            if after <= end:
                yield WeakState(after, after, end), m - int(costs.saved[o])
            yield Op(OpKind.BACKWARD, s)
        else:
            yield from forwards_dropping_inputs(s, j - 1)
            yield WeakState(j, k, end), m - int(activation[j])
            yield WeakState(s, t, k - 1), m

    def _fill(self, limit: int) -> None:
        """Compute the fronts below a limit in ns; set `overhead` if an optimum lies below it."""
        self._fronts = fill_weak(self._chain, pruning_limit(self._bound, limit), self._move_bound)
        whole = self._recursion.stages - 1  # its number among the fronts
        if self._fronts.size[whole] and self._fronts.best[whole] <= limit:
            self.overhead = int(self._fronts.best[whole])


def _claim(profile: ChainProfile, makespan: int) -> tuple[Family, Discards]:
    """Return the schedules among which a weakly persistent optimum is the optimum."""
    if makespan == profile.least_time:
        return Family.ALL, Discards.TABLE1
    if not is_complete(profile, Discards.TAPE):
        return Family.WEAKLY_PERSISTENT, Discards.TABLE1
    return Family.ALL, Discards.TABLE1 if never_needs_a_rerun(profile) else Discards.TAPE
