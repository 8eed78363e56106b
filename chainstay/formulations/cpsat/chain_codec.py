"""Between schedules and the variables of the program of a chain, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from chainstay.formulations.chain.records import Record
from chainstay.formulations.cpsat.chain_variables import (
    FORMS,
    ChainVariables,
    DataKind,
    Key,
    RanKey,
    StoredKey,
    TimePoint,
)
from chainstay.schedule import Item, Op, OpKind, Schedule, update_stored

_Facts: TypeAlias = set[Key]
_Answer: TypeAlias = Callable[[Key], bool]


def decode(variables: ChainVariables, is_so: _Answer) -> Schedule:
    """Return the schedule of an answer.

    Args:
        variables: The variables.
        is_so: Returns the value of the variable with a meaning.
    """
    ops: list[Op] = []
    k = variables.phases[0]
    while k >= 0:
        for j in range(k + 1):
            ops += _forwards(variables, k, j, is_so)
            ops += _drops_at(variables, k, j, is_so)
        ending = variables.records.ending(k)
        used = (r.stage for r in ending if is_so(_saved(TimePoint.END, k, r)))
        first = next(used, k)
        ops.append(Op(OpKind.BACKWARD, first))
        ops += _drops_between(variables, k, first - 1, is_so)
        k = first - 1
    return Schedule(tuple(ops))


def _saved(when: TimePoint, k: int, record: Record) -> StoredKey:
    return StoredKey(DataKind.SAVED, when, k, *record.key)


def _forwards(variables: ChainVariables, k: int, j: int, is_so: _Answer) -> Iterator[Op]:
    """Yield the forwards at the turn of stage j, ``Fa`` before the others."""
    keep_all, *others = FORMS
    for record in variables.records.starting(j):
        if is_so(RanKey(keep_all, k, *record.key)):
            yield Op(keep_all, j, option=record.option)
    yield from (Op(form, j) for form in others if is_so(RanKey(form, k, j)))


def _drops_at(variables: ChainVariables, k: int, j: int, is_so: _Answer) -> Iterator[Op]:
    """Yield discards after the turn of stage j: of its input, and of ``ā^{j-1}``."""
    is_there = is_so(StoredKey(DataKind.ACTIVATION, TimePoint.TURN, k, j))
    is_left = is_so(StoredKey(DataKind.ACTIVATION, TimePoint.END, k, j))
    if is_there and not is_left and not is_so(RanKey(OpKind.FORWARD_DROP, k, j)):
        yield Op(OpKind.DISCARD_ACTIVATION, j)
    for record in variables.records.ending(j - 1):
        was_saved = is_so(_saved(TimePoint.TURN, k, record))
        if was_saved and not is_so(_saved(TimePoint.END, k, record)):
            yield Op(OpKind.DISCARD_SAVED, record.stage)


def _drops_between(variables: ChainVariables, k: int, after: int, is_so: _Answer) -> Iterator[Op]:
    """Yield discards between phases `k` and `after`, of which `after` starts without.

    Saved data goes before its input: a tape never lacks one.
    """
    for record in reversed(variables.records.all):
        is_left = record.last <= after and is_so(_saved(TimePoint.END, k, record))
        if is_left and not is_so(_saved(TimePoint.START, after, record)):
            yield Op(OpKind.DISCARD_SAVED, record.stage)
    for i in reversed(range(after + 1)):
        is_left = is_so(StoredKey(DataKind.ACTIVATION, TimePoint.END, k, i))
        if is_left and not is_so(StoredKey(DataKind.ACTIVATION, TimePoint.START, after, i)):
            yield Op(OpKind.DISCARD_ACTIVATION, i)


def encode(variables: ChainVariables, schedule: Schedule) -> _Facts:
    """Return all meanings that hold in `schedule`, as far as the model has variables for them.

    What the model cannot express, such as two runs of a stage at different times of one phase,
    is lost: whether the rest is a solution is for the solver to say.
    """
    encoder = _Encoder(variables, k=variables.phases[0])
    all(map(encoder.write, schedule))
    return encoder.facts


@dataclass(slots=True)
class _Encoder:
    """Collects what holds in a schedule, operation by operation.

    Attributes:
        variables: The variables.
        k: The phase.
        facts: What holds.
        is_between: Whether the last phase has ended and the next has not begun.
        stored: The items that are stored.
        records: The record of each stage that was recorded.
    """

    variables: ChainVariables
    k: int
    facts: _Facts = field(default_factory=set)
    is_between: bool = False
    stored: set[Item] = field(default_factory=lambda: {Item("a", 0)})
    records: dict[int, Record] = field(default_factory=dict)

    def write(self, op: Op) -> bool:
        """Add what an operation says; return whether the model knows its record."""
        if op.kind in {OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED}:
            update_stored(self.stored, op)
            return True
        if self.is_between:
            self.facts |= self._stored_at(TimePoint.START)
            self.is_between = False
        if op.kind is OpKind.BACKWARD:
            return self._end_phase(op)
        number = 0
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            is_first = self.variables.is_first(self.k)
            record = self.variables.records.named(op.stage, op.option, first=is_first)
            if record is None:
                return False
            self.records[op.stage], number = record, record.number
        self.facts.add(RanKey(op.kind, self.k, op.stage, number))
        update_stored(self.stored, op)
        return True

    def _end_phase(self, op: Op) -> bool:
        """Add what is stored when ``B`` runs, and in the phases that it skips."""
        if op.stage not in self.records:
            return False
        self._add_turns_and_ends()
        self.stored -= {Item("b", op.stage)}
        while self.k > op.stage:
            self.k -= 1
            self.facts |= self._stored_at(TimePoint.START)
            self._add_turns_and_ends()
        self.stored -= self.records[op.stage].consumed
        self.k -= 1
        self.is_between = True
        return True

    def _add_turns_and_ends(self) -> None:
        at_end = self._stored_at(TimePoint.END)
        self.facts |= _turns_and_ends(self.variables, self.k, self.facts, at_end)

    def _stored_at(self, when: TimePoint) -> _Facts:
        """Return the meanings of what is stored now, as of a time point of the phase."""
        return {
            StoredKey(DataKind.ACTIVATION, when, self.k, item.number)
            if item.kind == "a"
            else _saved(when, self.k, self.records[item.number])
            for item in self.stored
        }


def _turns_and_ends(variables: ChainVariables, k: int, facts: _Facts, at_end: _Facts) -> _Facts:
    """Return what is stored at turns and at the end of phase k, from what started and what ran.

    Discards happen within a phase only where they may pay; others can wait for its end.
    """
    keep_all, keep_input, drop_input = FORMS
    found: _Facts = {StoredKey(DataKind.ACTIVATION, when, k, 0) for when in TimePoint}
    for i in range(k + 1):
        made: _Facts = {RanKey(keep_input, k, i - 1), RanKey(drop_input, k, i - 1)}
        items = [(StoredKey(DataKind.ACTIVATION, TimePoint.START, k, i), made)]
        for record in variables.fitting(k, variables.records.starting(i)):
            recorded: _Facts = {RanKey(keep_all, k, *record.key)}
            items.append((_saved(TimePoint.START, k, record), recorded))
        for at_start, makers in items:
            if facts & {at_start, *makers}:
                end = at_start._replace(when=TimePoint.END)
                found.add(at_start._replace(when=TimePoint.TURN))
                is_activation = at_start.what is DataKind.ACTIVATION
                is_taken = is_activation and RanKey(drop_input, k, i) in facts
                is_dropped = variables.drops and end not in at_end
                if not is_taken and not is_dropped:
                    found.add(end)
    return found
