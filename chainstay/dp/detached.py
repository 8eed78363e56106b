r"""The dynamic program for saved data that outlive their input: exact in bytes.

Under the rules of ``discards="free"``, saved data ``ā_k`` may stay while their input
``a^k`` is dropped; it is made again, by somebody who needs it anyway, before ``B k``. Such
saved data are *detached*. A sub-chain ``s..l`` then has two more states: it may start with
the saved data of its last stage *held*, and end with those of its first stage *left* instead
of ``B s``. With `m` bytes besides ``a^s`` (those held count in `m`)

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
``ā_s`` nor the activation kept before it has: `detached_sizes` has a node for each case.
``docs/derivations/detached.md`` has the derivation, the pruning and what it is worth;
`floating` is the wider program, in which plain activations may move on.
"""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np

from chainstay.dp.deepening import growing_limits
from chainstay.dp.detached_kernels import NO_DECISION, RECORD, Corners, Span, choose, fill
from chainstay.dp.detached_prices import DetachedBound
from chainstay.dp.detached_sizes import sizes_of
from chainstay.dp.engines import least_memory
from chainstay.dp.priced_pruning import priced_limit, without_limit
from chainstay.dp.recursion import Recursion
from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family

__all__ = ["detached_least_budget", "solve_detached"]

_Step: TypeAlias = Op | tuple[Span, int]

_UNLIMITED = 2**60


def solve_detached(profile: ChainProfile, budget: int) -> Claim:
    """The fastest persistent schedule with detached saved data.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.

    Complexity:
        O(n^3 p) time for fronts of p corners, before pruning; with skips, times how many
        different ones end at a stage.
    """
    recursion = Recursion.of(profile)
    program = _Program(profile)
    memory = min(budget - profile.input_bytes, recursion.keep_all_need)
    # soon seen where a schedule without detached data fits
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


def detached_least_budget(profile: ChainProfile) -> int:
    """The least budget, in bytes, in which `solve_detached` has a schedule.

    Complexity:
        O(n^3) time.
    """
    return _Program(profile).least_memory + profile.input_bytes


class _Program:
    """The recursion of one profile, to be solved for one memory or another."""

    def __init__(self, profile: ChainProfile) -> None:
        self._sizes = sizes_of(profile)
        self._stages = len(profile)

    @cached_property
    def least_memory(self) -> int:
        """Bytes besides the input: without times, each front is one corner, the least memory."""
        n = self._stages
        timeless = self._sizes._replace(elapsed=np.zeros_like(self._sizes.elapsed))
        nothing = np.zeros((2, n, n, 1))
        limit = without_limit(_UNLIMITED, np.zeros((0, 0), dtype=np.int64))
        return int(fill(timeless, limit._replace(around=nothing), nothing).least[0, 0, -1])

    def solve(self, memory: int) -> tuple[Schedule, int]:
        """An optimal schedule for feasible `memory`, and its overhead in ns."""
        bound = DetachedBound(self._sizes, memory)
        for limit in growing_limits(bound.root, bound.rerun_time):
            corners = fill(self._sizes, priced_limit(bound, limit), bound.dropped)
            overhead = int(corners.best[0, 0, -1])
            if corners.size[0, 0, -1] and overhead <= limit:
                return self._schedule(corners, memory), overhead
        raise AssertionError("limits never end")

    def _schedule(self, corners: Corners, memory: int) -> Schedule:
        ops: list[Op] = []
        pending: list[_Step] = [(Span(0, 0, self._stages - 1, 0), memory)]
        while pending:
            step = pending.pop()
            if isinstance(step, Op):
                ops.append(step)
            else:
                pending.extend(reversed(self._expand(corners, *step)))
        return Schedule(tuple(ops))

    def _expand(self, corners: Corners, span: Span, m: int) -> list[_Step]:
        """What to do for F, in order."""
        sizes = self._sizes
        node, s, end, held = span
        j, is_left = choose(sizes, corners, span, m)
        if j == NO_DECISION:
            raise AssertionError(f"no decision reaches {span} with {m} bytes")
        if j != RECORD:
            after = int(sizes.node[s, j]) if is_left else j
            return [
                Op(OpKind.FORWARD_KEEP_INPUT, s),
                *(Op(OpKind.FORWARD_DROP, i) for i in range(s + 1, j)),
                (Span(after, j, end, held), m - int(sizes.fresh[s, j])),
                (Span(node, s, j - 1 + is_left, is_left), m),
            ]
        record = [] if held and s == end else [Op(OpKind.FORWARD_KEEP_ALL, s)]
        keeps_input = node == s
        dropped = [] if keeps_input else [Op(OpKind.DISCARD_ACTIVATION, s)]
        rest = m - int(sizes.saved[s]) + int(sizes.freed[node])
        inner = [(Span(s + 1, s + 1, end, held), rest)] if s < end else []
        back = [Op(OpKind.BACKWARD, s)] if keeps_input else []
        return [*record, *dropped, *inner, *back]
