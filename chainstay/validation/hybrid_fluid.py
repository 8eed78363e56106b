"""What a schedule takes when parts of items may move: the model of [POFO]. A referee.

A persistent schedule and the items that it offloads have a value of their own: bytes flow
over one link, first in, first out; what has left before the last forward that reads it has
ended is free when it ends; nothing leaves after the loss's backward starts, nothing comes
back before the loss's forward has ended. The way back, in reversed time, is the same.

Both halves follow from the memory that every operation needs with nothing offloaded, which
`simulate` counts: an operation waits until what exceeds the budget has left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Time, exact
from chainstay.validation.hybrid_items import Item, freed_by, item_of, made_by, reads_of
from chainstay.validation.simulate import simulate

__all__ = ["fractional_makespan", "without_transfers"]


@dataclass(slots=True)
class _Use:
    """An item that leaves: positions of computations, and bytes."""

    size: int
    made: int
    last_forward: int
    first_backward: int = -1


def without_transfers(schedule: Schedule) -> Schedule:
    """The computations of `schedule`."""
    return Schedule(tuple(op for op in schedule if not op.kind.is_transfer))


def fractional_makespan(
    profile: ChainProfile, schedule: Schedule, *, budget: int, link: Link
) -> Time:
    """The least makespan of these computations with these items offloaded, in parts at will.

    Args:
        profile: A chain without skips.
        schedule: Computations in order, and transfers, of which only what is moved counts.
        budget: Bytes.
        link: Half-duplex and without latency.

    Raises:
        InvalidProfileError: Another link.
        InvalidScheduleError: Not valid without a budget, or over it with all of them gone.
    """
    if link.latency or link.is_full_duplex:
        raise InvalidProfileError(
            "fractional transfers are defined for a half-duplex link without latency, not for "
            f"{link}; use transfers='integral'"
        )
    moved = {item_of(op) for op in schedule if op.kind.is_transfer}
    computations = without_transfers(schedule)
    replay = simulate(profile, computations)
    turn = computations.ops.index(Op(OpKind.BACKWARD, len(profile) - 1))
    uses = _uses(profile, computations.ops, moved, turn)
    loads = [snapshot.during_bytes for snapshot in replay.timeline]
    times = [snapshot.end - snapshot.start for snapshot in replay.timeline]
    last = len(loads) - 1
    forward = _half(
        [load - budget for load in loads[:turn]],
        times[:turn],
        [(use.made, use.last_forward, use.size) for use in uses],
        Fraction(link.bandwidth),
    )
    backward = _half(
        [load - budget for load in reversed(loads[turn:])],
        list(reversed(times[turn:])),
        [(last - use.first_backward,) * 2 + (use.size,) for use in uses],
        Fraction(link.bandwidth),
    )
    if forward is None or backward is None:
        raise InvalidScheduleError(
            f"the schedule exceeds the budget of {budget} even with all of "
            f"{len(moved)} items offloaded"
        )
    return exact(forward + backward)


def _uses(
    profile: ChainProfile, ops: Sequence[Op], moved: Collection[Item], turn: int
) -> list[_Use]:
    """Of every moved item, its life that crosses the turn."""
    uses: dict[Item, _Use] = {}
    stored: set[Item] = {("a", 0)}
    if ("a", 0) in moved:
        uses["a", 0] = _Use(profile.input_bytes, -1, -1)
    for position, op in enumerate(ops):
        for use in filter(None, map(uses.get, reads_of(op, stored))):
            if position < turn:
                use.last_forward = position
            elif use.first_backward < 0:
                use.first_backward = position
        stored.difference_update(freed_by(op))
        if op.kind is OpKind.BACKWARD:
            continue
        made = made_by(op)
        stored.add(made)
        if made in moved and position < turn:
            uses[made] = _Use(_size(profile, made), position, position)
    for item in moved:
        if item not in uses or uses[item].first_backward < 0:
            raise InvalidScheduleError(
                f"{item[0]}{item[1]} moves, and no one copy of it is there before and read after "
                "the loss"
            )
    return list(uses.values())


def _size(profile: ChainProfile, item: Item) -> int:
    kind, index = item
    return profile.activation_bytes(index) if kind == "a" else profile.stages[index].saved_bytes


def _half(
    excess: Sequence[int],
    times: Sequence[int],
    items: Sequence[tuple[int, int, int]],
    bandwidth: Fraction,
) -> Fraction | None:
    """When all computations and transfers of a half have ended, if memory suffices.

    Args:
        excess: Of each computation, above the budget.
        times: Likewise.
        items: After which computation each can start to move, after which its memory counts
            as free, and its bytes.
        bandwidth: Bytes per time unit.
    """
    clock = gone = Fraction(0)
    for position, (over, time) in enumerate(zip(excess, times, strict=True)):
        there = sum(size for made, _, size in items if made < position)
        free = sum(size for _, served, size in items if served < position)
        if over > free:
            return None
        if over > gone:
            clock += (over - gone) / bandwidth
            gone = Fraction(over)
        clock += time
        gone = min(Fraction(there), gone + time * bandwidth)
    return clock + (sum(size for *_, size in items) - gone) / bandwidth
