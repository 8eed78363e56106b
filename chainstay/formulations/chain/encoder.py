"""Writes a schedule into the variables of the model by phases, operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from chainstay.formulations.chain.phases import Phases
from chainstay.schedule import Discards, Item, Op, OpKind, Schedule, update_stored

__all__ = ["FORMS", "Encoder"]

FORMS: Final = {
    OpKind.FORWARD_KEEP_ALL: "keep_all",
    OpKind.FORWARD_KEEP_INPUT: "keep_input",
    OpKind.FORWARD_DROP: "drop_input",
}
"""The variables of each form of a forward, in the order in which they run."""


@dataclass(slots=True)
class Encoder:
    """Writes a schedule into the variables, operation by operation.

    Attributes:
        phases: The variables.
        phase: The phase that is being written.
        last_stage: The stage that ran last in this phase, -1 before the first.
        has_started: Whether an operation other than a discard was written in this phase.
        stored: The items that are stored.
    """

    phases: Phases
    phase: int = -1
    last_stage: int = -1
    has_started: bool = True
    stored: set[Item] = field(default_factory=lambda: {Item("a", 0)})

    def write(self, schedule: Schedule) -> bool:
        """Write `schedule`; return whether it is complete and every operation has a variable."""
        self.phase = len(self.phases.profile) - 1
        return all(map(self._write, schedule)) and self.phase == -1

    def _write(self, op: Op) -> bool:
        if op.kind in {OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED}:
            is_known = self._discard(op)
        else:
            self._start_phase()
            is_known = self._backward(op) if op.kind is OpKind.BACKWARD else self._forward(op)
        update_stored(self.stored, op)
        return is_known

    def _start_phase(self) -> None:
        """Set what is stored, once the discards that end the phase before are done."""
        if not self.has_started:
            for kind, i in self.stored - {("a", 0)}:
                self._set("activation_stored" if kind == "a" else "saved_stored", i)
        self.has_started = True

    def _forward(self, op: Op) -> bool:
        is_rerun = self.last_stage == op.stage and self.phases.reruns
        is_next = self.last_stage < op.stage or (
            is_rerun and op.kind is not OpKind.FORWARD_KEEP_ALL
        )
        self.last_stage = op.stage
        return is_next and self._set(FORMS[op.kind], op.stage)

    def _backward(self, op: Op) -> bool:
        is_next = op.stage == self.phase
        self.phase, self.last_stage, self.has_started = self.phase - 1, -1, False
        return is_next

    def _discard(self, op: Op) -> bool:
        """Write a discard: one of a tape waits for the phase's end, a free one is a variable."""
        if self.phases.discards is not Discards.FREE or not self.has_started:
            return self.phases.discards is not Discards.TABLE1
        is_saved = op.kind is OpKind.DISCARD_SAVED
        return self._set("saved_dropped" if is_saved else "activation_dropped", op.stage)

    def _set(self, name: str, index: int) -> bool:
        variable = self.phases.model.component(name)
        if (self.phase, index) not in variable:
            return False
        variable[self.phase, index].set_value(1)
        return True
