r"""Algorithm 1 of [BES20], corrected: which whole activations to move, interruptibly.

A state after ``F_{i-1}`` (and before ``B_{i-1}`` in the reversed way back) is the memory that
what is kept takes, the bytes that wait to leave, those that wait to come back, and the idle
time so far. Stage i adds what its two computations have to wait::

    ε_i^F = (M_F + ex_i^F + |x_{i+1}| - M)⁺ / β
    ε_i^B = (M_B + ex_i^B + |x_{i+1}| + |y_{i+1}| - M)⁺ / β                            (6)
    M_B   = |y_i| + D_B⁺ + M_F - D_F⁺

==========================  ================================================
symbol in [BES20]           name here
==========================  ================================================
``M_F - D_F⁺``              ``kept``: of activations up to x_i, those that stay
``D_F``, ``D_B``            ``leaving``, ``returning``: waiting for the link;
                            where negative, for how long the link has been idle
``Σε``                      ``idle``
==========================  ================================================

Printed, five things are wrong: (6) has ``ex_i^F``; the feasibility tests lack the ⁺ on D_F
and D_B; R_j has ``|y_{j-1}|`` for ``|y_{j+1}|``; (10) counts ``|y_{L+1}|``, which is not there
yet; and when x_i has left before ``F_i`` ends, D_F is 0 then, not negative: the link may be
idle, but x_i is not free yet, so nothing can come back. All is in ticks of the link here
(bytes times the ticks of one), so nothing is rounded.

The program is exact among plans that offload by increasing index, then prefetch by
decreasing index. It is not always the optimum of Problem 2, since Lemma 3 is false
(``docs/deviations.md``).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from chainstay.dp.offload.fluid import byte_ticks
from chainstay.errors import SolverLimitError
from chainstay.problems.offload import OffloadProblem

MOST_STATES: Final = 400_000
"""The most states in all before the exact program gives up: about ten seconds and 200 MB."""


class BestSubset(NamedTuple):
    """The activations that move, and the idle time in ticks beside all computations."""

    chosen: frozenset[int]
    idle: int


@dataclass(frozen=True, slots=True)
class TickCosts:
    """The problem in ticks: sizes as the time that they take on the link.

    Attributes:
        size: Shape (n + 1,), activations.
        forward_time: Shape (n,), forwards.
        backward_time: Shape (n,), backwards.
        forward_room: Shape (n,), the budget less what ``F_i`` needs beside what is kept.
        backward_room: Shape (n,), the budget less what ``B_i`` needs beside what is kept.
        forced: Shape (n,), with what is kept before ``F_i``: what must still move, at least.
        remaining: Shape (n + 1,), time of all computations of stage i and later.
    """

    size: tuple[int, ...]
    forward_time: tuple[int, ...]
    backward_time: tuple[int, ...]
    forward_room: tuple[int, ...]
    backward_room: tuple[int, ...]
    forced: tuple[int, ...]
    remaining: tuple[int, ...]

    @classmethod
    def from_problem(cls, problem: OffloadProblem) -> TickCosts:
        """Return the costs of a problem whose link is half-duplex and without latency."""
        profile, byte, ticks = problem.profile, byte_ticks(problem), problem.link.ticks
        before = [0, *accumulate(profile.activations)]
        rooms = [
            [byte * (problem.budget - load + before[i + 1]) for i, load in enumerate(loads)]
            for loads in (profile.forward_loads, profile.backward_loads)
        ]
        size = [byte * x for x in profile.activations]
        room = [min(pair) for pair in zip(*rooms, strict=True)]
        forced = [-room[-1]]
        for i in reversed(range(len(room) - 1)):
            forced.append(max(-room[i], size[i + 1] + forced[-1]))
        times = [
            [u * ticks for u in column]
            for column in (profile.forward_times, profile.backward_times)
        ]
        both = [a + b for a, b in zip(*times, strict=True)]
        return cls(
            size=tuple(size),
            forward_time=tuple(times[0]),
            backward_time=tuple(times[1]),
            forward_room=tuple(rooms[0]),
            backward_room=tuple(rooms[1]),
            forced=tuple(reversed(forced)),
            remaining=tuple(reversed([0, *accumulate(reversed(both))])),
        )


@dataclass(frozen=True, slots=True)
class _SubsetState:
    """A state of the program; fewer ticks are better in every number."""

    kept: int
    leaving: int
    returning: int
    idle: int
    chosen: _Chosen | None

    @property
    def waits(self) -> tuple[int, int, int]:
        """The idle time, and what waits for the link, in ticks."""
        return self.idle, self.leaving, self.returning


class _Chosen(NamedTuple):
    """A linked list of activations that move."""

    j: int
    before: _Chosen | None


def best_subset(problem: OffloadProblem, *, below: int | None) -> BestSubset | None:
    """Return the best whole activations to move, exactly; ``None`` if nothing beats `below`.

    Args:
        problem: Its link is half-duplex and without latency; its budget is feasible.
        below: Idle ticks of a plan that is known; only better ones are looked for.

    Raises:
        SolverLimitError: There are too many states.

    Complexity:
        As many states as there are sums of activations; with sizes in bytes these may double
        with every stage. States no better than another, or than `below`, are dropped.
    """
    costs = TickCosts.from_problem(problem)
    states, made = [_SubsetState(costs.size[0], 0, 0, 0, None)], 1
    for i in range(len(costs.forward_time)):
        following = (
            state
            for before in states
            for state in _following(costs, i, before)
            if below is None or _least_idle(costs, i + 1, state) < below
        )
        states = _undominated(following)
        made += len(states)
        if made > MOST_STATES:
            raise SolverLimitError(
                f"the exact program has more than {MOST_STATES} states at stage {i} of "
                f"{len(problem.profile)}; use slots, as in DP(slots=500), or method='auto'"
            )
    best: BestSubset | None = None
    for state in states:
        idle = state.idle + _final_wait(problem, costs, state.kept, state.leaving, state.returning)
        if (best is None or idle < best.idle) and (below is None or idle < below):
            best = BestSubset(frozenset(_unlinked(state.chosen)), idle)
    return best


def _following(costs: TickCosts, i: int, state: _SubsetState) -> Iterator[_SubsetState]:
    """Yield the states after stage i: keeping x_i, and moving it."""
    leaving, returning = max(0, state.leaving), max(0, state.returning)
    if state.kept > min(costs.forward_room[i], costs.backward_room[i]):
        return
    wait_forward = max(0, state.kept + leaving - costs.forward_room[i])
    wait_backward = max(0, state.kept + returning - costs.backward_room[i])
    forward = wait_forward + costs.forward_time[i]
    backward = wait_backward + costs.backward_time[i]
    idle = state.idle + wait_forward + wait_backward
    size, kept = costs.size[i], state.kept + costs.size[i + 1]
    yield _SubsetState(
        kept, state.leaving - forward, state.returning - backward, idle, state.chosen
    )
    if size and i < len(costs.forward_time) - 1:
        yield _SubsetState(
            kept - size,
            max(0, leaving + size - forward),
            size + max(0, state.returning - backward),
            idle,
            _Chosen(i, state.chosen),
        )


def _least_idle(costs: TickCosts, i: int, state: _SubsetState) -> int:
    """Return a lower bound on the idle ticks in the end, by what the link has to move."""
    if i == len(costs.forced):
        return state.idle
    forced = max(0, state.kept + costs.forced[i])
    waiting = state.leaving + state.returning - costs.remaining[i] + 2 * forced
    return state.idle + max(0, waiting)


def _undominated(states: Iterator[_SubsetState]) -> list[_SubsetState]:
    """Return, of states that keep as much, those that no other is better than in every respect."""
    by_kept: dict[int, list[_SubsetState]] = {}
    for state in states:
        by_kept.setdefault(state.kept, []).append(state)
    front: list[_SubsetState] = []
    for group in by_kept.values():
        front += _front(group)
    return front


def _front(group: list[_SubsetState]) -> list[_SubsetState]:
    """Return the undominated states of a group, ascending in idle time.

    In the loop, `stair` has what is left of (leaving, returning) to undercut.
    """
    front: list[_SubsetState] = []
    stair: list[tuple[int, int]] = []  # leaving ascending, returning descending
    for state in sorted(group, key=lambda state: state.waits):
        place = bisect_right(stair, (state.leaving, 1 << 200))
        if place and stair[place - 1][1] <= state.returning:
            continue
        while place < len(stair) and stair[place][1] >= state.returning:
            del stair[place]
        insort(stair, (state.leaving, state.returning))
        front.append(state)
    return front


def _unlinked(chosen: _Chosen | None) -> Iterator[int]:
    """Yield the activations of a linked list."""
    while chosen is not None:
        yield chosen.j
        chosen = chosen.before


def _final_wait(
    problem: OffloadProblem, costs: TickCosts, kept: int, leaving: int, returning: int
) -> int:
    """Return ``ε_G``: idle ticks between the last forward and the first backward, (9) and (10).

    With bytes on one side only, the other side's link is idle near the turn, for as long as
    the negative number says: these bytes move then, as far as memory allows.
    """
    if leaving <= 0 and returning <= 0:
        return 0
    if leaving > 0 and returning > 0:
        return leaving + returning
    if leaving > 0:
        rooms, times, waiting, idle = costs.backward_room, costs.backward_time, leaving, -returning
    else:
        rooms, times, waiting, idle = costs.forward_room, costs.forward_time, returning, -leaving
    wait, passed, stages = max(0, waiting - idle), 0, len(problem.profile)
    kept -= costs.size[stages]
    for j in reversed(range(stages)):
        if passed >= idle:
            break
        # R_j: beside what is kept of x_0 .. x_j, all of which is older than stage j's output.
        wait = max(wait, kept + waiting - rooms[j] - passed)
        passed += times[j]
        kept -= costs.size[j]
    return wait
