"""Local search for a schedule of whole transfers, from computations and what they offload.

Each half of the schedule, the way back in reversed time, runs by itself: transfers first in,
first out, computations as soon as enough has left. Glued together and sorted by time that is
a schedule, which the simulator times. Local search then changes what is moved, item by item,
and when transfers are issued, position by position.

All that moves is away at the turn, so the host must have room for it together. Where it has not,
it takes what is away for the shortest time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from chainstay.errors import InvalidScheduleError
from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import ChainProfile
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import Time, TimedSchedule, sorted_by_start
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.simulate import simulate

_Choice: TypeAlias = frozenset[Item]
"""The items that move."""


class _ItemLifetime(NamedTuple):
    """An item that may be away at the turn.

    Attributes:
        item: The item.
        made: Position of the computation that makes it; -1 for the network's input.
        last_forward: Position of the last computation before the turn that reads it.
        first_backward: Position of the first computation after the turn that reads it.
        size: Bytes.
        ticks: Transfer time, in ticks of the link.
    """

    item: Item
    made: int
    last_forward: int
    first_backward: int
    size: int
    ticks: int


@dataclass(slots=True)
class WholeTransferSearch:
    """Local search over the schedules of one sequence of computations.

    Attributes:
        problem: The problem to solve; its transfers are integral.
        ops: Computations, valid without a budget.
        tries: Number of schedules that may still be simulated.
        overheads: Bytes that each computation needs besides what is stored, in place of its
            stage's in the profile.
        can_run: Function that tells whether a schedule that fits can be run.
        profile_of: Function from a schedule to the costs of the chain, where times depend on
            what moves, and on nothing else of it; they are no shorter than the problem's.
    """

    problem: HybridProblem
    ops: tuple[Op, ...]
    tries: int
    overheads: Sequence[int] | None = None
    can_run: Callable[[Schedule], bool] = lambda _: True
    profile_of: Callable[[Schedule], ChainProfile] | None = None
    _profiles: dict[frozenset[Op], ChainProfile] = field(default_factory=dict)
    _turn: int = 0
    _excess: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _lifetimes: dict[Item, _ItemLifetime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profile = self.problem.profile
        replay = simulate(profile, Schedule(self.ops), discards="free", overheads=self.overheads)
        self._turn = self.ops.index(Op(OpKind.BACKWARD, len(profile) - 1))
        for snapshot in replay.timeline:
            self._excess.append(snapshot.during_bytes - self.problem.budget)
            self._times.append((snapshot.end - snapshot.start) * self.problem.link.ticks)
        self._find_lifetimes()

    def best(self, moved: Collection[Item]) -> TimedSchedule | None:
        """Return the best schedule found from moving `moved`, or ``None`` if nothing fits."""
        first = self.first(moved)
        return None if first is None else self.improved(first)

    def first(self, moved: Collection[Item]) -> TimedSchedule | None:
        """Return a schedule that moves `moved`, and more where that does not fit, if any does."""
        choices = map(self._with_room, self._more_and_more(moved))
        return next(filter(None, map(self._glued_halves, choices)), None)

    def improved(self, timed: TimedSchedule) -> TimedSchedule:
        """Return the best schedule found from `timed`, which is one of these computations."""
        timed = self._improved(timed, self._with_other_items)
        return self._improved(timed, self._with_a_transfer_moved)

    def _improved(
        self,
        timed: TimedSchedule,
        attempts: Callable[[TimedSchedule], Iterator[TimedSchedule | None]],
    ) -> TimedSchedule:
        """Take the first faster attempt, again and again, until none is or tries run out."""
        better: TimedSchedule | None = timed
        while better is not None:
            timed, better = better, None
            if self.tries > 0 and timed.makespan > self.problem.profile.least_time:
                better = next((t for t in attempts(timed) if t or self.tries <= 0), None)
        return timed

    def _with_other_items(self, timed: TimedSchedule) -> Iterator[TimedSchedule | None]:
        """Yield schedules with one item less, one more, or one exchanged, if they are faster."""
        chosen = frozenset(op.item for op in timed.schedule if op.kind.is_offload)
        for other in filter(self._has_room, self._neighbours(chosen)):
            yield self._glued_halves(other, timed.makespan)

    def _with_a_transfer_moved(self, timed: TimedSchedule) -> Iterator[TimedSchedule | None]:
        """Yield schedules that issue one transfer earlier or later, if they are faster."""
        for other in _moved_by_one(timed.schedule):
            yield self._simulated(other, timed.makespan)

    def _more_and_more(self, moved: Collection[Item]) -> Iterator[Collection[Item]]:
        """Yield `moved`, then larger sets, first with items that can be away long; last all."""
        others = [life for life in self._lifetimes.values() if life.item not in moved]
        others.sort(key=lambda life: life.last_forward - life.first_backward)
        count = 0
        while count < len(others):
            yield {*moved, *(life.item for life in others[:count])}
            count = 2 * count or 1
        yield self._lifetimes

    def _find_lifetimes(self) -> None:
        """Find the items that are made before the turn and read on both sides of it or after it."""
        stored = {Item("a", 0)}
        made = {Item("a", 0): -1}
        served: dict[Item, int] = {}
        for position, op in enumerate(self.ops):
            for item in op.reads(stored):
                if position < self._turn:
                    served[item] = position
                elif item in made:
                    last = served.get(item, made[item])
                    lifetime = self._lifetime_of(item, made[item], last, position)
                    self._lifetimes.setdefault(item, lifetime)
            for item in op.frees:
                stored.discard(item)
                if position < self._turn:
                    made.pop(item, None)
            if (output := op.makes) is not None:
                stored.add(output)
                if position < self._turn:
                    made[output] = position
                else:
                    made.pop(output, None)

        ends = ("b", len(self.problem.profile) - 1)
        self._lifetimes = {
            item: lifetime
            for item, lifetime in self._lifetimes.items()
            if lifetime.size and item != ends
        }

    def _with_room(self, moved: Collection[Item]) -> _Choice:
        """Return those of `moved` for which the host has room, taken in turn from the latest."""
        room = self.problem.link.room
        chosen: set[Item] = set()
        lifetimes = [self._lifetimes[item] for item in moved if item in self._lifetimes]
        lifetimes.sort(key=lambda lifetime: (lifetime.made, lifetime.item), reverse=True)
        for lifetime in lifetimes:
            if lifetime.size <= room:
                room -= lifetime.size
                chosen.add(lifetime.item)
        return frozenset(chosen)

    def _has_room(self, chosen: _Choice) -> bool:
        return sum(self._lifetimes[item].size for item in chosen) <= self.problem.link.room

    def _lifetime_of(
        self, item: Item, made: int, last_forward: int, first_backward: int
    ) -> _ItemLifetime:
        profile, (kind, i) = self.problem.profile, item
        if kind == "a":
            size = profile.activation_bytes(i)
        else:
            size = profile.stages[i].all_options[self.ops[made].option].saved_bytes
        ticks = self.problem.link.transfer_ticks(size)
        return _ItemLifetime(item, made, last_forward, first_backward, size, ticks)

    def _neighbours(self, chosen: _Choice) -> Iterator[_Choice]:
        """Yield choices with one item less, one more, or one exchanged, room on the host or not."""
        others = [item for item in sorted(self._lifetimes) if item not in chosen]
        for item in sorted(chosen):
            yield chosen - {item}
        for item in others:
            yield chosen | {item}
        for item in sorted(chosen):
            for near in sorted(others, key=lambda other: abs(other[1] - item[1]))[:3]:
                yield chosen - {item} | {near}

    def _glued_halves(self, chosen: _Choice, limit: Time | None = None) -> TimedSchedule | None:
        """Glue the halves in two ways; return the faster if it fits and takes less than `limit`."""
        moving = [self._lifetimes[item] for item in sorted(chosen)]
        moving.sort(key=lambda lifetime: lifetime.made)
        mirrored = sorted(moving, key=lambda lifetime: -lifetime.first_backward)
        turn, last = self._turn, len(self.ops) - 1
        forward = _half(
            self._excess[:turn],
            self._times[:turn],
            [(lifetime.made, lifetime.last_forward, lifetime) for lifetime in moving],
        )
        backward = _half(
            self._excess[turn:][::-1],
            self._times[turn:][::-1],
            [(last - lifetime.first_backward,) * 2 + (lifetime,) for lifetime in mirrored],
        )
        if forward is None or backward is None:
            return None
        tight = max(forward.end + backward.end, forward.moved + backward.moved)
        loose = max(forward.end, forward.moved) + max(backward.end, backward.moved)
        best: TimedSchedule | None = None
        for end in dict.fromkeys((tight, loose)):
            schedule = self._glued((forward, backward), (moving, mirrored), end)
            best = self._simulated(schedule, limit if best is None else best.makespan) or best
        return best

    def _glued(
        self,
        halves: tuple[_HalfTimes, _HalfTimes],
        moving: tuple[Sequence[_ItemLifetime], Sequence[_ItemLifetime]],
        end: int,
    ) -> Schedule:
        """Return all operations by their starts, the second half turned round to end at `end`."""
        forward, backward = halves
        ends = zip(reversed(backward.starts), self._times[self._turn :], strict=True)
        starts = [*forward.starts, *(end - start - time for start, time in ends)]
        transfers = {
            life.item.offload: start
            for life, start in zip(moving[0], forward.move_starts, strict=True)
        }
        for life, start in reversed(list(zip(moving[1], backward.move_starts, strict=True))):
            transfers[life.item.prefetch] = end - start - life.ticks
        return sorted_by_start(starts, transfers, self.ops)

    def _simulated(self, schedule: Schedule, limit: Time | None) -> TimedSchedule | None:
        """Simulate `schedule`; None unless it fits, takes less than `limit` and can be run."""
        self.tries -= 1
        moved = frozenset(op for op in schedule if op.kind.is_offload)
        replayed = self._makespan(self._profiles.get(moved, self.problem.profile), schedule)
        if self.profile_of is not None and moved not in self._profiles:
            if not _is_better(replayed, limit):
                return None  # at its own costs it takes no less
            self._profiles[moved] = self.profile_of(schedule)
            replayed = self._makespan(self._profiles[moved], schedule)
        if replayed is None or not _is_better(replayed, limit) or not self.can_run(schedule):
            return None
        return TimedSchedule(replayed, schedule)

    def _makespan(self, profile: ChainProfile, schedule: Schedule) -> Time | None:
        """How long `schedule` takes at these costs; None if it does not fit."""
        try:
            return simulate_hybrid(
                profile,
                schedule,
                budget=self.problem.budget,
                link=self.problem.link,
                overheads=self._overheads_of(schedule),
            ).makespan
        except InvalidScheduleError:
            return None

    def _overheads_of(self, schedule: Schedule) -> list[int] | None:
        if self.overheads is None:
            return None
        following = iter(self.overheads)
        return [0 if op.kind.is_transfer else next(following) for op in schedule]


def _is_better(makespan: Time | None, limit: Time | None) -> bool:
    return makespan is not None and (limit is None or makespan < limit)


def _moved_by_one(schedule: Schedule) -> Iterator[Schedule]:
    """Yield schedules in which one transfer has changed places with an operation beside it."""
    ops = schedule.ops
    for index in range(len(ops) - 1):
        if ops[index].kind.is_transfer or ops[index + 1].kind.is_transfer:
            yield Schedule((*ops[:index], ops[index + 1], ops[index], *ops[index + 2 :]))


class _HalfTimes(NamedTuple):
    """The times of the computations and transfers of one half, the second in reversed time.

    Attributes:
        starts: Starts of the computations, in ticks.
        end: End of the last computation, in ticks.
        move_starts: Starts of the transfers, in ticks.
        moved: End of the last transfer, in ticks.
    """

    starts: list[int]
    end: int
    move_starts: list[int]
    moved: int


def _half(
    excess: Sequence[int], times: Sequence[int], items: Sequence[tuple[int, int, _ItemLifetime]]
) -> _HalfTimes | None:
    """Run everything as early as it can; ``None`` if memory is too small with all items away.

    Args:
        excess: By computation, bytes that it needs above the budget with nothing offloaded.
        times: By computation, its time in ticks.
        items: For each item, the computation after which it may move, the one after which its
            memory may be free, and its lifetime.
    """
    starts: list[int] = []
    ends: list[int] = []
    move_starts: list[int] = []
    gone: list[tuple[int, int, int]] = []
    free = 0  # when the link is free
    clock = index = 0
    for position, (over, time) in enumerate(zip(excess, times, strict=True)):
        while index < len(items) and items[index][0] < position:
            made, served, lifetime = items[index]
            move_starts.append(max(free, ends[made] if made >= 0 else 0))
            free = move_starts[-1] + lifetime.ticks
            gone.append((free, served, lifetime.size))
            index += 1
        away = 0
        for end, served, size in sorted(gone):
            if away >= over:
                break
            if served < position:
                clock, away = max(clock, end), away + size
        if away < over:
            return None
        starts.append(clock)
        clock += time
        ends.append(clock)
    for made, _, lifetime in items[index:]:
        move_starts.append(max(free, ends[made] if made >= 0 else 0))
        free = move_starts[-1] + lifetime.ticks
    return _HalfTimes(starts, clock, move_starts, free)
