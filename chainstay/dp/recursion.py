r"""The persistent recursion of [BEHJS24], Theorem 4.8, as arrays; every solver here uses it.

``C(s, t, m)`` is the least time to go from memory ``{a^s, δ^{t+1}}`` to ``{δ^s}`` with
stages ``s..t`` and `m` bytes besides ``a^s``::

    C(s, t, m) = min(
        u_f[s] + C(s+1, t, m - ā[s]) + u_b[s]              if m >= keep_floor[s, t]
        u_f[s] + .. + u_f[k-1] + C(k, t, m - a[s, k])      if m >= restart_floor[s, k, t]
            + C(s, k-1, m)                                 for s < k <= t )

The first line keeps all of stage s (``Fa``); the second runs on to stage k, keeps its
input, and restarts at s later (``Fc``, ``Fn`` …). ``a[s, k]`` is what ``a^k`` adds to memory
that holds ``a^s``: ``a[k]`` less the skips in both. `Recursion` writes ``C`` as
``O + Σ (u_f + u_b)``: `O` is the *overhead*, the time spent on running forwards again.

With stage options the first line is there once for each, and continues at the first stage that the
option does not keep; costs are those of first runs if t is the loss, else those of later runs.
``docs/derivations/options.md`` has the proof, for the schedules of `Family.PERSISTENT`;
`forward_costs` has the arrays, and what overheads are counted from.

============  =======================================
paper         here (stages from 0, so ``a^i`` is the input of stage i)
============  =======================================
``u_f``       ``forward_time``; prefix sums `ForwardCosts.elapsed`
``ω_ā``       `ForwardCosts.saved`
``ω_a``       ``activation``; with skips, ``fresh``
``m_all``     `ForwardCosts.keep_floor`
``m_∅``       `restart_floor`
============  =======================================

Deviation: the paper tests ``m_∅`` over all stages up to t; here only over the stages
``s..k-1`` that run. That is the same when ``ω_ā >= ω_a`` (the rest is tested by the
sub-chain) and right also when a measured ``ω_ā`` lies below ``ω_a``. And skips, which
the paper does not have: ``docs/derivations/skips.md`` shows why ``a^s`` alone says what of
``a^k`` is there already, whatever else is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self, TypeVar

import numpy as np

from chainstay.dp.forward_costs import Array, ForwardCosts, costs_by_kind, environments_before
from chainstay.profiles import ChainProfile
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs

_Part = TypeVar("_Part")

KEEP: Final = -1
"""The decision to keep a stage under option 0; ``KEEP - k`` keeps it under option k.

