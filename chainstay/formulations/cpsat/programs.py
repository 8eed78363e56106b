"""Between program lists and the variables of the hybrid constraint program."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

from chainstay.formulations.cpsat.binding import Outcome
from chainstay.formulations.cpsat.lives import Computation, HybridProgram, Life, Moves
from chainstay.formulations.extent import Item
from chainstay.formulations.happenings import BACK, SENT, Happenings
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Time, Timetable

__all__ = ["decoded", "start_from"]


def decoded(of: HybridProgram, outcome: Outcome) -> Schedule:
    """The program list of an answer: all by their starts, and lives dropped after their last use.

    Among equals offloads come first, since they take no memory, and prefetches last.
    """
    answer = _Answer(of, outcome)
    for position, p in enumerate(of.computations):
        answer.note_computation(position, p)
    for item, moves in of.moves.items():
        answer.note_transfers(item, moves)
    return answer.happenings.schedule()


@dataclass(slots=True)
class _Answer:
    """What happens in an answer, and which operations make, read or send each life."""

    of: HybridProgram
    outcome: Outcome
    happenings: Happenings = field(default_factory=Happenings)
    makers: dict[int, list[Life]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for item, lives in self.of.lives.items():
            for life in lives:
                self.happenings.items[life.number] = item
                self.makers.setdefault(life.maker, []).append(life)

    def note_computation(self, position: int, p: Computation) -> None:
        kind = OpKind.BACKWARD if p.is_backward else None
        if p.plain is not None and self.outcome.is_on(p.plain):
            kind = OpKind.FORWARD_KEEP_INPUT
        if p.saves is not None and self.outcome.is_on(p.saves):
            kind = OpKind.FORWARD_KEEP_ALL
        if kind is None:
            return
        made = [life for life in self.makers.get(position, []) if self.outcome.is_on(life.exists)]
        read = [life for _, life, reads in self.of.reads[position] if self.outcome.is_on(reads)]
        self.happenings.note((self._value(p.start), 1), Op(kind, p.stage), _numbers([*made, *read]))

    def note_transfers(self, item: Item, moves: Moves) -> None:
        kind, i = item
        lives = self.of.lives[item]
        for level, sent in enumerate(moves.sent):
            if self.outcome.is_on(sent):
                sending = zip(lives, moves.senders, strict=False)
                sender = [life for life, sends in sending if self.outcome.is_on(sends)]
                self.happenings.note(
                    (self._value(moves.start), 0), Op(SENT[level][kind], i), _numbers(sender)
                )
        returned = lives[len(moves.senders) :]
        for life, (comes, start) in zip(returned, moves.prefetches, strict=True):
            if self.outcome.is_on(comes):
                self.happenings.note((self._value(start), 2), Op(BACK[kind], i), [life.number])

    def _value(self, moment: object) -> int:
        assert self.outcome.values is not None, "there is nothing to decode"
        return self.outcome.values[moment.index]  # type: ignore[attr-defined]  # of CP-SAT


def _numbers(lives: list[Life]) -> list[int]:
    return [life.number for life in lives]


def start_from(of: HybridProgram, schedule: Schedule, timetable: Timetable) -> None:
    """Hint what a known program list does and when, as far as the extent has place for it."""
    scale = Fraction(of.problem.link.ticks * of.grains, of.ticks)
    hint = of.model.add_hint

    def moment(time: Time) -> int:
        return math.ceil(time * scale)

    computations = [op for op in schedule if op.kind.is_forward or op.kind is OpKind.BACKWARD]
    places = {(p.phase, p.lap, p.stage, p.is_backward): p for p in of.computations}
    used: dict[tuple[int, int, int, bool], tuple[Op, Time]] = {}
    phase, lap, before = len(of.problem.profile) - 1, 0, -1
    for op, start in zip(computations, timetable.starts, strict=True):
        if op.kind is OpKind.BACKWARD:
            used[phase, 0, phase, True] = op, start
            phase, lap, before = phase - 1, 0, -1
            continue
        lap, before = lap + (op.stage <= before), op.stage
        used[phase, lap, op.stage, False] = op, start
    for key, p in places.items():
        kind = None
        if key in used:
            kind = used[key][0].kind
            hint(p.start, moment(used[key][1]))
        if p.saves is not None:
            hint(p.saves, kind is OpKind.FORWARD_KEEP_ALL)
        if p.plain is not None:
            hint(p.plain, kind not in (None, OpKind.FORWARD_KEEP_ALL))
    _hint_transfers(of, timetable, moment)


def _hint_transfers(of: HybridProgram, timetable: Timetable, moment: Callable[[Time], int]) -> None:
    found: dict[Op, list[Time]] = {}
    for move in timetable.moves:
        found.setdefault(move.op, []).append(move.start)
    for (kind, i), moves in of.moves.items():
        for level, sent in enumerate(moves.sent):
            times = found.get(Op(SENT[level][kind], i), [])
            of.model.add_hint(sent, bool(times))
            for time in times:
                of.model.add_hint(moves.start, moment(time))
        back = found.get(Op(BACK[kind], i), [])
        for number, (comes, start) in enumerate(moves.prefetches):
            of.model.add_hint(comes, number < len(back))
            if number < len(back):
                of.model.add_hint(start, moment(back[number]))
