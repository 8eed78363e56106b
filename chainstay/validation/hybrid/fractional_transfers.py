"""The makespan of a schedule whose offloaded items may move in parts: the model of [POFO].

A persistent schedule and the set of items that it offloads determine a makespan: bytes flow
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
from math import ceil

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import Time, Timetable, exact
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.data_items import freed_items, output_item, read_items
from chainstay.validation.simulate import simulate


@dataclass(slots=True)
class _ItemUse:
    """One item that is offloaded: its bytes, and the positions of computations that use it.

    Attributes:
        size: Bytes.
        made: Position of the forward that makes it; -1 for the network's input.
        last_forward: Position of the last forward that reads it.
        first_backward: Position of the first computation after the loss that reads it.
    """

    size: int
    made: int
    last_forward: int
    first_backward: int = -1


def without_transfers(schedule: Schedule) -> Schedule:
    """Return the schedule that has only the computations of `schedule`."""
    return Schedule(tuple(op for op in schedule if not op.kind.is_transfer))


def fractional_makespan(
    profile: ChainProfile, schedule: Schedule, *, budget: int, link: Link
) -> Time:
    """Return the makespan of `fractional_replay`; arguments and errors are its own."""
    return fractional_replay(profile, schedule, budget=budget, link=link).makespan


def fractional_replay(
    profile: ChainProfile, schedule: Schedule, *, budget: int, link: Link
) -> TransferReplay:
    """Run these computations as early as they can if offloaded items may move in any parts.

    Args:
        profile: A chain without skips, with options of single stages only.
        schedule: Computations in order, and transfers; of these only the set of items counts.
        budget: Bytes.
        link: A half-duplex link without latency.

    Returns:
        The least makespan, the peak, and what is on the host at the turn; its timetable is empty.

    Raises:
        InvalidProfileError: Another link.
        InvalidScheduleError: The computations are invalid, or exceed the budget even with all
            offloaded items gone.
    """
    if link.latency or link.is_full_duplex:
        raise InvalidProfileError(
            "fractional transfers are defined for a half-duplex link without latency, not for "
            f"{link}; use transfers='integral'"
        )
    moved = {op.item for op in schedule if op.kind.is_transfer}
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
    return TransferReplay(
        makespan=exact(forward[0] + backward[0]),
        peak_bytes=budget + ceil(max(forward[1], backward[1])),
        timetable=Timetable((), ()),
        host_bytes=sum(use.size for use in uses),
    )


def _uses(
    profile: ChainProfile, ops: Sequence[Op], moved: Collection[Item], turn: int
) -> list[_ItemUse]:
    """Return the uses of each offloaded item, by the copy that is stored around the loss."""
    uses: dict[Item, _ItemUse] = {}
    stored: set[Item] = {Item("a", 0)}
    if Item("a", 0) in moved:
        uses[Item("a", 0)] = _ItemUse(profile.input_bytes, -1, -1)
    for position, op in enumerate(ops):
        for use in filter(None, map(uses.get, read_items(op, stored))):
            if position < turn:
                use.last_forward = position
            elif use.first_backward < 0:
                use.first_backward = position
        freed = freed_items(op)
        stored.difference_update(freed)
        if position < turn:  # a later copy is another one
            uses = {item: use for item, use in uses.items() if item not in freed}
        if op.kind is OpKind.BACKWARD:
            continue
        made = output_item(op)
        stored.add(made)
        if made in moved and position < turn:
            uses[made] = _ItemUse(_made_bytes(profile, op), position, position)
    _require_uses(uses, moved)
    return list(uses.values())


def _require_uses(uses: dict[Item, _ItemUse], moved: Collection[Item]) -> None:
    """Refuse to move what is not there at the loss, or not read after it."""
    for item in moved:
        if item not in uses or uses[item].first_backward < 0:
            raise InvalidScheduleError(
                f"{item} moves, and no one copy of it is there before and read after the loss"
            )


def _made_bytes(profile: ChainProfile, op: Op) -> int:
    if op.kind is OpKind.FORWARD_KEEP_ALL:
        return profile.stages[op.stage].all_options[op.option].saved_bytes
    return profile.activation_bytes(op.stage + 1)


def _half(
    excess: Sequence[int],
    times: Sequence[int],
    items: Sequence[tuple[int, int, int]],
    bandwidth: Fraction,
) -> tuple[Fraction, Fraction] | None:
    """Return when a half's last computation and transfer end, and the most bytes above the budget.

    None if memory is too small.

    Args:
        excess: By computation, bytes that it needs above the budget with nothing offloaded.
        times: By computation, its time.
        items: For each item, the computation after which it can start to move, the one after
            which its memory counts as free, and its bytes.
        bandwidth: Bytes per time unit.
    """
    clock = gone = Fraction(0)
    peaks = []
    for position, (over, time) in enumerate(zip(excess, times, strict=True)):
        there = sum(size for made, _, size in items if made < position)
        free = sum(size for _, served, size in items if served < position)
        if over > free:
            return None
        if over > gone:
            clock += (over - gone) / bandwidth
            gone = Fraction(over)
        peaks.append(over - min(gone, Fraction(free)))
        clock += time
        gone = min(Fraction(there), gone + time * bandwidth)
    return clock + (sum(size for *_, size in items) - gone) / bandwidth, max(peaks)
