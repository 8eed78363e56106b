"""From computations and what they offload to a program list of whole transfers, improved.

Each half of the schedule, the way back in reversed time, runs by itself: transfers first in,
first out, computations as soon as enough has left. Glued together and sorted by time that is
a program list, of which the referee says what it takes. Local improvement then changes what
is moved, item by item, and when transfers are issued, place by place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from chainstay.errors import InvalidScheduleError
from chainstay.hybrid import HybridProblem
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Time
from chainstay.validation.hybrid import simulate_hybrid
from chainstay.validation.hybrid_items import Item, freed_by, made_by, reads_of
from chainstay.validation.simulate import simulate

__all__ = ["Program", "WholeTransfers"]

_OFFLOAD: Final = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
_PREFETCH: Final = {"a": OpKind.PREFETCH_ACTIVATION, "b": OpKind.PREFETCH_SAVED}


class Program(NamedTuple):
    """A program list and what the referee says that it takes."""

    makespan: Time
    schedule: Schedule


class _Life(NamedTuple):
    """Of an item that may be away at the turn: positions of computations, bytes and ticks."""

    item: Item
    made: int
    last_forward: int
    first_backward: int
    size: int
    ticks: int


@dataclass(slots=True)
class WholeTransfers:
    """Program lists of one sequence of computations.

    Attributes:
        problem: What is solved; its transfers are integral.
        ops: Computations, valid without a budget.
        tries: How many more program lists may be looked at.
    """

    problem: HybridProblem
    ops: tuple[Op, ...]
    tries: int = 300
    _turn: int = 0
    _excess: list[int] = field(default_factory=list)
    _times: list[int] = field(default_factory=list)
    _lives: dict[Item, _Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        profile = self.problem.profile
        replay = simulate(profile, Schedule(self.ops), discards="free")
        self._turn = self.ops.index(Op(OpKind.BACKWARD, len(profile) - 1))
        for snapshot in replay.timeline:
            self._excess.append(snapshot.during_bytes - self.problem.budget)
            self._times.append((snapshot.end - snapshot.start) * self.problem.link.ticks)
        self._find_lives()

    def best(self, moved: Collection[Item]) -> Program | None:
        """The best program list found from moving `moved`, or ``None`` if nothing fits."""
        chosen = frozenset(moved) & self._lives.keys()
        program = self._program(chosen)
        if program is None:  # all that can leave is the way to run in least memory
            chosen = frozenset(self._lives)
            program = self._program(chosen)
        if program is None:
            return None
        least = self.problem.profile.least_time
        is_better = True
        while is_better and self.tries > 0 and program.makespan > least:
            is_better = False
            for other in self._neighbours(chosen):
                found = self._program(other)
                if found is not None and found.makespan < program.makespan:
                    program, chosen, is_better = found, other, True
                    break
                if self.tries <= 0:
                    break
        return self._retimed(program)

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

    def _life(self, item: Item, made: int, last_forward: int, first_backward: int) -> _Life:
        profile, (kind, i) = self.problem.profile, item
        size = profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes
        ticks = self.problem.link.transfer_ticks(size)
        return _Life(item, made, last_forward, first_backward, size, ticks)

    def _neighbours(self, chosen: frozenset[Item]) -> Iterator[frozenset[Item]]:
        """One item less, one more, one exchanged for one near it."""
        items = sorted(self._lives)
        for item in sorted(chosen):
            yield chosen - {item}
        others = [item for item in items if item not in chosen]
        for item in others:
            yield chosen | {item}
        for item in sorted(chosen):
            for other in sorted(others, key=lambda other: abs(other[1] - item[1]))[:3]:
                yield chosen - {item} | {other}

    def _program(self, chosen: frozenset[Item]) -> Program | None:
        """The faster of two ways to glue the halves, if any fits."""
        lives = sorted((self._lives[item] for item in chosen), key=lambda life: life.made)
        turn, last = self._turn, len(self.ops) - 1
        forward = _half(
            self._excess[:turn],
            self._times[:turn],
            [(life.made, life.last_forward, life) for life in lives],
        )
        mirrored = sorted(lives, key=lambda life: -life.first_backward)
        backward = _half(
            self._excess[turn:][::-1],
            self._times[turn:][::-1],
            [(last - life.first_backward,) * 2 + (life,) for life in mirrored],
        )
        if forward is None or backward is None:
            return None
        tight = max(forward.end + backward.end, forward.moved + backward.moved)
        loose = max(forward.end, forward.moved) + max(backward.end, backward.moved)
        programs = [
            self._judged(self._glued(forward, backward, lives, mirrored, end))
            for end in dict.fromkeys((tight, loose))
        ]
        return min(filter(None, programs), default=None, key=lambda program: program.makespan)

    def _glued(
        self,
        forward: _Half,
        backward: _Half,
        lives: Sequence[_Life],
        mirrored: Sequence[_Life],
        end: int,
    ) -> Schedule:
        """All operations by their starts; offloads first, prefetches last among equals."""
        turn, last = self._turn, len(self.ops) - 1
        timed: list[tuple[int, int, int, Op]] = []
        for position, op in enumerate(self.ops):
            if position < turn:
                start = forward.starts[position]
            else:
                start = end - backward.starts[last - position] - self._times[position]
            timed.append((start, 1, position, op))
        for place, (life, start) in enumerate(zip(lives, forward.move_starts, strict=True)):
            kind, i = life.item
            timed.append((start, 0, place, Op(_OFFLOAD[kind], i)))
        for place, (life, start) in enumerate(zip(mirrored, backward.move_starts, strict=True)):
            kind, i = life.item
            begin = end - start - life.ticks
            timed.append((begin, 2, -place, Op(_PREFETCH[kind], i)))
        ordered = [op for *_, op in sorted(timed, key=lambda entry: entry[:3])]
        for life in lives:  # makers that take no time come before what they make leaves
            if life.made >= 0:
                op, maker = Op(_OFFLOAD[life.item[0]], life.item[1]), self.ops[life.made]
                place, before = ordered.index(op), ordered.index(maker)
                if place < before:
                    ordered.insert(before, ordered.pop(place))
        return Schedule(tuple(ordered))

    def _judged(self, schedule: Schedule) -> Program | None:
        self.tries -= 1
        problem = self.problem
        try:
            replay = simulate_hybrid(
                problem.profile, schedule, budget=problem.budget, link=problem.link
            )
        except InvalidScheduleError:
            return None
        return Program(replay.makespan, schedule)

    def _retimed(self, program: Program) -> Program:
        """Transfers issued earlier or later, one at a time, as long as that helps."""
        least = self.problem.profile.least_time
        is_better = True
        while is_better and self.tries > 0 and program.makespan > least:
            is_better = False
            for other in _moved_by_one(program.schedule):
                found = self._judged(other)
                if found is not None and found.makespan < program.makespan:
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
    moved: int


def _half(
    excess: Sequence[int], times: Sequence[int], items: Sequence[tuple[int, int, _Life]]
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
    clock = free = place = 0
    for position, (over, time) in enumerate(zip(excess, times, strict=True)):
        while place < len(items) and items[place][0] < position:
            made, served, life = items[place]
            move_starts.append(max(free, ends[made] if made >= 0 else 0))
            free = move_starts[-1] + life.ticks
            gone.append((free, served, life.size))
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
    for made, _, life in items[place:]:
        move_starts.append(max(free, ends[made] if made >= 0 else 0))
        free = move_starts[-1] + life.ticks
    return _Half(starts, clock, move_starts, free)
