r"""The weakly persistent dynamic program, corrected: exact in bytes.

A schedule is *weakly persistent* when saved data stay until their backward, but a plain
activation may move on before ([BEHJS24], Definition 4.3): it floats. ``W(s, t, l, m)`` is
the least time to go from memory ``{a^s, δ^{l+1}}`` to ``{δ^t}``, s <= t <= l, with `m` bytes
besides ``a^s``; the whole chain is ``W(0, 0, n-1, m)``::

    W(s, t, l, m) = min(
        u_f[s] + W(s+1, s+1, l, m - ā[s]) + u_b[s]     keep all of s      s = t < l
        u_f[s] + W(s+1, t, l, m + a[s] - a[s+1])       move a^s on        s < t
        u_f[s] + .. + u_f[j-1] + W(j, k, l, m - a[j])  keep a^s, float on to j, take the
            + W(s, t, k-1, m) )                        backwards l..k, then t..k-1
                                                       s < j <= k, t < k <= l

Theorem 4.7 as printed is wrong; ``docs/derivations/weakly-persistent.md`` shows where, and
why this one costs O(n^4) instead of O(n^6): which j is best does not depend on s. Overheads
are counted above ``Σ u_f[s..l] + Σ u_b[t..l]``, so that moving costs nothing.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chainstay.dp.compiled import chain_of
from chainstay.dp.deepening import growing_limits
from chainstay.dp.engines import exact_engine, least_memory
from chainstay.dp.priced_pruning import priced_limit
from chainstay.dp.prices import PriceBound
from chainstay.dp.recursion import KEEP, Recursion, require_no_skips
from chainstay.dp.weak_kernels import (
    MOVE,
    choose_weak,
    fill_weak,
    floating_around,
    least_weak_memory,
)
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["solve_weak", "weak_least_budget"]

_SETTING: Final = "persistence='weak'"


def solve_weak(profile: ChainProfile, budget: int) -> Claim:
    """The fastest weakly persistent schedule; `DP` documents it.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The chain has skips.

    Complexity:
        O(n^4 p) time and O(n^3 p) memory for fronts of p corners, before pruning.
    """
    require_no_skips(profile, _SETTING)
    recursion = Recursion.of(profile)
    memory = min(budget - profile.input_bytes, recursion.keep_all_need)
    weak = _WeakFronts(recursion, memory)
    if weak.overhead is None:
        raise InfeasibleBudgetError(
            budget=budget,
            required=weak_least_budget(profile),
            stages=len(profile),
            family=Family.WEAKLY_PERSISTENT,
        )
    makespan = profile.least_time + weak.overhead
    family, discards = _claim(profile, weak.overhead)
    return Claim(
        schedule=weak.schedule(),
        makespan=makespan,
        lower_bound=makespan,
        family=family,
        discards=discards,
    )


def weak_least_budget(profile: ChainProfile) -> int:
    """The least budget, in bytes, for which there is a weakly persistent schedule.

    Complexity:
        O(n^4) time, O(n^3) memory.
    """
    require_no_skips(profile, _SETTING)
    return int(least_weak_memory(chain_of(Recursion.of(profile)))) + profile.input_bytes


class _WeakFronts:
    """Fronts of all W(s, t, l, ·), as far as they matter.

    Attributes:
        overhead: Of the optimum, in ns; ``None`` if nothing fits.
    """

    overhead: int | None = None

    def __init__(self, recursion: Recursion, memory: int) -> None:
        self._recursion, self._memory = recursion, memory
        self._chain = chain_of(recursion)
        # the least memory of persistent schedules says nothing about these: none is assumed
        nothing = np.zeros((recursion.stages, recursion.stages), dtype=np.int64)
        self._bound = PriceBound(self._chain, memory, nothing, is_floating=True)
        self._floating = floating_around(self._chain, self._bound.around, self._bound.restarted)
        least = least_memory(recursion, for_numbers=True)
        if memory >= least.root:  # the persistent optimum is a schedule of this class
            engine = exact_engine(recursion.stages, for_numbers=True)
            self._fill(int(engine.solve(recursion, memory, least).root.overhead[-1]))
        elif memory >= least_weak_memory(self._chain):
            for limit in growing_limits(self._bound.root, recursion.rerun_time):
                self._fill(limit)
                if self.overhead is not None:
                    break

    def schedule(self) -> Schedule:
        """The optimal schedule."""
        ops: list[Op] = []
        pending: list[Op | tuple[int, int, int, int]] = [
            (0, 0, self._recursion.stages - 1, self._memory)
        ]
        while pending:
            item = pending.pop()
            if isinstance(item, Op):
                ops.append(item)
            else:
                pending.extend(reversed(self._expand(*item)))
        return Schedule(tuple(ops))

    def _expand(self, s: int, t: int, end: int, m: int) -> list[Op | tuple[int, int, int, int]]:
        """What to do for W(s, t, end, m), in order."""
        recursion = self._recursion
        activation = recursion.activation
        k, j = choose_weak(self._chain, self._corners, s, t, end, m)
        if k == KEEP:
            inner = (s + 1, s + 1, end, m - int(recursion.saved[s]))
            rest = [inner] if s < end else []
            return [Op(OpKind.FORWARD_KEEP_ALL, s), *rest, Op(OpKind.BACKWARD, s)]
        if k == MOVE:
            more = int(activation[s] - activation[s + 1])
            return [Op(OpKind.FORWARD_DROP, s), (s + 1, t, end, m + more)]
        if k < 0:
            raise AssertionError(f"no decision reaches W({s}, {t}, {end}, {m})")
        return [
            Op(OpKind.FORWARD_KEEP_INPUT, s),
            *(Op(OpKind.FORWARD_DROP, i) for i in range(s + 1, j)),
            (j, k, end, m - int(activation[j])),
            (s, t, k - 1, m),
        ]

    def _fill(self, limit: int) -> None:
        self._corners = fill_weak(self._chain, priced_limit(self._bound, limit), self._floating)
        number = self._recursion.stages - 1
        first, size = int(self._corners.first[number]), int(self._corners.size[number])
        if size and self._corners.overhead[first + size - 1] <= limit:
            self.overhead = int(self._corners.overhead[first + size - 1])


def _claim(profile: ChainProfile, overhead: int) -> tuple[Family, Discards]:
    """The schedules among which a weakly persistent optimum is the optimum.

    THEORY, domain A: when no gradient exceeds its activation and saved data contain the
    output, it is the optimum of an autograd tape; when moreover a forward never needs more
    than its backward (domain B), that of Table 1.
    """
    p = profile.arrays()
    in_domain_a = bool((p.gradient <= p.activation).all() and (p.saved >= p.activation[1:]).all())
    in_domain_b = bool((p.forward_overhead <= p.backward_overhead + p.gradient[:-1]).all())
    if overhead == 0 or (in_domain_a and in_domain_b):
        return Family.ALL, Discards.TABLE1
    if in_domain_a:
        return Family.ALL, Discards.TAPE
    return Family.WEAKLY_PERSISTENT, Discards.TABLE1
