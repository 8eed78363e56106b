"""Ordered no-wait: from a set of activations to a plan whose offloads precede all prefetches.

[BES20], Lemmas 2 and 3: offload in increasing order, each as early as it can; run every
forward as soon as enough is free. The way back is the same in reversed time: prefetches in
decreasing order, as late as they can. Then join the two halves with the least idle time such
that all offloads end before the first prefetch and memory suffices in between. (The lemma
says that this is the best of all plans; it is the best among plans of this form.)

Transfers are whole, or bytes flow one by one. Times are in ticks of the link, in which transfers
and computations take whole numbers: no rounding.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, Self

from chainstay.problems.offload import OffloadProblem
from chainstay.schedule import Item, Schedule
from chainstay.timetable import Move, Time, Timetable, exact


class OrderedPlan(NamedTuple):
    """A timetable and its makespan in the profile's time units."""

    makespan: Time
    timetable: Timetable

    @property
    def schedule(self) -> Schedule:
        """All operations in the order in which they start."""
        return self.timetable.program()


class HalfSchedule(NamedTuple):
    """All forwards, or all backwards in reversed time, and their transfers; in ticks.

    Attributes:
        starts: Shape (n,), when computations start.
        ends: Shape (n,), when they end.
        order: At [transfer]: the activation that moves.
        moved: At [transfer]: bytes that have moved when it ends.
        move_starts: At [transfer]: when it starts.
        move_ends: At [transfer]: when it ends.
        byte: As in `OrderedNoWait`.
    """

    starts: list[int]
    ends: list[int]
    order: list[int]
    moved: list[int]
    move_starts: list[int]
    move_ends: list[int]
    byte: int

    def when_moved(self, size: int) -> int:
        """Return when so many bytes together have moved; at most what moves in all."""
        place = bisect_left(self.moved, size)
        return self.move_ends[place] - (self.moved[place] - size) * self.byte


@dataclass(frozen=True, slots=True)
class OrderedNoWait:
    """Ordered no-wait on one problem, prepared for many sets of activations.

    Attributes:
        problem: The problem, with any link; with two directions at once, a replay may be faster.
        sizes: Shape (n,), bytes that move of ``x_0 .. x_L`` where these move.
        moving: Shape (n,), ticks that each takes on the link.
        times: Ticks of forwards and of backwards, each of shape (n,).
        needs: Bytes that forwards and backwards need above the budget, each of shape (n,).
        byte: Ticks of one byte where bytes flow one by one; 0 where all that a transfer moves
            counts as moved when it ends.
    """

    problem: OffloadProblem
    sizes: tuple[int, ...]
    moving: tuple[int, ...]
    times: tuple[tuple[int, ...], tuple[int, ...]]
    needs: tuple[tuple[int, ...], tuple[int, ...]]
    byte: int

    @classmethod
    def from_problem(
        cls, problem: OffloadProblem, sizes: Sequence[int] | None = None, *, byte: int = 0
    ) -> Self:
        """Compute transfers, times and needs of `problem`; of all activations, without `sizes`."""
        profile, link, ticks = problem.profile, problem.link, problem.link.ticks
        amounts = profile.activations[:-1] if sizes is None else tuple(sizes)
        return cls(
            problem=problem,
            sizes=amounts,
            moving=tuple(byte * size if byte else link.transfer_ticks(size) for size in amounts),
            times=(
                tuple(u * ticks for u in profile.forward_times),
                tuple(u * ticks for u in profile.backward_times),
            ),
            needs=(
                tuple(load - problem.budget for load in profile.forward_loads),
                tuple(load - problem.budget for load in profile.backward_loads),
            ),
            byte=byte,
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
        return None if halves is None else self._joined(*halves)

    def plan(self, chosen: Collection[int]) -> OrderedPlan | None:
        """Return the plan that moves `chosen`; ``None`` if that leaves too little memory.

        A replay, in which idle time need not be between the halves, may be faster, never slower.
        """
        halves = self._halves(chosen)
        if halves is None:
            return None
        (forward, backward), end = halves, self._joined(*halves)
        ticks = self.problem.link.ticks

        def at(tick: int) -> Time:
            return exact(Fraction(tick, ticks))

        starts = (*forward.starts, *(end - tick for tick in reversed(backward.ends)))
        items = [Item("a", j) for j in forward.order]
        moves = [
            Move(item.offload, at(start), at(stop))
            for item, start, stop in zip(items, forward.move_starts, forward.move_ends, strict=True)
        ]
        back = zip(items, backward.move_starts, backward.move_ends, strict=True)
        moves += [
            Move(item.prefetch, at(end - stop), at(end - start))
            for item, start, stop in reversed(list(back))
        ]
        return OrderedPlan(at(end), Timetable(tuple(map(at, starts)), tuple(moves)))

    def _halves(self, chosen: Collection[int]) -> tuple[HalfSchedule, HalfSchedule] | None:
        """Return both halves, or ``None`` if a computation or the host lacks memory in any case."""
        if self.exceeds_host(chosen):
            return None
        older = [0, *accumulate(size * (j in chosen) for j, size in enumerate(self.sizes))]
        for needs in self.needs:
            if any(need > gone for need, gone in zip(needs, older, strict=False)):
                return None
        order = sorted(j for j in chosen if self.sizes[j])
        forward, backward = (
            self._half(order, times, needs, lag)
            for times, needs, lag in zip(self.times, self.needs, (1, 0), strict=True)
        )
        return forward, backward

    def _half(
        self, order: list[int], times: Sequence[int], needs: Sequence[int], lag: int
    ) -> HalfSchedule:
        """Return one half, in which activation j can move when computation j - `lag` has ended."""
        moved = list(accumulate(self.sizes[j] for j in order))
        half = HalfSchedule([], [], order, moved, [], [], self.byte)
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

    def _append(self, half: HalfSchedule, j: int, start: int) -> int:
        """Append a transfer to a half; return the tick at which it ends."""
        half.move_starts.append(start)
        half.move_ends.append(start + self.moving[j])
        return half.move_ends[-1]

    def _joined(self, forward: HalfSchedule, backward: HalfSchedule) -> int:
        """Return the least makespan of the two halves, in ticks.

        1. Forwards end before backwards start.
        2. The last offload ends before the first prefetch starts.
        3. When ``F_i`` ends, at most what it leaves room for has come back: of the bytes that
           move, the others come back later. This is (10), with ``|y_{L+1}|`` left out.
        4. When ``B_i`` starts, what it needs has left: (9), with ``|y_{j+1}|``, not ``|y_{j-1}|``.
        5. What ``F_j`` reads comes back after ``F_j`` has ended, even if it has left before.
        """
        if not forward.moved:
            return forward.ends[-1] + backward.ends[-1]
        total, older, moving = forward.moved[-1], 0, set(forward.order)
        end = max(
            forward.ends[-1] + backward.ends[-1], forward.move_ends[-1] + backward.move_ends[-1]
        )
        for i, (need_forward, need_backward) in enumerate(zip(*self.needs, strict=True)):
            late = total - (older - need_forward)
            if late > 0:
                end = max(end, forward.ends[i] + backward.when_moved(late))
            if need_backward > 0:
                end = max(end, forward.when_moved(need_backward) + backward.ends[i])
            if i in moving:
                older += self.sizes[i]
        for j, back in zip(forward.order, backward.move_ends, strict=True):
            end = max(end, forward.ends[j] + back)
        return end
