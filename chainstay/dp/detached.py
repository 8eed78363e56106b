r"""The dynamic program for saved data that outlive their input: exact in bytes.

Under the rules of ``discards="free"``, saved data ``ā_k`` may stay while their input
``a^k`` is dropped; it is made again, by somebody who needs it anyway, before ``B k``. Such
saved data are *detached*. A sub-chain then has two more states: does it start with the
saved data of its last stage *held* already, and does it end with those of the stage before
*left*? ``F(s, t, l, held, left, m)`` is the least time from ``{a^s, δ^{l+1}}`` and, if
held, ``ā_l`` to ``{δ^t}`` and, if left, ``ā_{t-1}``, with `m` bytes besides ``a^s``::

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
With t = s, or s + 1 if left, activations never float: the persistent program with detached
saved data, O(n^3) instead of O(n^4). ``docs/derivations/detached.md`` has the derivation,
the pruning and what it is worth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from chainstay.dp.compiled import bounds_of, chain_of
from chainstay.dp.deepening import limits
from chainstay.dp.detached_kernels import (
    DETACH,
    MOVE,
    RESTART,
    Corners,
    Needs,
    Span,
    choose,
    fill,
)
from chainstay.dp.engines import least_memory
from chainstay.dp.outside import Limit, OutsideBound
from chainstay.dp.pruning import spared_around
from chainstay.dp.recursion import KEEP, Recursion, require_no_skips
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["detached_least_budget", "solve_detached"]

_Step: TypeAlias = Op | tuple[Span, int]

_UNLIMITED = 2**60


def solve_detached(profile: ChainProfile, budget: int, *, floating: bool) -> Claim:
    """The fastest (weakly, if `floating`) persistent schedule with detached saved data.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The chain has skips.

    Complexity:
        O(n^3 p) time for fronts of p corners, floating O(n^4 p), before pruning.
    """
    program = _Program(profile, floating=floating)
    memory = min(budget - profile.input_bytes, program.recursion.keep_all_need)
    family = Family.WEAKLY_PERSISTENT if floating else Family.PERSISTENT
    if not program.fits(memory):
        raise InfeasibleBudgetError(
            budget=budget,
            required=program.least_memory + profile.input_bytes,
            stages=len(profile),
            family=family,
        )
    schedule, overhead = program.solve(memory)
    makespan = profile.least_time + overhead
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=makespan,
        family=family if overhead else Family.ALL,
        discards=Discards.FREE,
    )


def detached_least_budget(profile: ChainProfile, *, floating: bool) -> int:
    """The least budget, in bytes, in which `solve_detached` has a schedule.

    Complexity:
        O(n^3) time, floating O(n^4).
    """
    return _Program(profile, floating=floating).least_memory + profile.input_bytes


class _Program:
    """The recursion of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile, *, floating: bool) -> None:
        require_no_skips(profile, "discards='free'")
        arrays = profile.arrays()
        gradient, saved = arrays.gradient, arrays.saved
        self.recursion = Recursion.of(profile)
        self._profile, self._floating = profile, floating
        self._reach = len(profile) if floating else 0
        self._chain = chain_of(self.recursion)
        self._needs = Needs(
            record=saved + arrays.forward_overhead,
            backward=saved + arrays.backward_overhead + gradient[1:] + gradient[:-1],
            around=np.stack([gradient[1:], gradient[1:] + saved]),
        )

    def fits(self, memory: int) -> bool:
        """Whether some schedule does; soon seen where one without detached data does."""
        return memory >= least_memory(self.recursion).root or memory >= self.least_memory

    @cached_property
    def least_memory(self) -> int:
        """Bytes besides the input: without times, each front is one corner, the least memory."""
        timeless = replace(self.recursion, elapsed=np.zeros_like(self.recursion.elapsed))
        bounds = bounds_of(timeless, _UNLIMITED)
        corners = fill(chain_of(timeless), self._needs, bounds, self._reach)
        return int(corners.least[self._whole])

    def solve(self, memory: int) -> tuple[Schedule, int]:
        """An optimal schedule for feasible `memory`, and its overhead in ns."""
        corners = self._corners(memory)
        return self._schedule(corners, memory), int(corners.best[self._whole])

    def _corners(self, memory: int) -> Corners:
        """Fronts that hold an optimal schedule."""
        for limit in self._limits(memory):
            bounds = bounds_of(self.recursion, memory, limit=limit)
            corners = fill(self._chain, self._needs, bounds, self._reach)
            if corners.size[self._whole] and corners.best[self._whole] <= limit.overhead:
                return corners
        raise AssertionError("limits never end")

    def _limits(self, memory: int) -> Iterator[Limit]:
        """Growing limits; for floating ones, the optimum without is one to start from."""
        bound = OutsideBound(self.recursion, memory, spared_around)
        if self._floating:
            attached = _Program(self._profile, floating=False)
            if attached.fits(memory):
                yield Limit(int(attached._corners(memory).best[attached._whole]), bound)
        yield from limits(bound, self.recursion)

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
