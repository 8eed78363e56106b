"""Break every kind of plan at every point of a training step, and see what is wrong afterwards.

    PYTHONPATH=.:tests:examples python benchmarks/fault_matrix.py [--most POINTS]
        [--subjects NAME ...]

A pair is a model and a point: an operation of the schedule, an operator, an order to the engine of
transfers, a copy; or a condition, such as a layer that is replaced, a switch to evaluation, NaN in
the input. After each the model must train on, with the same bits as plain PyTorch; what is checked
is said in `tests/faults.py` and `tests/fault_conditions.py`. After each row as many tensors and
threads are alive as before, and no host memory is in use. The status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from rich.console import Console
from rich.table import Table

from fault_conditions import CONDITIONS, condition_trial
from fault_subjects import MAKERS, Subject, subject
from faults import FAULTS, Fault, restart, step, trial

__all__ = ["Census", "Row", "condition_rows", "fault_row", "main"]


@dataclass(frozen=True)
class Census:
    """What is alive.

    Attributes:
        tensors: Those of host memory that waits for the next step are left out.
        threads: Of Python.
        host_bytes: Of host memory in use.
    """

    tensors: int
    threads: int
    host_bytes: int

    @classmethod
    def of(cls, subject: Subject) -> Census:
        """After a whole step of both models, from one and the same state."""
        restart(subject)
        for model in (subject.plain, subject.planned):
            step(model, subject)
        gc.collect()
        idle = subject.engine.pool._idle.values() if subject.engine else ()  # noqa: SLF001
        alive = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        return cls(
            tensors=alive - sum(map(len, idle)),
            threads=threading.active_count(),
            host_bytes=subject.engine.pool.used_bytes if subject.engine else 0,
        )

    def grown_to(self, later: Census) -> list[str]:
        """What there is more of `later`, in words."""
        names = ("tensors", "threads", "host_bytes")
        return [
            f"{name} grew from {getattr(self, name)} to {getattr(later, name)}"
            for name in names
            if getattr(later, name) > getattr(self, name)
        ]


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
    before = Census.of(subject)
    count = fault.points(subject)
    stride = 1 if most is None else max(1, -(-count // most))
    row = Row(subject.name, fault.name, count)
    for at in range(0, count, stride):
        row.add(f"point {at}", trial(subject, fault, at))
    if grown := before.grown_to(Census.of(subject)):
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


def rows(names: Sequence[str], most: int | None) -> Iterator[Row]:
    """Every subject, every fault that can happen to it."""
    for name in names:
        there = subject(name)
        for fault in FAULTS:
            if not fault.needs_engine or there.engine is not None:
                yield fault_row(there, fault, most)
        yield condition_rows(there, most)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--most", type=int, help="points of each kind; by default all")
    parser.add_argument("--subjects", nargs="+", choices=MAKERS, default=list(MAKERS))
    arguments = parser.parse_args()
    table = Table("model", "fault", "points", "tried", "left wrong", title="fault matrix")
    tried, wrong, begin = 0, 0, time.process_time()
    for row in rows(arguments.subjects, arguments.most):
        tried, wrong = tried + row.tried, wrong + len(row.wrong)
        table.add_row(row.subject, row.fault, *map(str, (row.points, row.tried, len(row.wrong))))
        for point, found in row.wrong.items():
            print(f"{row.subject}, {row.fault}, {point}: {found[:3]}", file=sys.stderr)
    Console().print(table)
    seconds = time.process_time() - begin
    print(f"{tried} (model, fault point) pairs tried, {wrong} left wrong; {seconds:.0f} s of CPU")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
