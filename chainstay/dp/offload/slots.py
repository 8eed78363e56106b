"""Algorithm 1 on slots: states that are alike to within a slot count as one.

The paper rounds activations to slots and runs the program on slots. Rounded one by one, sizes
drift apart from their sums; with σ_j the slots of ``x_0 + .. + x_j``, the activation counts
``σ_j - σ_{j-1}``, and sums stay within a slot. Here every state carries its real sizes too
(as floats), and slots only say which states are alike: of those, the one with the least idle
time stays. So the answer is a set of activations that was reached with real sizes; its plan
and makespan are worked out exactly elsewhere, and the budget is kept to the byte.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.offload.subsets import Costs
from chainstay.offloading import OffloadProblem

__all__ = ["subsets_on_slots"]

_Floats = NDArray[np.float64]
_Indices = NDArray[np.intp]

MOST_STATES: Final = 40_000
"""Per stage; of more, those that the link holds up least stay."""


class _States(NamedTuple):
    """Columns of equal length; sizes and times in ticks."""

    kept: _Floats
    leaving: _Floats
    returning: _Floats
    idle: _Floats

    def at(self, rows: _Indices) -> _States:
        return _States(*(column[rows] for column in self))


class _Step(NamedTuple):
    """Where the states after a stage come from: row before, and whether x_i moves."""

    origin: _Indices
    moves: NDArray[np.bool_]


def subsets_on_slots(
    problem: OffloadProblem, slots: int, *, below: float, answers: int = 8
) -> list[frozenset[int]]:
    """Sets of activations to move that look best, at most `answers`.

    Args:
        problem: Its link is half-duplex and without latency; its budget is feasible.
        slots: Of the peak of plain training.
        below: Idle ticks of a plan that is known; only better ones are looked for.
        answers: How many.

    Complexity:
        O(n s) for s states a stage, at most `MOST_STATES`.
    """
    costs = Costs.of(problem)
    slot = problem.profile.peak_bytes * problem.link.transfer_ticks(1) / slots
    states = _States(*(np.array([value], dtype=float) for value in (costs.size[0], 0, 0, 0)))
    steps: list[_Step] = []
    for i in range(len(problem.profile)):
        states, step = _advanced(costs, i, states)
        rows = _distinct(states, slot, _least_idle(costs, i + 1, states), below)
        states = states.at(rows)
        steps.append(_Step(step.origin[rows], step.moves[rows]))
    least = states.idle + np.maximum(0, states.leaving + states.returning)
    best = np.argsort(least, kind="stable")[:answers]
    return list(dict.fromkeys(_chosen(steps, int(row)) for row in best))


def _advanced(costs: Costs, i: int, states: _States) -> tuple[_States, _Step]:
    """After stage i, x_i kept in the first half of the rows and moved in the second."""
    room = float(min(costs.forward_room[i], costs.backward_room[i]))
    rows = np.flatnonzero(states.kept <= room)
    states = states.at(rows)
    leaving, returning = np.maximum(0, states.leaving), np.maximum(0, states.returning)
    wait_forward = np.maximum(0, states.kept + leaving - float(costs.forward_room[i]))
    wait_backward = np.maximum(0, states.kept + returning - float(costs.backward_room[i]))
    forward = wait_forward + float(costs.forward_time[i])
    backward = wait_backward + float(costs.backward_time[i])
    idle = states.idle + wait_forward + wait_backward
    size, kept = float(costs.size[i]), states.kept + float(costs.size[i + 1])
    stay = _States(kept, states.leaving - forward, states.returning - backward, idle)
    if not size or i == len(costs.forward_time) - 1:
        return stay, _Step(rows, np.zeros(len(rows), dtype=bool))
    move = _States(
        kept - size,
        np.maximum(0, leaving + size - forward),
        size + np.maximum(0, states.returning - backward),
        idle,
    )
    both = _States(*(np.concatenate(pair) for pair in zip(stay, move, strict=True)))
    moves = np.repeat([False, True], len(rows))
    return both, _Step(np.concatenate([rows, rows]), moves)


def _least_idle(costs: Costs, i: int, states: _States) -> _Floats:
    """As `subsets._least_idle`."""
    if i == len(costs.forced):
        return states.idle
    forced = np.maximum(0, states.kept + float(costs.forced[i]))
    waiting = states.leaving + states.returning - float(costs.remaining[i]) + 2 * forced
    return np.asarray(states.idle + np.maximum(0, waiting))


def _distinct(states: _States, slot: float, least: _Floats, below: float) -> _Indices:
    """Rows that may beat `below`, of those alike the one with the least idle time."""
    rows = np.flatnonzero(least < below)
    order = rows[np.lexsort((least[rows], states.idle[rows]))]
    alike = np.stack(
        [
            np.floor(column[order] / slot)
            for column in (states.kept, states.leaving, states.returning)
        ]
    ).astype(np.int64)
    alike -= alike.min(axis=1, keepdims=True) if order.size else 0
    spans = alike.max(axis=1) + 1 if order.size else np.ones(3, dtype=np.int64)
    keys = (alike[0] * spans[1] + alike[1]) * spans[2] + alike[2]
    _, first = np.unique(keys, return_index=True)
    kept = order[first]
    if len(kept) > MOST_STATES:
        kept = kept[np.argsort(least[kept], kind="stable")[:MOST_STATES]]
    return np.asarray(kept, dtype=np.intp)


def _chosen(steps: list[_Step], row: int) -> frozenset[int]:
    chosen = set()
    for i in reversed(range(len(steps))):
        if steps[i].moves[row]:
            chosen.add(i)
        row = int(steps[i].origin[row])
    return frozenset(chosen)