Any decision above is the stage to restart at.
"""
NO_DECISION: Final = 0
"""Stands for a decision where there is none: no restart is at stage 0."""


class Front(NamedTuple):
    """Breakpoints of a step function: `overhead[i]` from `memory[i]` bytes on.

    Attributes:
        memory: Shape (breakpoints,), bytes, strictly ascending.
        overhead: Shape (breakpoints,), ns, strictly descending.
    """

    memory: Array
    overhead: Array


Decide = Callable[[int, int, int], int]
"""The decision for stages s..t with m bytes: `KEEP` less an option, or the stage to restart at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recursion:
    """Sizes and times of the recursion, in bytes and ns (or in slots, after rounding).

    Attributes:
        stages: n, the number of stages.
        base_time: What overheads are added to, in ns: no persistent schedule takes less.
        activation: Shape (n + 1,), bytes of ``a^0 .. a^n``.
        fresh: Shape (n, n + 1), at [s, k], s < k: bytes of ``a^k`` that are no part of ``a^s``, and
            of the environments that stages s..k-1 save on the way.
        has_skips: Whether `fresh` depends on s.
        gradient: Shape (n + 1,), bytes of ``δ^0 .. δ^n``.
        first: Costs of forwards in sub-chains up to the loss: each is its stage's first run.
        again: Costs in all other sub-chains; the same object if the kind of run does not matter.
    """

    stages: int
    base_time: int
    activation: Array
    fresh: Array
    has_skips: bool
    gradient: Array
    first: ForwardCosts
    again: ForwardCosts

    @classmethod
    def from_profile(cls, profile: ChainProfile) -> Self:
        """Return the recursion of `profile`, in bytes and ns."""
        arrays = profile.arrays()
        first, again, base_time = costs_by_kind(profile, arrays)
        before = environments_before(profile)
        return cls(
            stages=len(profile),
            base_time=base_time,
            activation=arrays.activation,
            fresh=arrays.fresh + np.triu(np.subtract.outer(-before[:-1], -before)),
            has_skips=bool(profile.skips) or profile.has_environments,
            gradient=arrays.gradient,
            first=first,
            again=again,
        )

    def rounded(self, unit: int, *, up: bool) -> Self:
        """Return this recursion with every size in units of `unit` bytes, rounded up or down.

        Rounded up (and the budget down) every schedule it finds fits; rounded down (and
        the budget up) its value is a lower bound.
        """

        def scale(sizes: Array) -> Array:
            return -(-sizes // unit) if up else sizes // unit

        return replace(
            self,
            activation=scale(self.activation),
            fresh=scale(self.fresh),
            gradient=scale(self.gradient),
            first=self.first.scaled(scale),
            again=self.again.scaled(scale),
        )

    def costs(self, t: int) -> ForwardCosts:
        """Return the costs of forwards in sub-chains that end at stage t."""
        return self.first if t == self.stages - 1 else self.again

    @property
    def keep_all_need(self) -> int:
        """Bytes besides the input, more than which spare no time."""
        costs, floor = self.first, self.first.keep_floor[:, -1]
        if len(floor) == self.stages and not costs.extra.any():  # one way to keep each stage
            before = np.concatenate([[0], np.cumsum(costs.saved)[:-1]])
            return int((before + floor).max())
        start, end, saved = costs.start.tolist(), costs.end.tolist(), costs.saved.tolist()
        extra = costs.extra.tolist()
        s, held, need = 0, 0, 0
        while s < self.stages:
            options = [o for o in range(start[s], start[s + 1]) if not extra[o]]
            if not options:  # to run some stage again is faster than any way to keep it at once
                return self._most_need
            o = min(options, key=saved.__getitem__)
            need = max(need, held + int(floor[o]))
            s, held = end[o], held + saved[o]
        return need

    @property
    def _most_need(self) -> int:
        """The bytes besides the input with which every decision fits."""
        held, floor = self.activation.copy(), 0
        for costs in (self.first, self.again):
            np.maximum.at(held, costs.end, costs.saved)
            transit = int(costs.transit.max() + self.gradient.max() + costs.held[-1])
            floor = max(floor, int(costs.keep_floor.max()), transit)
        return floor + int(held[1:].sum() + self.again.held[-1])

    @property
    def nearest(self) -> Array:
        """The least bytes that a restart at k stores, from stage k - 1; shape (n + 1,).

        The nearer two activations are, the more skips they share.
        """
        nearest = self.activation.copy()
        nearest[1:] = np.diagonal(self.fresh, 1)
        return nearest

    @property
    def farther(self) -> Array | None:
        """The bytes, at [s, k], that a restart at k stores more from stage s than from k - 1.

        ``None`` without skips: no stage stores more.
        """
        return self.fresh - self.nearest if self.has_skips else None

    def restart_floor(self, s: int, t: int) -> Array:
        """Return the least m for restarting at k, for k = s+1 .. t; shape (t - s,)."""
        costs = self.costs(t)
        floor: Array = self.gradient[t + 1] + costs.held[t + 1] + costs.transit[s, s:t]
        return floor

    def rerun(self, s: int, t: int) -> Array:
        """Return the overhead, in ns, of the forwards ``s..k-1``, for k = s+1 .. t.

        The shape is (t - s,).
        """
        elapsed = self.costs(t).elapsed
        time: Array = elapsed[s + 1 : t + 1] - elapsed[s]
        return time


def assemble(
    recursion: Recursion, memory: int, decide: Decide, span: tuple[int, int] | None = None
) -> Schedule:
    """Return the schedule that `decide` describes, from the root with `memory` bytes down.

    Args:
        recursion: Sizes in the units of `memory`.
        memory: Bytes or slots besides the input of the first stage.
        decide: Returns the decision for any part of the chain.
        span: First and last stage; ``None`` for the whole chain.
    """

    def decided(part: tuple[int, int, int]) -> Iterator[Op | tuple[int, int, int]]:
        s, t, m = part
        k = decide(s, t, m)
        if k <= KEEP:
            costs = recursion.costs(t)
            o = costs.option(s, KEEP - k)
            yield Op(OpKind.FORWARD_KEEP_ALL, s, option=KEEP - k)
            if costs.end[o] <= t:
                yield int(costs.end[o]), t, m - int(costs.saved[o])
            yield Op(OpKind.BACKWARD, s)
            return
        yield from forwards_dropping_inputs(s, k - 1)
        yield k, t, m - int(recursion.fresh[s, k])
        yield s, k - 1, m

    first, last = span or (0, recursion.stages - 1)
    return unfold((first, last, memory), decided)


def unfold(root: _Part, decided: Callable[[_Part], Iterable[Op | _Part]]) -> Schedule:
    """Return the schedule of `root`, where `decided` gives what a part consists of, in order."""
    ops: list[Op] = []
    pending: list[Op | _Part] = [root]
    while pending:
        item = pending.pop()
        if isinstance(item, Op):
            ops.append(item)
        else:
            pending.extend(reversed(list(decided(item))))
    return Schedule(tuple(ops))
