r"""The dynamic program for saved data that outlive their input, activations floating.

The wider of two (`detached` is the other): plain activations may move on before their
backward, too. A sub-chain then starts with the saved data of its last stage *held* or not,
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
        u_f[s] + .. + u_f[j-1]                        keep a^s, float on to j, take the
            + F(j, k, l, held, detached, m - a[j])    backwards l..k, maybe leaving ā_{k-1},
            + F(s, t, k-1, detached, left, m) )       then k-1..t;  s < j <= k, t < k

With held, left and detached never true this is the weakly persistent program (`weak`).
With t = s, or s + 1 if left, activations never float, and it is that of `detached`.
``docs/derivations/detached.md`` has the derivation, the pruning and what it is worth.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, TypeAlias

import numpy as np

from chainstay.dp.compiled import chain_of
from chainstay.dp.deepening import growing_limits
from chainstay.dp.detached import solve_detached
from chainstay.dp.floating_kernels import (
    DETACH,
    MOVE,
    RESTART,
    Corners,
    Needs,
    Span,
    choose,
    fill,
)
from chainstay.dp.knapsack_prices import KnapsackPrices
from chainstay.dp.priced_pruning import priced_limit, without_limit
from chainstay.dp.recursion import KEEP, Recursion, require_no_skips
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["floating_least_budget", "solve_floating"]

_Step: TypeAlias = Op | tuple[Span, int]

_SETTING: Final = "persistence='weak', discards='free'"
_UNLIMITED: Final = 2**60


def solve_floating(profile: ChainProfile, budget: int) -> Claim:
    """The fastest weakly persistent schedule with detached saved data.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The chain has skips.

    Complexity:
        O(n^4 p) time for fronts of p corners, before pruning.
    """
    program = _Program(profile)
    memory = min(budget - profile.input_bytes, program.recursion.keep_all_need)
    attached = _attached_overhead(profile, memory + profile.input_bytes)
    if attached is None and memory < program.least_memory:
        raise InfeasibleBudgetError(
            budget=budget,
            required=program.least_memory + profile.input_bytes,
            stages=len(profile),
            family=Family.WEAKLY_PERSISTENT,
        )
    schedule, overhead = program.solve(memory, attached)
    makespan = profile.least_time + overhead
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=makespan,
        family=Family.WEAKLY_PERSISTENT if overhead else Family.ALL,
        discards=Discards.FREE,
    )


def floating_least_budget(profile: ChainProfile) -> int:
    """The least budget, in bytes, in which `solve_floating` has a schedule.

    Complexity:
        O(n^4) time.
    """
    return _Program(profile).least_memory + profile.input_bytes


def _attached_overhead(profile: ChainProfile, budget: int) -> int | None:
    """Of the optimum in which no activation floats, if there is one."""
    try:
        return solve_detached(profile, budget).makespan - profile.least_time
    except InfeasibleBudgetError:
        return None


class _Program:
    """The recursion of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile) -> None:
        require_no_skips(profile, _SETTING)
        arrays = profile.arrays()
        gradient, saved = arrays.gradient, arrays.saved
        self.recursion = Recursion.of(profile)
        self._chain = chain_of(self.recursion)
        self._needs = Needs(
            record=saved + arrays.forward_overhead,
            backward=saved + arrays.backward_overhead + gradient[1:] + gradient[:-1],
            around=np.stack([gradient[1:], gradient[1:] + saved]),
        )

    @cached_property
    def least_memory(self) -> int:
        """Bytes besides the input: without times, each front is one corner, the least memory."""
        timeless = self._chain._replace(elapsed=np.zeros_like(self._chain.elapsed))
        nothing = np.zeros((self.recursion.stages + 1,) * 2, dtype=np.int64)
        corners = fill(timeless, self._needs, without_limit(_UNLIMITED, nothing))
        return int(corners.least[self._whole])

    def solve(self, memory: int, attached: int | None) -> tuple[Schedule, int]:
        """An optimal schedule for feasible `memory`, and its overhead in ns.

        `attached` is that of some schedule, if one is known.
        """
        corners = self._corners(memory, attached)
        return self._schedule(corners, memory), int(corners.best[self._whole])

    def _corners(self, memory: int, attached: int | None) -> Corners:
        """Fronts that hold an optimal schedule."""
        bound = KnapsackPrices(self.recursion.elapsed, self.recursion.saved, memory)
        limits = growing_limits(bound.root, self.recursion.rerun_time)
        for limit in limits if attached is None else [attached]:
            corners = fill(self._chain, self._needs, priced_limit(bound, limit))
            if corners.size[self._whole] and corners.best[self._whole] <= limit:
                return corners
        raise AssertionError(f"no schedule within an overhead of {attached} ns")

    @property
    def _whole(self) -> int:
        """The number of the front of the whole chain."""
        return self.recursion.stages - 1

    def _schedule(self, corners: Corners, memory: int) -> Schedule:
        ops: list[Op] = []
        pending: list[_Step] = [(Span(0, 0, self.recursion.stages - 1, 0, 0), memory)]
        while pending:
            step = pending.pop()
            if isinstance(step, Op):
                ops.append(step)
            else:
                pending.extend(reversed(self._expand(corners, *step)))
        return Schedule(tuple(ops))

    def _expand(self, corners: Corners, span: Span, m: int) -> list[_Step]:
        """What to do for F, in order."""
        activation, saved = self.recursion.activation, self.recursion.saved
        s, t, end, held, left = span
        decision, k, j, detached = choose(self._chain, self._needs, corners, span, m)
        if decision == RESTART:
            return [
                Op(OpKind.FORWARD_KEEP_INPUT, s),
                *(Op(OpKind.FORWARD_DROP, i) for i in range(s + 1, j)),
                (Span(j, k, end, held, detached), m - int(activation[j])),
                (Span(s, t, k - 1, detached, left), m),
            ]
        if decision == MOVE:
            more = int(activation[s] - activation[s + 1])
            return [Op(OpKind.FORWARD_DROP, s), (Span(s + 1, t, end, held, left), m + more)]
        if decision not in {KEEP, DETACH}:
            raise AssertionError(f"no decision reaches {span} with {m} bytes")
        record = [] if held and s == end else [Op(OpKind.FORWARD_KEEP_ALL, s)]
        dropped = [Op(OpKind.DISCARD_ACTIVATION, s)] if decision == DETACH else []
        less = int(saved[s]) - (int(activation[s]) if decision == DETACH else 0)
        inner = [(Span(s + 1, s + 1, end, held, 0), m - less)] if s < end else []
        back = [Op(OpKind.BACKWARD, s)] if decision == KEEP else []
        return [*record, *dropped, *inner, *back]
