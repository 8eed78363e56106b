r"""The best schedule that runs no forward more than twice: optimal cuts, one recomputation.

Stands for the class of [CXZG16] and [KIKTO19] (Kusumoto et al., *A graph theoretic framework
of recomputation algorithms for memory-efficient backpropagation*, 2019): cut the chain into
segments, each kept or recomputed once from its input. Ignores that recomputing a segment
may itself drop and recompute, which is what makes small budgets possible.

A partial plan of stages ``0..s-1`` is a *label*: bytes held when the first pass reaches stage
s, and the forward time to be spent again. Fewer bytes and less time are never worse, so only
labels that no other beats in both are kept (Pareto). From `held` bytes the next step is::

    keep s              if held + keep_need[s] <= budget:           held + saved[s]
    recompute [s, k)    if held + recompute_need[s, k] <= budget:   held + fresh[s, k]

Exact as long as no front has more than `_MOST_LABELS` labels; wider ones are thinned evenly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from chainstay.baselines.schedule_pieces import Piece, kept, nest, recomputed
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule

Array = NDArray[np.int64]

_NEVER: Final = 2**60
_MOST_LABELS: Final = 300
"""Labels kept per stage; more are nearer to the optimum and slower."""


def single_pass(profile: ChainProfile, budget: int) -> Schedule:
    """Return the fastest single-pass schedule within `budget`; where none fits, the smallest one.

    Complexity:
        O(n^2 width log(n width)) time for n stages, width being `_MOST_LABELS`.
    """
    costs = _StepCosts.from_profile(profile)
    room = budget - profile.input_bytes
    if not _plans(costs, room, width=1):
        rooms = range(costs.keep_all_room)
        room = bisect_left(rooms, x=True, key=lambda room: bool(_plans(costs, room, width=1)))
    return nest(_plans(costs, room, width=_MOST_LABELS))


class _PlanStep(NamedTuple):
    """Keep one stage, or recompute ``start .. stop-1`` once; bytes are besides what is held."""

    start: int
    stop: int
    need: int
    adds: int
    time: int
    is_kept: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepCosts:
    """Costs of every step that a plan may take.

    Attributes:
        keep_need: Shape (n,), bytes to run and undo a stage that is kept.
        recompute_need: Shape (n, n), at [s, k-1]: bytes to run ``s..k-1``, again, and back.
        saved: Shape (n,), bytes that each stage saves.
        fresh: Shape (n, n + 1), at [s, k]: bytes of ``a^k`` that are no part of ``a^s``.
        elapsed: Shape (n + 1,), forward time of ``0..i-1`` in ns.
    """

    keep_need: Array
    recompute_need: Array
    saved: Array
    fresh: Array
    elapsed: Array

    @classmethod
    def from_profile(cls, profile: ChainProfile) -> Self:
        """Compute the costs of all steps of a chain."""
        a = profile.arrays()
        loss_gradient = a.gradient[-1]
        undo = a.gradients + a.backward_overhead
        made = np.diagonal(a.fresh, 1) + a.forward_overhead
        need = np.full((len(profile), len(profile)), _NEVER)
        for s in range(len(profile)):
            running = loss_gradient + a.fresh[s, s:-1] + made[s:]
            saved = np.cumsum(a.saved[s:])
            again = np.maximum.accumulate(saved + a.forward_overhead[s:]) + a.gradient[s + 1 :]
            back = np.maximum.accumulate(saved + undo[s:])
            need[s, s:] = np.maximum.reduce([np.maximum.accumulate(running), again, back])
        return cls(
            keep_need=a.saved + np.maximum(loss_gradient + a.forward_overhead, undo),
            recompute_need=need,
            saved=a.saved,
            fresh=a.fresh,
            elapsed=np.concatenate([[0], np.cumsum(a.forward_time)]),
        )

    @property
    def stages(self) -> int:
        return len(self.saved)

    @property
    def keep_all_room(self) -> int:
        """Bytes besides the input in which keeping everything fits."""
        return int(self.saved.sum() + self.keep_need.max())

    def steps(self, s: int, room: int) -> Iterator[_PlanStep]:
        """Yield the steps from stage s that need at most `room` bytes."""
        if self.keep_need[s] <= room:
            yield _PlanStep(s, s + 1, int(self.keep_need[s]), int(self.saved[s]), 0, is_kept=True)
        for last in np.flatnonzero(self.recompute_need[s, :-1] <= room):
            stop = int(last) + 1
            yield _PlanStep(
                start=s,
                stop=stop,
                need=int(self.recompute_need[s, last]),
                adds=int(self.fresh[s, stop]),
                time=int(self.elapsed[stop] - self.elapsed[s]),
                is_kept=False,
            )


class _LabelFront(NamedTuple):
    """Labels at one stage, `held` ascending and `again` descending; all of shape (labels,).

    Each came by step `step` (an index) from label `label` of the stage where that starts.
    """

    held: Array
    again: Array
    step: Array
    label: Array

    def after(self, step: _PlanStep, index: int, room: int) -> _LabelFront:
        """Return where `step` leads from those labels that leave it enough of `room` bytes."""
        fits = int(np.searchsorted(self.held, room - step.need, side="right"))
        held, again = self.held[:fits] + step.adds, self.again[:fits] + step.time
        return _LabelFront(held, again, np.full(fits, index), np.arange(fits))

    def pareto(self, width: int) -> _LabelFront:
        """Return the labels that no other beats, thinned to `width`; the smallest stays."""
        order = np.lexsort((self.again, self.held))
        again = self.again[order]
        best_before = np.minimum.accumulate(np.concatenate([[_NEVER], again[:-1]]))
        order = order[again < best_before]
        if len(order) > width:
            order = order[np.linspace(0, len(order) - 1, width).astype(np.int64)]
        return _LabelFront(*(column[order] for column in self))


def _plans(costs: _StepCosts, room: int, *, width: int) -> list[Piece]:
    """Return the fastest plan in `room` bytes besides the input; empty when there is none."""
    steps: list[_PlanStep] = []
    fronts: list[_LabelFront] = []
    zero = np.zeros(1, dtype=np.int64)
    arriving: list[list[_LabelFront]] = [[] for _ in range(costs.stages + 1)]
    arriving[0].append(_LabelFront(zero, zero, zero, zero))
    for stage, arrivals in enumerate(arriving):
        if not arrivals:
            fronts.append(_LabelFront(zero[:0], zero[:0], zero[:0], zero[:0]))
            continue
        front = _LabelFront(*map(np.concatenate, zip(*arrivals, strict=True))).pareto(width)
        fronts.append(front)
        if stage < costs.stages:
            for step in costs.steps(stage, room - int(front.held[0])):
                arriving[step.stop].append(front.after(step, len(steps), room))
                steps.append(step)
    return _read_back(fronts, steps)


def _read_back(fronts: list[_LabelFront], steps: list[_PlanStep]) -> list[Piece]:
    """Return the pieces of the label with the least time at the end."""
    pieces: list[Piece] = []
    stage, label = len(fronts) - 1, -1
    while stage and len(fronts[stage].held):
        front = fronts[stage]
        step = steps[int(front.step[label])]
        pieces.append((kept if step.is_kept else recomputed)(step.start, step.stop))
        stage, label = step.start, int(front.label[label])
    return pieces[::-1]
