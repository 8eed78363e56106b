"""The best plan for given amounts, when bytes flow one by one and all offloads come first.

[BES20], Lemmas 2 and 3: offload in increasing order, each byte as early as it can; run every
forward as soon as enough is free. The way back is the same in reversed time: prefetches in
decreasing order, as late as they can. Then join the two halves with the least idle time such
that all offloads end before the first prefetch and memory suffices in between. (The lemma
says that this is the best of all plans; it is the best among plans of this form.)

Times are in ticks of the link, in which one byte takes a whole number of them: no rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

from chainstay.errors import InvalidProfileError
from chainstay.problems.offload import OffloadProblem
from chainstay.schedule import Op, OpKind
from chainstay.timetable import Move, Time, Timetable, exact


class FluidPlan(NamedTuple):
    """A timetable and its makespan in the profile's time units."""

    makespan: Time
    timetable: Timetable


class _Transfer(NamedTuple):
    """The transfer of activation j, its start and end in ticks."""

    j: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _FluidHalf:
    """All forwards, or all backwards in reversed time, and their transfers; in ticks.

    Attributes:
        starts: Shape (n,), ticks at which computations start.
        ends: Shape (n,), ticks at which they end.
        transfers: Transfers in the order of j and of time.
        byte: Ticks that one byte takes.
    """

    starts: list[int]
    ends: list[int]
    transfers: list[_Transfer]
    byte: int

    @property
    def moved_by(self) -> int:
        """The tick at which the last transfer ends."""
        return self.transfers[-1].end if self.transfers else 0

    def when_moved(self, amount: int) -> int:
        """Return the tick by which `amount` bytes have moved; at most what moves in all."""
        for transfer in self.transfers:
            size = (transfer.end - transfer.start) // self.byte
            if amount <= size:
                return transfer.start + amount * self.byte
            amount -= size
        raise AssertionError("more bytes than move")


def byte_ticks(problem: OffloadProblem) -> int:
    """Return the ticks of the link that one byte takes.

    Raises:
        InvalidProfileError: The link has latency, or runs both ways at once: Algorithm 1 and
            Greedy do not apply to such links.
    """
    link = problem.link
    if link.latency or link.is_full_duplex:
        raise InvalidProfileError(
            f"{problem.transfers} transfers are solved over half-duplex links without latency, "
            f"not over {link}; use another link, or transfers='integral', which allows all links"
        )
    return link.transfer_ticks(1)


def greedy_amounts(problem: OffloadProblem) -> list[int]:
    """Return what Greedy moves: from the first activation on, exactly what the peak is too high.

    Returns:
        Shape (n,), bytes; in the last activation that moves they may be a part of it.
    """
    left = max(0, problem.profile.peak_bytes - problem.budget)
    amounts = []
    for size in problem.profile.activations[:-1]:
        amounts.append(min(size, left))
        left -= amounts[-1]
    return amounts


def fluid_plan(problem: OffloadProblem, amounts: Sequence[int]) -> FluidPlan | None:
    """Return the best offload-before-prefetch plan that moves `amounts`, or ``None`` if none fits.

    Args:
        problem: Its link has neither latency nor two directions at once.
        amounts: Shape (n,), bytes of every activation that move.

    Complexity:
        O(n**2).
    """
    profile, byte = problem.profile, byte_ticks(problem)
    stages, ticks = len(profile), problem.link.ticks
    older = [0, *accumulate(amounts)]
    needs = [
        [load - problem.budget for load in loads]
        for loads in (profile.forward_loads, profile.backward_loads)
    ]
    if any(need > older[i] for side in needs for i, need in enumerate(side)):
        return None
    forward = _half(amounts, needs[0], [u * ticks for u in profile.forward_times], byte, lag=1)
    backward = _half(amounts, needs[1], [u * ticks for u in profile.backward_times], byte, lag=0)
    makespan = _least_makespan(forward, backward, needs, older)
    at = [exact(Fraction(tick, ticks)) for tick in forward.starts]
    at += [exact(Fraction(makespan - tick, ticks)) for tick in reversed(backward.ends)]
    moves = [
        _move(OpKind.OFFLOAD_ACTIVATION, t.j, t.start, t.end, ticks) for t in forward.transfers
    ]
    moves += [
        _move(OpKind.PREFETCH_ACTIVATION, t.j, makespan - t.end, makespan - t.start, ticks)
        for t in reversed(backward.transfers)
    ]
    assert len(at) == 2 * stages
    return FluidPlan(exact(Fraction(makespan, ticks)), Timetable(tuple(at), tuple(moves)))


def _move(kind: OpKind, j: int, start: int, end: int, ticks: int) -> Move:
    """Return a transfer of a timetable, from its ticks."""
    return Move(Op(kind, j), exact(Fraction(start, ticks)), exact(Fraction(end, ticks)))


def _half(
    amounts: Sequence[int], needs: Sequence[int], times: Sequence[int], byte: int, *, lag: int
) -> _FluidHalf:
    """Return computations as early as memory allows, and transfers in order, as early as can be."""
    half, clock, free = _FluidHalf([], [], [], byte), 0, 0
    for i, time in enumerate(times):
        if lag and amounts[i]:  # what the computation before has made
            free = _append(half, i, max(free, clock), amounts[i])
        if needs[i] > 0:
            clock = max(clock, half.when_moved(needs[i]))
        half.starts.append(clock)
        clock += time
        half.ends.append(clock)
        if not lag and amounts[i]:
            free = _append(half, i, max(free, clock), amounts[i])
    return half


def _append(half: _FluidHalf, j: int, start: int, amount: int) -> int:
    """Append a transfer to a half; return the tick at which it ends."""
    half.transfers.append(_Transfer(j, start, start + amount * half.byte))
    return half.transfers[-1].end


def _least_makespan(
    forward: _FluidHalf, backward: _FluidHalf, needs: Sequence[Sequence[int]], older: Sequence[int]
) -> int:
    """Return the least makespan of the two halves, in ticks.

    1. Forwards end before backwards start.
    2. The last offload ends before the first prefetch starts.
    3. When ``F_i`` ends, at most what it leaves room for has come back: of the bytes that
       move, the others come back later. This is (10), with ``|y_{L+1}|`` left out.
    4. When ``B_i`` starts, what it needs has left: (9), with ``|y_{j+1}|``, not ``|y_{j-1}|``.
    5. What ``F_j`` reads comes back after ``F_j`` has ended, even if it has left before.
    """
    total = older[-1]
    makespan = max(forward.ends[-1] + backward.ends[-1], forward.moved_by + backward.moved_by)
    for i, (need_forward, need_backward) in enumerate(zip(*needs, strict=True)):
        late = total - (older[i] - need_forward)
        if late > 0:
            makespan = max(makespan, forward.ends[i] + backward.when_moved(late))
        if need_backward > 0:
            makespan = max(makespan, forward.when_moved(need_backward) + backward.ends[i])
    for out, back in zip(forward.transfers, backward.transfers, strict=True):
        makespan = max(makespan, forward.ends[out.j] + back.end)
    return makespan
