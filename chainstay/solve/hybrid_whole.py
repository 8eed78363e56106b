"""From computations and what they offload to a program list of whole transfers, improved.

Each half of the schedule, the way back in reversed time, runs by itself: transfers first in,
first out, computations as soon as enough has left. Glued together and sorted by time that is
a program list, of which the referee says what it takes. Local improvement then changes what
is moved, item by item, and when transfers are issued, place by place.

All that moves is away at the turn, so what is behind each link must have room there together.
Where it has not, the fast link takes what is away for the shortest time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from chainstay.errors import InvalidScheduleError
from chainstay.hybrid import HybridProblem
from chainstay.profiles import ChainProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Time
from chainstay.validation.hybrid import simulate_hybrid
from chainstay.validation.hybrid_items import Item, freed_by, made_by, reads_of
from chainstay.validation.simulate import simulate

__all__ = ["Program", "WholeTransfers"]

_OFFLOAD: Final = (
    {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED},
    {"a": OpKind.SPILL_ACTIVATION, "b": OpKind.SPILL_SAVED},
)
_PREFETCH: Final = {"a": OpKind.PREFETCH_ACTIVATION, "b": OpKind.PREFETCH_SAVED}


class Program(NamedTuple):
    """A program list and what the referee says that it takes."""

    makespan: Time
    schedule: Schedule


_Choice: TypeAlias = frozenset[tuple[Item, int]]
"""What moves, and over which link."""


class _Life(NamedTuple):
    """Of an item that may be away at the turn: positions of computations, bytes; ticks by link."""

    item: Item
    made: int
    last_forward: int
    first_backward: int
    size: int
    ticks: tuple[int, ...]


class _Moving(NamedTuple):
    """A life and the link that it moves over."""

    life: _Life
    level: int

    @property
    def ticks(self) -> int:
        return self.life.ticks[self.level]


@dataclass(slots=True)
class WholeTransfers:
    """Program lists of one sequence of computations.

    Attributes:
        problem: What is solved; its transfers are integral.
        ops: Computations, valid without a budget.
        tries: How many more program lists may be looked at.
        overheads: Bytes that each computation needs besides what is stored, in place of its
            stage's in the profile.
        can_run: Whether a program list that fits can be run.
        profile_of: What the chain costs under a program list, where times depend on what moves.
    """

    problem: HybridProblem
    ops: tuple[Op, ...]
    tries: int = 300
    overheads: Sequence[int] | None = None
    can_run: Callable[[Schedule], bool] = lambda _: True
    profile_of: Callable[[Schedule], ChainProfile] | None = None
    _turn: int = 0
    _excess: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _lives: dict[Item, _Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profile = self.problem.profile
        replay = simulate(profile, Schedule(self.ops), discards="free", overheads=self.overheads)
        self._turn = self.ops.index(Op(OpKind.BACKWARD, len(profile) - 1))
        for snapshot in replay.timeline:
            self._excess.append(snapshot.during_bytes - self.problem.budget)
            self._times.append((snapshot.end - snapshot.start) * self.problem.link.ticks)
        self._find_lives()

    def best(self, moved: Collection[Item]) -> Program | None:
        """The best program list found from moving `moved`, or ``None`` if nothing fits."""
        first = next(filter(None, map(self._first, self._more_and_more(moved))), None)
        if first is None:  # not even with all that can leave, the way to run in least memory
            return None
        program, chosen = first
        least = self.problem.profile.least_time
        is_better = True
        while is_better and self.tries > 0 and program.makespan > least:
            is_better = False
            for other in self._neighbours(chosen):
                found = self._program(other, program.makespan)
                if found is not None:
                    program, chosen, is_better = found, other, True
                    break
                if self.tries <= 0:
                    break
        return self._retimed(program)

    def _more_and_more(self, moved: Collection[Item]) -> Iterator[Collection[Item]]:
        """`moved`, then with more beside it, those first that can be away longest; last all."""
        others = [each for each in self._lives.values() if each.item not in set(moved)]
        others.sort(key=lambda each: each.last_forward - each.first_backward)
        count = 0
        while count < len(others):
            yield {*moved, *(each.item for each in others[:count])}
            count = 2 * count or 1
        yield self._lives

    def _find_lives(self) -> None:
        """Items that are made before the turn and read on both sides of it or after it."""
        stored: set[Item] = {("a", 0)}
        made: dict[Item, int] = {("a", 0): -1}
        served: dict[Item, int] = {}
        for position, op in enumerate(self.ops):
            for item in reads_of(op, stored):
                if position < self._turn:
                    served[item] = position
                elif item in made:
                    last = served.get(item, made[item])
                    self._lives.setdefault(item, self._life(item, made[item], last, position))
            for item in freed_by(op):
                stored.discard(item)
                if position < self._turn:
                    made.pop(item, None)
            if op.kind is not OpKind.BACKWARD:
                stored.add(made_by(op))
                if position < self._turn:
                    made[made_by(op)] = position
                else:
                    made.pop(made_by(op), None)

        ends = ("b", len(self.problem.profile) - 1)
        self._lives = {
            item: life for item, life in self._lives.items() if life.size and item != ends
        }

    def _first(self, moved: Collection[Item]) -> tuple[Program, _Choice] | None:
        """The best of moving `moved` over all links, or over the first only."""
        levels = len(self.problem.link.levels)
        choices = dict.fromkeys(self._assigned(moved, count) for count in range(1, levels + 1))
        programs = [(program, chosen) for chosen in choices if (program := self._program(chosen))]
        return min(programs, default=None, key=lambda pair: pair[0].makespan)

    def _assigned(self, moved: Collection[Item], levels: int) -> _Choice:
        """One of the first `levels` links with room for each item, as far as there is one."""
        room = [
            math.inf if link.capacity is None else link.capacity
            for link in self.problem.link.levels[:levels]
        ]
        chosen: set[tuple[Item, int]] = set()
        lives = [self._lives[item] for item in moved if item in self._lives]
        for life in sorted(lives, key=lambda life: (life.made, life.item), reverse=True):
            level = next((k for k, left in enumerate(room) if life.size <= left), None)
            if level is not None:
                room[level] -= life.size
                chosen.add((life.item, level))
        return frozenset(chosen)

    def _has_room(self, chosen: _Choice) -> bool:
        held = [0] * len(self.problem.link.levels)
        for item, level in chosen:
            held[level] += self._lives[item].size
        limits = [link.capacity for link in self.problem.link.levels]
        return all(limit is None or size <= limit for size, limit in zip(held, limits, strict=True))

    def _life(self, item: Item, made: int, last_forward: int, first_backward: int) -> _Life:
        profile, (kind, i) = self.problem.profile, item
        size = profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes
        link = self.problem.link
        ticks = tuple(link.transfer_ticks(size, level) for level in range(len(link.levels)))
        return _Life(item, made, last_forward, first_backward, size, ticks)

    def _neighbours(self, chosen: _Choice) -> Iterator[_Choice]:
        """One item less, one more, over another link, exchanged for one near it."""
        return filter(self._has_room, self._all_neighbours(chosen))

    def _all_neighbours(self, chosen: _Choice) -> Iterator[_Choice]:
        levels = range(len(self.problem.link.levels))
        moved = {item for item, _ in chosen}
        others = [item for item in sorted(self._lives) if item not in moved]
        for pair in sorted(chosen):
            yield chosen - {pair}
        for item in others:
            for level in levels:
                yield chosen | {(item, level)}
        for item, level in sorted(chosen):
            for other in levels:
                if other != level:
                    yield chosen - {(item, level)} | {(item, other)}
            for near in sorted(others, key=lambda other: abs(other[1] - item[1]))[:3]:
                yield chosen - {(item, level)} | {(near, level)}

    def _program(self, chosen: _Choice, limit: Time | None = None) -> Program | None:
        """The faster of two ways to glue the halves, if any fits and takes less than `limit`."""
        moving = [_Moving(self._lives[item], level) for item, level in sorted(chosen)]
        moving.sort(key=lambda each: each.life.made)
        mirrored = sorted(moving, key=lambda each: -each.life.first_backward)
        turn, last = self._turn, len(self.ops) - 1
        forward = _half(
            self._excess[:turn],
            self._times[:turn],
            [(each.life.made, each.life.last_forward, each) for each in moving],
        )
        backward = _half(
            self._excess[turn:][::-1],
            self._times[turn:][::-1],
            [(last - each.life.first_backward,) * 2 + (each,) for each in mirrored],
        )
        if forward is None or backward is None:
            return None
        together = map(sum, zip(forward.moved, backward.moved, strict=True))
        tight = max(forward.end + backward.end, *together)
        loose = max(forward.end, *forward.moved) + max(backward.end, *backward.moved)
        best: Program | None = None
        for end in dict.fromkeys((tight, loose)):
            schedule = self._glued((forward, backward), (moving, mirrored), end)
            best = self._judged(schedule, limit if best is None else best.makespan) or best
        return best

    def _glued(
        self,
        halves: tuple[_Half, _Half],
        movings: tuple[Sequence[_Moving], Sequence[_Moving]],
        end: int,
    ) -> Schedule:
        """All operations by their starts; offloads first, prefetches last among equals."""
        turn, last, (forward, backward) = self._turn, len(self.ops) - 1, halves
        timed: list[tuple[int, int, int, Op]] = []
        for position, op in enumerate(self.ops):
            if position < turn:
                start = forward.starts[position]
            else:
                start = end - backward.starts[last - position] - self._times[position]
            timed.append((start, 1, position, op))
        sent: list[tuple[Op, int]] = []
        for place, (each, start) in enumerate(zip(movings[0], forward.move_starts, strict=True)):
            kind, i = each.life.item
            sent.append((Op(_OFFLOAD[each.level][kind], i), each.life.made))
            timed.append((start, 0, place, sent[-1][0]))
        for place, (each, start) in enumerate(zip(movings[1], backward.move_starts, strict=True)):
            kind, i = each.life.item
            begin = end - start - each.ticks
            timed.append((begin, 2, -place, Op(_PREFETCH[kind], i)))
        ordered = [op for *_, op in sorted(timed, key=lambda entry: entry[:3])]
        for op, made in sent:  # makers that take no time come before what they make leaves
            if made >= 0:
                place, before = ordered.index(op), ordered.index(self.ops[made])
                if place < before:
                    ordered.insert(before, ordered.pop(place))
        return Schedule(tuple(ordered))

    def _judged(self, schedule: Schedule, limit: Time | None) -> Program | None:
        """`schedule` as a program list, if it fits, takes less than `limit` and can be run."""
        self.tries -= 1
        problem = self.problem
        try:
            replay = simulate_hybrid(
                problem.profile if self.profile_of is None else self.profile_of(schedule),
                schedule,
                budget=problem.budget,
                link=problem.link,
                overheads=self._overheads_of(schedule),
            )
        except InvalidScheduleError:
            return None
        is_better = limit is None or replay.makespan < limit
        return Program(replay.makespan, schedule) if is_better and self.can_run(schedule) else None

    def _overheads_of(self, schedule: Schedule) -> list[int] | None:
        if self.overheads is None:
            return None
        following = iter(self.overheads)
        return [0 if op.kind.is_transfer else next(following) for op in schedule]

    def _retimed(self, program: Program) -> Program:
        """Transfers issued earlier or later, one at a time, as long as that helps."""
        least = self.problem.profile.least_time
        is_better = True
        while is_better and self.tries > 0 and program.makespan > least:
            is_better = False
            for other in _moved_by_one(program.schedule):
                found = self._judged(other, program.makespan)
                if found is not None:
                    program, is_better = found, True
                    break
                if self.tries <= 0:
                    break
        return program


def _moved_by_one(schedule: Schedule) -> Iterator[Schedule]:
    """Program lists in which one transfer has changed places with what is beside it."""
    ops = schedule.ops
    for place in range(len(ops) - 1):
        if ops[place].kind.is_transfer or ops[place + 1].kind.is_transfer:
            yield Schedule((*ops[:place], ops[place + 1], ops[place], *ops[place + 2 :]))


class _Half(NamedTuple):
    """All computations before the turn, or after it in reversed time; in ticks."""

    starts: list[int]
    end: int
    move_starts: list[int]
    moved: tuple[int, int]


def _half(
    excess: Sequence[int], times: Sequence[int], items: Sequence[tuple[int, int, _Moving]]
) -> _Half | None:
    """Everything as early as it can; ``None`` if memory does not suffice with all items away.

    Args:
        excess: Of every computation, above the budget.
        times: Likewise, in ticks.
        items: After which computation each may move, after which its memory may be free.
    """
    starts: list[int] = []
    ends: list[int] = []
    move_starts: list[int] = []
    gone: list[tuple[int, int, int]] = []
    free = [0, 0]
    clock = place = 0
    for position, (over, time) in enumerate(zip(excess, times, strict=True)):
        while place < len(items) and items[place][0] < position:
            move_starts.append(_moved(items[place], ends, free))
            _, served, each = items[place]
            gone.append((free[each.level], served, each.life.size))
            place += 1
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
    move_starts += [_moved(item, ends, free) for item in items[place:]]
    return _Half(starts, clock, move_starts, (free[0], free[1]))


def _moved(item: tuple[int, int, _Moving], ends: Sequence[int], free: list[int]) -> int:
    """When a transfer starts; its link is `free` when it ends."""
    made, _, each = item
    start = max(free[each.level], ends[made] if made >= 0 else 0)
    free[each.level] = start + each.ticks
    return start
