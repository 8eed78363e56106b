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

from chainstay.dp.offload.subsets import TickCosts
from chainstay.problems.offload import OffloadProblem

_Floats = NDArray[np.float64]
_Indices = NDArray[np.intp]

MOST_STATES: Final = 40_000
"""The most states per stage; beyond, those that the link delays least are kept."""


class _States(NamedTuple):
    """States in columns of equal length; sizes and times in ticks."""

    kept: _Floats
    leaving: _Floats
    returning: _Floats
    idle: _Floats

    def at(self, rows: _Indices) -> _States:
        """Return the states of these rows."""
        return _States(*(column[rows] for column in self))


class _SlotStep(NamedTuple):
    """Origins of the states after a stage: the row of the state before, and whether x_i moves."""

    origin: _Indices
    moves: NDArray[np.bool_]


def subsets_on_slots(
    problem: OffloadProblem, slots: int, *, below: float, answers: int = 8
) -> list[frozenset[int]]:
    """Return sets of activations to move that look best, at most `answers`.

    Args:
        problem: Its link is half-duplex and without latency; its budget is feasible.
        slots: How many slots the peak of plain training is divided into.
        below: Idle ticks of a plan that is known; only better ones are looked for.
        answers: The most sets.

    Complexity:
        O(n s) for s states a stage, at most `MOST_STATES`.
    """
    costs = TickCosts.from_problem(problem)
    slot = problem.profile.peak_bytes * problem.link.transfer_ticks(1) / slots
    states = _States(*(np.array([value], dtype=float) for value in (costs.size[0], 0, 0, 0)))
    steps: list[_SlotStep] = []
    for i in range(len(problem.profile)):
        states, step = _advanced(costs, i, states)
        rows = _distinct(states, slot, _least_idle(costs, i + 1, states), below)
        states = states.at(rows)
        steps.append(_SlotStep(step.origin[rows], step.moves[rows]))
    least = states.idle + np.maximum(0, states.leaving + states.returning)
    best = np.argsort(least, kind="stable")[:answers]
    return list(dict.fromkeys(_chosen(steps, int(row)) for row in best))


def _advanced(costs: TickCosts, i: int, states: _States) -> tuple[_States, _SlotStep]:
    """Return the states after stage i: rows that keep x_i first, then rows that move it."""
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
        return stay, _SlotStep(rows, np.zeros(len(rows), dtype=bool))
    move = _States(
        kept - size,
        np.maximum(0, leaving + size - forward),
        size + np.maximum(0, states.returning - backward),
        idle,
    )
    both = _States(*(np.concatenate(pair) for pair in zip(stay, move, strict=True)))
    moves = np.repeat([False, True], len(rows))
    return both, _SlotStep(np.concatenate([rows, rows]), moves)


def _least_idle(costs: TickCosts, i: int, states: _States) -> _Floats:
    """Return for each state what `subsets._least_idle` returns."""
    if i == len(costs.forced):
        return states.idle
    forced = np.maximum(0, states.kept + float(costs.forced[i]))
    waiting = states.leaving + states.returning - float(costs.remaining[i]) + 2 * forced
    return np.asarray(states.idle + np.maximum(0, waiting))


def _distinct(states: _States, slot: float, least: _Floats, below: float) -> _Indices:
    """Return the rows that may beat `below`; of those alike, the one with the least idle time."""
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


def _chosen(steps: list[_SlotStep], row: int) -> frozenset[int]:
    """Return the activations that move on the way to a state after the last stage."""
    chosen = set()
    for i in reversed(range(len(steps))):
        if steps[i].moves[row]:
            chosen.add(i)
        row = int(steps[i].origin[row])
    return frozenset(chosen)
