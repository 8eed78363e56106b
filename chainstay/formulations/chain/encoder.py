"""Writes a schedule into the variables of the program by phases, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.integer_program import Key
from chainstay.formulations.records import Record
from chainstay.schedule import Discards, Item, Op, OpKind, Schedule, update_stored

FORMS: Final = {
    OpKind.FORWARD_KEEP_INPUT: "keep_input",
    OpKind.FORWARD_DROP: "drop_input",
}
"""The variables of the forms of a forward that make its output; ``keep_all`` runs before them."""


@dataclass(slots=True)
class Encoder:
    """Writes a schedule into the variables, operation by operation.

    Attributes:
        phases: The variables.
        phase: The phase that is being written.
        last_stage: The stage that ran last in this phase, -1 before the first.
        has_started: Whether an operation other than a discard was written in this phase.
        stored: The items that are stored.
        records: The record of each stage that was recorded.
        on: The variables that are 1 so far.
    """

    phases: Phases
    phase: int = -1
    last_stage: int = -1
    has_started: bool = True
    stored: set[Item] = field(default_factory=lambda: {Item("a", 0)})
    records: dict[int, Record] = field(default_factory=dict)
    on: set[Key] = field(default_factory=set)

    def write(self, schedule: Schedule) -> bool:
        """Write `schedule`; return whether it is complete and every operation has a variable."""
        self.phase = len(self.phases.profile) - 1
        return all(map(self._write, schedule)) and self.phase == -1

    def _write(self, op: Op) -> bool:
        if op.kind is OpKind.BACKWARD:
            self._start_phase()
            return self._backward(op)
        if op.kind.is_forward:
            self._start_phase()
            is_known = self._forward(op)
        else:
            is_known = self._discard(op)
        update_stored(self.stored, op)
        return is_known

    def _start_phase(self) -> None:
        """Set what is stored, once the discards that end the phase before are done."""
        if not self.has_started:
            self._set_stored()
        self.has_started = True

    def _set_stored(self) -> None:
        for kind, i in self.stored - {("a", 0)}:
            if kind == "a":
                self._set("activation_stored", i)
            else:
                self._set("saved_stored", *self.records[i].key)

    def _forward(self, op: Op) -> bool:
        is_rerun = self.last_stage == op.stage and self.phases.reruns
        is_next = self.last_stage < op.stage or (
            is_rerun and op.kind is not OpKind.FORWARD_KEEP_ALL
        )
        self.last_stage = op.stage
        if op.kind is not OpKind.FORWARD_KEEP_ALL:
            return is_next and self._set(FORMS[op.kind], op.stage)
        is_first = self.phase == len(self.phases.profile) - 1
        record = self.phases.records.named(op.stage, op.option, first=is_first)
        if record is None:
            return False
        self.records[op.stage] = record
        return is_next and self._set("keep_all", *record.key)

    def _backward(self, op: Op) -> bool:
        """Write a backward, and what is stored in the phases that it skips."""
        record = self.records.get(op.stage)
        if record is None or record.last != self.phase:
            return False
        self.stored -= {Item("b", op.stage)}
        for self.phase in range(record.last - 1, record.stage - 1, -1):
            self._set_stored()
        self.stored -= record.consumed
        self.phase, self.last_stage, self.has_started = record.stage - 1, -1, False
        return True

    def _discard(self, op: Op) -> bool:
        """Write a discard: one of a tape waits for the phase's end, a free one is a variable."""
        if not self.phases.drops or not self.has_started:
            return self.phases.discards is not Discards.TABLE1
        if op.kind is OpKind.DISCARD_ACTIVATION:
            return self._set("activation_dropped", op.stage)
        record = self.records.get(op.stage)
        return record is not None and self._set("saved_dropped", *record.key)

    def _set(self, name: str, *index: int) -> bool:
        key: Key = (name, self.phase, *index)
        self.on.add(key)
        return key in self.phases.program.variables
