"""Memory in use over time, by category.

Chains and joins are replayed operation by operation; under transfers memory changes while
operations run, so it follows from the timetable (offloading) or from the simulator's own state
(recomputing and offloading). The sum of a level's categories is what the simulator counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from chainstay.profiles import ChainProfile, Link, OffloadProfile
from chainstay.schedule import OpKind, Schedule
from chainstay.timetable import Time, Timetable, Transfers
from chainstay.validation.hybrid.simulate import HybridMachine, run_schedule
from chainstay.validation.simulate import Replay, Snapshot

CATEGORIES: Final = (
    ("activation", "activations"),
    ("saved", "saved for backward"),
    ("gradient", "gradients"),
    ("temporary", "temporaries"),
)
"""Fields of a `MemoryLevel` but its time, with their names for people; stacked in this order."""


class MemoryLevel(NamedTuple):
    """Bytes in use at a time, by category.

    Two levels at one time are a step; between two times memory changes evenly.

    Attributes:
        time: Time in ns.
        activation: Bytes of plain activations; under whole-activation offloading, of all that
            stages save.
        saved: Bytes that stages saved for their backwards.
        gradient: Bytes of gradients of activations.
        temporary: Bytes that operations need only while they run.
    """

    time: Time
    activation: Time
    saved: Time
    gradient: Time
    temporary: Time

    @property
    def total(self) -> Time:
        """Bytes in use."""
        return self.activation + self.saved + self.gradient + self.temporary


def replay_levels(replay: Replay) -> tuple[MemoryLevel, ...]:
    """Return the levels of operations that run one after another."""
    levels: list[MemoryLevel] = []
    before: Snapshot | None = None
    for snapshot in replay.timeline:
        activation, saved, gradient, temporary = _during(snapshot, before)
        levels.append(MemoryLevel(snapshot.start, activation, saved, gradient, temporary))
        levels.append(MemoryLevel(snapshot.end, activation, saved, gradient, temporary))
        before = snapshot
    return tuple(levels)


def _during(snapshot: Snapshot, before: Snapshot | None) -> tuple[int, int, int, int]:
    """Return the memory while an operation runs: nothing is gone yet, all of it is there."""
    overhead = snapshot.overhead_bytes
    kept = snapshot.during_bytes - overhead
    is_backward = snapshot.op.kind in (OpKind.BACKWARD, OpKind.TURN)
    if is_backward and before is not None:
        activation, saved = before.activation_bytes, before.saved_bytes
        return activation, saved, kept - activation - saved, overhead
    saved, gradient = snapshot.saved_bytes, snapshot.gradient_bytes
    if snapshot.op.kind is OpKind.FORWARD_DROP and before is not None:
        saved = before.saved_bytes
    return kept - saved - gradient, saved, gradient, overhead


def slot_levels(replay: Replay) -> tuple[MemoryLevel, ...]:
    """Return the levels of a homogeneous join, counted after operations and their discards."""
    levels: list[MemoryLevel] = []
    for snapshot in replay.timeline:
        if snapshot.op.kind is OpKind.DISCARD_ACTIVATION and levels:
            after = levels.pop()
            levels[-1] = after = after._replace(activation=snapshot.activation_bytes)
        else:
            after = MemoryLevel(
                snapshot.start, snapshot.activation_bytes, 0, snapshot.gradient_bytes, 0
            )
            levels.append(after)
        levels.append(after._replace(time=snapshot.end))
    return tuple(levels)


_START, _FREE, _TAKE = -1, 0, 1 << 60
"""Order at one time: what ends on the link frees first, prefetches take last."""


def offload_levels(
    profile: OffloadProfile, timetable: Timetable, link: Link, transfers: Transfers
) -> tuple[MemoryLevel, ...]:
    """Return the levels of whole activations that move, as `chainstay.validation` counts them.

    Under integral transfers the memory of an activation goes when it is away and comes when
    its prefetch starts; otherwise byte by byte.
    """
    ends = _ends(profile, timetable)
    changes = [*_computation_changes(profile, timetable, ends)]
    if transfers is Transfers.INTEGRAL:
        changes += _whole_changes(profile, timetable, ends)
    else:
        changes += _flow_changes(timetable, ends, Fraction(link.bandwidth))
    return tuple(_accumulated(MemoryLevel(0, profile.activations[0], 0, 0, 0), changes))


class _MemoryChange(NamedTuple):
    """A change of memory at a time, and the rate at which activations change from then on."""

    time: Time
    order: int
    activation: Time = 0
    gradient: int = 0
    temporary: int = 0
    slope: Fraction = Fraction(0)


def _ends(profile: OffloadProfile, timetable: Timetable) -> list[Time]:
    times = (*profile.forward_times, *reversed(profile.backward_times))
    return [start + time for start, time in zip(timetable.starts, times, strict=True)]


def _computation_changes(
    profile: OffloadProfile, timetable: Timetable, ends: Sequence[Time]
) -> Iterator[_MemoryChange]:
    count, sizes, gradients = len(profile), profile.activations, profile.gradients
    for number, (start, end) in enumerate(zip(timetable.starts, ends, strict=True)):
        first, second = 2 * number, 2 * number + 1
        if number < count:
            overhead = profile.forward_overheads[number]
            yield _MemoryChange(start, first, sizes[number + 1], 0, overhead)
            yield _MemoryChange(end, second, 0, 0, -overhead)
            continue
        i = 2 * count - 1 - number
        overhead = profile.backward_overheads[i]
        made = gradients[i] + gradients[count] * (i == count - 1)
        gone = sizes[i + 1] + sizes[0] * (i == 0)
        yield _MemoryChange(start, first, 0, made, overhead)
        yield _MemoryChange(end, second, -gone, -gradients[i + 1], -overhead)


def _whole_changes(
    profile: OffloadProfile, timetable: Timetable, ends: Sequence[Time]
) -> Iterator[_MemoryChange]:
    for move in timetable.moves:
        size, stage = profile.activations[move.op.stage], move.op.stage
        if move.op.kind is OpKind.PREFETCH_ACTIVATION:
            yield _MemoryChange(move.start, _TAKE, size)
        elif move.end > ends[stage]:
            yield _MemoryChange(move.end, _FREE, -size)
        else:
            yield _MemoryChange(ends[stage], 2 * stage + 1, -size)


def _flow_changes(
    timetable: Timetable, ends: Sequence[Time], bandwidth: Fraction
) -> Iterator[_MemoryChange]:
    for move in timetable.moves:
        stage, start = move.op.stage, move.start
        if move.op.kind is OpKind.PREFETCH_ACTIVATION:
            yield _MemoryChange(start, _TAKE, slope=bandwidth)
            yield _MemoryChange(move.end, _START, slope=-bandwidth)
            continue
        if start < ends[stage]:  # what leaves while it is read is free when that ends
            until = min(move.end, ends[stage])
            yield _MemoryChange(ends[stage], 2 * stage + 1, (start - until) * bandwidth)
            start = until
        yield _MemoryChange(start, _TAKE, slope=-bandwidth)
        yield _MemoryChange(move.end, _START, slope=bandwidth)


def _accumulated(level: MemoryLevel, changes: Sequence[_MemoryChange]) -> Iterator[MemoryLevel]:
    slope = Fraction(0)
    yield level
    for change in sorted(changes, key=lambda change: change[:2]):
        if change.time > level.time:
            flowed = (change.time - level.time) * slope
            level = level._replace(time=change.time, activation=level.activation + flowed)
            yield level
        slope += change.slope
        level = MemoryLevel(
            level.time,
            level.activation + change.activation,
            0,
            level.gradient + change.gradient,
            level.temporary + change.temporary,
        )
        if change[2:5] != (0, 0, 0):
            yield level


def hybrid_levels(
    profile: ChainProfile, schedule: Schedule, *, budget: int, link: Link
) -> tuple[MemoryLevel, ...]:
    """Return the levels of a schedule with recomputation and transfers, as the simulator runs it.

    Raises:
        InvalidScheduleError: As `simulate_hybrid`.
    """
    machine = _RecordingMachine(profile, budget, link)
    run_schedule(machine, schedule, after_each=machine.record)
    return tuple(machine.recorded)


class _RecordingMachine(HybridMachine):
    """The machine of `simulate_hybrid`, which records the memory in use."""

    __slots__ = ("recorded",)

    def __init__(self, profile: ChainProfile, budget: int, link: Link) -> None:
        super().__init__(profile, budget, link)
        self.recorded: list[MemoryLevel] = []

    def record(self) -> None:
        """Record the memory in use now, where it has changed."""
        sizes = {"a": 0, "b": 0}
        for item in self.stored:
            sizes[item[0]] += self.size(item)
        computing, gradient = self.computing, self.profile.gradient_bytes(self.gradient)
        if computing is not None and computing.kind is OpKind.BACKWARD:
            gradient += self.profile.stages[computing.stage].gradient_bytes
        temporary = self.memory - sizes["a"] - sizes["b"] - gradient
        time = Fraction(self.now, self.link.ticks)
        level = MemoryLevel(time, sizes["a"], sizes["b"], gradient, temporary)
        if self.recorded and self.recorded[-1][1:] != level[1:]:
            self.recorded.append(self.recorded[-1]._replace(time=time))
        if not self.recorded or self.recorded[-1] != level:
            self.recorded.append(level)

    def _advance(self) -> None:
        super()._advance()
        self.record()
