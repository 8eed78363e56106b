"""Between schedules and the variables of the hybrid constraint program."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from chainstay.formulations.cpsat.hybrid_variables import (
    ComputationInterval,
    HybridProgram,
    ItemTransfers,
    LifetimeInterval,
    TimeUnits,
)
from chainstay.formulations.ortools_backend import CpSatResult, Literal
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import Time, Timetable


def decode(program: HybridProgram, outcome: CpSatResult) -> Schedule:
    """Return the schedule of an answer: operations by their starts, data dropped after use.

    Of operations that start together offloads come first, since they take no memory, and
    prefetches last.
    """
    answer = _Decoder(program, outcome)
    for position, p in enumerate(program.computations):
        answer.add_computation(position, p)
    for item, transfers in program.transfers.items():
        answer.add_transfers(item, transfers)
    return answer.schedule()


@dataclass(slots=True)
class _Decoder:
    """An answer, and its operations so far.

    Attributes:
        program: The program.
        outcome: The answer.
        timed: Operations with their sort keys.
        uses: By number of the lifetime, the operations that make, read or send it.
    """

    program: HybridProgram
    outcome: CpSatResult
    timed: list[tuple[tuple[int, int], Op]] = field(default_factory=list)
    uses: dict[int, list[int]] = field(default_factory=dict)

    def add_computation(self, position: int, p: ComputationInterval) -> None:
        """Add a computation, if it runs."""
        kind = OpKind.BACKWARD if p.is_backward else None
        if p.plain is not None and self.outcome.is_on(p.plain):
            kind = OpKind.FORWARD_KEEP_INPUT
        if p.saves is not None and self.outcome.is_on(p.saves):
            kind = OpKind.FORWARD_KEEP_ALL
        if kind is None:
            return
        made = [
            (lifetime, lifetime.exists)
            for lifetimes in self.program.lifetimes.values()
            for lifetime in lifetimes
            if lifetime.maker == position
        ]
        read = [(lifetime, reads) for _, lifetime, reads in self.program.reads[position]]
        self._add(p.start, 1, Op(kind, p.stage), [*made, *read])

    def add_transfers(self, item: Item, transfers: ItemTransfers) -> None:
        """Add the transfers of an item."""
        lifetimes, senders = self.program.lifetimes[item], transfers.senders
        if self.outcome.is_on(transfers.sent):
            sending = zip(lifetimes, senders, strict=False)
            self._add(transfers.start, 0, item.offload, sending)
        for lifetime, (comes, start) in zip(
            lifetimes[len(senders) :], transfers.prefetches, strict=True
        ):
            if self.outcome.is_on(comes):
                self._add(start, 2, item.prefetch, [(lifetime, comes)])

    def schedule(self) -> Schedule:
        """Return the schedule, with discards of what is not read any more.

        What is read for the last time is dropped right after; a forward drops its own input.
        """
        order = sorted(range(len(self.timed)), key=lambda entry: (self.timed[entry][0], entry))
        ops = {entry: self.timed[entry][1] for entry in order}
        positions = {entry: position for position, entry in enumerate(order)}
        items = {
            lifetime.number: item
            for item, lifetimes in self.program.lifetimes.items()
            for lifetime in lifetimes
        }
        dropped: dict[int, list[Op]] = {}
        for number, entries in self.uses.items():
            item = items[number]
            last = max(entries, key=positions.__getitem__)
            op = ops[last]
            if item in op.frees:
                continue
            if op.kind is OpKind.FORWARD_KEEP_INPUT and item == ("a", op.stage):
                ops[last] = Op(OpKind.FORWARD_DROP, op.stage)
            else:
                dropped.setdefault(last, []).append(item.discard)
        return Schedule(
            tuple(op for entry in order for op in (ops[entry], *dropped.get(entry, ())))
        )

    def _add(
        self,
        start: TimeUnits,
        rank: int,
        op: Op,
        lifetimes: Iterable[tuple[LifetimeInterval, Literal]],
    ) -> None:
        """Add an operation, by its start and rank, that uses those lifetimes that are on."""
        assert self.outcome.values is not None, "there is nothing to decode"
        for lifetime, is_used in lifetimes:
            if self.outcome.is_on(is_used):
                self.uses.setdefault(lifetime.number, []).append(len(self.timed))
        self.timed.append(((self.outcome.values[start.index], rank), op))


def start_from(program: HybridProgram, schedule: Schedule, timetable: Timetable) -> None:
    """Hint a known schedule and its times, as far as the model has variables for it."""
    scale = Fraction(program.problem.link.ticks * program.units_per_tick, program.ticks_per_unit)
    hint = program.model.add_hint

    def in_units(time: Time) -> int:
        return math.ceil(time * scale)

    computations = [op for op in schedule if op.kind.is_computation]
    places = {(p.phase, p.sweep, p.stage, p.is_backward): p for p in program.computations}
    used: dict[tuple[int, int, int, bool], tuple[Op, Time]] = {}
    phase, sweep, before = len(program.problem.profile) - 1, 0, -1
    for op, start in zip(computations, timetable.starts, strict=True):
        if op.kind is OpKind.BACKWARD:
            used[phase, 0, phase, True] = op, start
            phase, sweep, before = phase - 1, 0, -1
            continue
        sweep, before = sweep + (op.stage <= before), op.stage
        used[phase, sweep, op.stage, False] = op, start
    for key, p in places.items():
        kind = None
        if key in used:
            kind = used[key][0].kind
            hint(p.start, in_units(used[key][1]))
        if p.saves is not None:
            hint(p.saves, kind is OpKind.FORWARD_KEEP_ALL)
        if p.plain is not None:
            hint(p.plain, kind not in (None, OpKind.FORWARD_KEEP_ALL))
    _hint_transfers(program, timetable, in_units)


def _hint_transfers(
    program: HybridProgram, timetable: Timetable, in_units: Callable[[Time], int]
) -> None:
    """Hint the transfers of a known timetable."""
    found: dict[Op, list[Time]] = {}
    for move in timetable.moves:
        found.setdefault(move.op, []).append(move.start)
    for item, transfers in program.transfers.items():
        times = found.get(item.offload, [])
        program.model.add_hint(transfers.sent, bool(times))
        for time in times:
            program.model.add_hint(transfers.start, in_units(time))
        back = found.get(item.prefetch, [])
        for number, (comes, start) in enumerate(transfers.prefetches):
            program.model.add_hint(comes, number < len(back))
            if number < len(back):
                program.model.add_hint(start, in_units(back[number]))
