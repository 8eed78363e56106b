"""Ordered no-wait: from a set of activations to a schedule of whole transfers.

Offloads of the set by increasing index, each as early as it can; every forward as soon as
enough is free. The way back is the same in reversed time. The halves are glued with the
least idle time such that all offloads end before the first prefetch and memory suffices.

Times are in ticks of the link, in which transfers and computations take whole numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, Self

from chainstay.problems.offload import OffloadProblem
from chainstay.schedule import Item
from chainstay.timetable import TimedSchedule, exact, sorted_by_start


class _HalfSchedule(NamedTuple):
    """All forwards, or all backwards in reversed time; in ticks."""

    starts: list[int]
    ends: list[int]
    moved: list[int]
    move_starts: list[int]
    move_ends: list[int]

    def when_moved(self, size: int) -> int:
        """Return when transfers of `size` bytes together have ended; at most what moves in all."""
        return self.move_ends[bisect_left(self.moved, size)]


@dataclass(frozen=True, slots=True)
class OrderedNoWait:
    """Ordered no-wait on one problem, prepared for many sets.

    Attributes:
        problem: The problem, with any link; with two directions at once, the replay may be faster.
        sizes: Shape (n,), bytes of ``x_0 .. x_L``.
        moving: Shape (n,), ticks that each takes on the link.
        times: Ticks of forwards and of backwards, each of shape (n,).
        needs: Bytes that forwards and backwards need above the budget, each of shape (n,).
    """

    problem: OffloadProblem
    sizes: tuple[int, ...]
    moving: tuple[int, ...]
    times: tuple[tuple[int, ...], tuple[int, ...]]
    needs: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def from_problem(cls, problem: OffloadProblem) -> Self:
        """Compute sizes, times and needs of `problem`."""
        profile, link = problem.profile, problem.link
        sizes = profile.activations[:-1]
        return cls(
            problem=problem,
            sizes=sizes,
            moving=tuple(link.transfer_ticks(size) for size in sizes),
            times=(
                tuple(u * link.ticks for u in profile.forward_times),
                tuple(u * link.ticks for u in profile.backward_times),
            ),
            needs=(
                tuple(load - problem.budget for load in profile.forward_loads),
                tuple(load - problem.budget for load in profile.backward_loads),
            ),
        )

    @property
    def movable(self) -> list[int]:
        """Activations that it can make sense to move."""
        return [j for j, size in enumerate(self.sizes[:-1]) if size]

    def exceeds_host(self, chosen: Collection[int]) -> bool:
        """Return whether all of `chosen` together, away at the turn, exceed the host's memory."""
        return sum(self.sizes[j] for j in chosen) > self.problem.link.room

    def makespan_ticks(self, chosen: Collection[int]) -> int | None:
        """Return when everything ends if `chosen` moves; ``None`` if that leaves too little memory.

        Complexity:
            O(n log n).
        """
        halves = self._halves(chosen)
        return None if halves is None else self._glued(*halves, chosen)

    def plan(self, chosen: Collection[int]) -> TimedSchedule | None:
        """Return the schedule that moves `chosen`; ``None`` if that leaves too little memory.

        A replay, in which idle time need not be between the halves, may be faster, never slower.
        """
        halves = self._halves(chosen)
        if halves is None:
            return None
        (forward, backward), end = halves, self._glued(*halves, chosen)
        order = self._order(chosen)
        starts = (*forward.starts, *(end - tick for tick in reversed(backward.ends)))
        transfers = {
            Item("a", j).offload: start for j, start in zip(order, forward.move_starts, strict=True)
        }
        for j, stop in reversed(list(zip(order, backward.move_ends, strict=True))):
            transfers[Item("a", j).prefetch] = end - stop
        makespan = exact(Fraction(end, self.problem.link.ticks))
        return TimedSchedule(makespan, sorted_by_start(starts, transfers))

    def _order(self, chosen: Collection[int]) -> list[int]:
        return sorted(j for j in chosen if self.sizes[j])

    def _halves(self, chosen: Collection[int]) -> tuple[_HalfSchedule, _HalfSchedule] | None:
        """Return both halves, or ``None`` if a computation or the host lacks memory in any case."""
        if self.exceeds_host(chosen):
            return None
        order = self._order(chosen)
        older = [0, *accumulate(self.sizes[j] * (j in chosen) for j in range(len(self.sizes)))]
        for needs in self.needs:
            if any(need > gone for need, gone in zip(needs, older, strict=False)):
                return None
        forward, backward = (
            self._half(order, times, needs, lag)
            for times, needs, lag in zip(self.times, self.needs, (1, 0), strict=True)
        )
        return forward, backward

    def _half(
        self, order: Sequence[int], times: Sequence[int], needs: Sequence[int], lag: int
    ) -> _HalfSchedule:
        """Return one half, in which activation j can move when computation j - `lag` has ended."""
        half = _HalfSchedule([], [], list(accumulate(self.sizes[j] for j in order)), [], [])
        clock = free = place = 0
        for i, time in enumerate(times):
            if lag and place < len(order) and order[place] == i:
                free, place = self._append(half, i, max(free, clock)), place + 1
            if needs[i] > 0:
                clock = max(clock, half.when_moved(needs[i]))
            half.starts.append(clock)
            clock += time
            half.ends.append(clock)
            if not lag and place < len(order) and order[place] == i:
                free, place = self._append(half, i, max(free, clock)), place + 1
        return half

    def _append(self, half: _HalfSchedule, j: int, start: int) -> int:
        half.move_starts.append(start)
        half.move_ends.append(start + self.moving[j])
        return half.move_ends[-1]

    def _glued(
        self, forward: _HalfSchedule, backward: _HalfSchedule, chosen: Collection[int]
    ) -> int:
        """Return the least makespan, by the conditions of `chainstay.dp.offload.fluid`."""
        if not forward.moved:
            return forward.ends[-1] + backward.ends[-1]
        total, older = forward.moved[-1], 0
        end = max(
            forward.ends[-1] + backward.ends[-1], forward.move_ends[-1] + backward.move_ends[-1]
        )
        for i, need in enumerate(self.needs[0]):
            late = total - (older - need)
            if late > 0:
                end = max(end, forward.ends[i] + backward.when_moved(late))
            if (need_backward := self.needs[1][i]) > 0:
                end = max(end, forward.when_moved(need_backward) + backward.ends[i])
            if i in chosen:
                older += self.sizes[i]
        for j, back in zip(self._order(chosen), backward.move_ends, strict=True):
            end = max(end, forward.ends[j] + back)
        return end
