"""Times of computations and transfers: when each one starts and ends.

A schedule (`chainstay.schedule`) says in which order operations are issued; under whole,
uninterrupted transfers the times follow. Where transfers may be broken off and resumed, or
move a part of an activation only, the times are part of the plan: a `Timetable`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple, TypeAlias

from chainstay.schedule import Op, Schedule

Time: TypeAlias = int | Fraction
"""An exact time: never a float."""


class Transfers(StrEnum):
    """The rules by which activations may move: three models, each containing the one before.

    Attributes:
        INTEGRAL: Whole activations, each in one uninterrupted transfer; memory is free when
            an offload ends and taken when a prefetch starts ([BES20], Problem 1).
        INTERRUPTIBLE: Whole activations, but transfers may be interrupted, and memory is
            freed and taken byte by byte (Problem 2).
        FRACTIONAL: A part of an activation may stay (the relaxation).
    """

    INTEGRAL = "integral"
    INTERRUPTIBLE = "interruptible"
    FRACTIONAL = "fractional"


@dataclass(frozen=True, slots=True)
class Move:
    """Bytes of one activation on the link without a break.

    Attributes:
        op: ``Oa`` or ``Pa`` of the activation.
        start: Time at which it starts.
        end: Time at which it ends.
    """

    op: Op
    start: Time
    end: Time


@dataclass(frozen=True, slots=True)
class Timetable:
    """The times of a schedule with transfers.

    Attributes:
        starts: Starts of forwards 0 .. n-1 and backwards n-1 .. 0, of shape (2n,).
        moves: Transfers over the link, ascending in time.
    """

    starts: tuple[Time, ...]
    moves: tuple[Move, ...]

    def program(self) -> Schedule:
        """Return the operations in the order in which they start, each transfer once.

        Example:
            >>> from chainstay.schedule import Item
            >>> offload = Move(Item("a", 0).offload, 0, 1)
            >>> prefetch = Move(Item("a", 0).prefetch, 2, 3)
            >>> str(Timetable((0, 1, 2, 3), (offload, prefetch)).program())
            'Oa0 Fa0 Fa1 B1 Pa0 B0'
        """
        first: dict[Op, Time] = {}
        for move in self.moves:
            first.setdefault(move.op, move.start)
        return sorted_by_start(self.starts, first)


class TimedSchedule(NamedTuple):
    """A schedule and its makespan, in ns."""

    makespan: Time
    schedule: Schedule


def computations(stages: int) -> tuple[Op, ...]:
    """Return forwards 0 .. n-1, then backwards n-1 .. 0."""
    return Schedule.keep_all(stages).ops


def sorted_by_start(
    starts: Sequence[Time], transfers: Mapping[Op, Time], ops: Sequence[Op] | None = None
) -> Schedule:
    """Return computations and transfers in the order of their starts.

    Among equals offloads come first, since they take no memory, unless they move what the
    computation makes; then computations, then prefetches.

    Args:
        starts: Starts of the computations.
        transfers: Starts of the transfers; of equals the first comes first.
        ops: The computations, each stage's forward once before what it makes leaves; ``None`` for
            those of training without recomputation.
    """
    computed = zip(starts, ops or computations(len(starts) // 2), strict=True)
    timed = [(start, 1, position, op) for position, (start, op) in enumerate(computed)]
    for position, (op, start) in enumerate(transfers.items()):
        timed.append((start, 0 if op.kind.is_offload else 2, position, op))
    ordered = [op for *_, op in sorted(timed, key=lambda entry: entry[:3])]
    for op in [op for op in ordered if op.kind.is_offload and op.item.stage >= 0]:
        stage, index = op.item.stage, ordered.index(op)
        runs = (n for n, run in enumerate(ordered) if run.kind.is_forward and run.stage == stage)
        if index < (maker := next(runs)):  # the maker takes no time
            ordered.insert(maker, ordered.pop(index))
    return Schedule(tuple(ordered))


def exact(value: Time) -> Time:
    """Return `value` as an int where it is whole.

    Example:
        >>> exact(Fraction(4, 2)), exact(Fraction(1, 2))
        (2, Fraction(1, 2))
    """
    return value.numerator if value.denominator == 1 else value
