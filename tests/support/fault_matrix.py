"""Break every kind of plan throughout a training step, and see what is wrong afterwards.

A pair is a model and a point: an operation of the schedule, an operator, an order to the engine of
transfers, a copy; or a condition, such as a layer that is replaced, a switch to evaluation, NaN in
the input. After each the model must train on, with the same bits as plain PyTorch; what is checked
is said in `faults` and `fault_conditions`. After each row as many tensors and threads are alive as
before, and no host memory is in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from census import Census
from fault_conditions import CONDITIONS, condition_trial
from fault_subjects import Subject
from faults import Fault, restart, step, trial

__all__ = ["Row", "condition_rows", "fault_row"]


@dataclass
class Row:
    """A subject and a kind of fault: how many points were tried, and what was left wrong."""

    subject: str
    fault: str
    points: int
    tried: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def add(self, point: str, found: list[str]) -> None:
        """One more point."""
        self.tried += 1
        if found:
            self.wrong[point] = found


def fault_row(subject: Subject, fault: Fault, most: int | None) -> Row:
    """All points of a fault, or `most` of them at equal distances."""
    before = _census_after_a_step(subject)
    count = fault.points(subject)
    stride = 1 if most is None else max(1, -(-count // most))
    row = Row(subject.name, fault.name, count)
    for at in range(0, count, stride):
        row.add(f"point {at}", trial(subject, fault, at))
    if grown := before.growth_to(_census_after_a_step(subject)):
        row.wrong["all points together"] = grown
    return row


def condition_rows(subject: Subject, most: int | None) -> Row:
    """All conditions that apply, or some `most` of them."""
    row = Row(subject.name, "a condition", len(CONDITIONS))
    stride = 1 if most is None else max(1, -(-len(CONDITIONS) // most))
    offset = sum(map(ord, subject.name)) % stride  # each subject another part of the list
    for condition in CONDITIONS[offset::stride]:
        found = condition_trial(subject, condition)
        if found is not None:
            row.add(condition.name, found)
    return row


def _census_after_a_step(subject: Subject) -> Census:
    """After a whole step of both models, from one and the same state."""
    restart(subject)
    for model in (subject.plain, subject.planned):
        step(model, subject)
    return Census.take(subject)
