"""Between schedules and the variables of the constraint program, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from chainstay.formulations.cpsat.moments import FORMS, Data, Key, Moment, Moments, Ran, Stored
from chainstay.schedule import Discards, Op, OpKind, Schedule

__all__ = ["decode", "encode"]

_Facts: TypeAlias = set[Key]


def decode(of: Moments, is_so: Callable[[Key], bool]) -> Schedule:
    """The schedule of which `is_so` tells what ran and what was stored.

    Args:
        of: The variables.
        is_so: The value of the variable with this meaning.
    """
    ops: list[Op] = []
    for k in of.phases:
        for j in range(k + 1):
            ops += [Op(form, j) for form in FORMS if is_so(Ran(form, k, j))]
            ops += _drops_at(k, j, is_so)
        ops.append(Op(OpKind.BACKWARD, k))
        ops += _drops_between(k, is_so)
    return Schedule(tuple(ops))


def _drops_at(k: int, j: int, is_so: Callable[[Key], bool]) -> Iterator[Op]:
    """Free discards after the turn of stage j: of its input, and of ``ā^{j-1}``."""
    is_there = is_so(Stored(Data.ACTIVATION, Moment.TURN, k, j))
    is_left = is_so(Stored(Data.ACTIVATION, Moment.END, k, j))
    if is_there and not is_left and not is_so(Ran(OpKind.FORWARD_DROP, k, j)):
        yield Op(OpKind.DISCARD_ACTIVATION, j)
    was_saved = is_so(Stored(Data.SAVED, Moment.TURN, k, j - 1))
    if was_saved and not is_so(Stored(Data.SAVED, Moment.END, k, j - 1)):
        yield Op(OpKind.DISCARD_SAVED, j - 1)


def _drops_between(k: int, is_so: Callable[[Key], bool]) -> Iterator[Op]:
    """Discards between two phases, saved data before its input: a tape never lacks one."""
    for what, kind in (
        (Data.SAVED, OpKind.DISCARD_SAVED),
        (Data.ACTIVATION, OpKind.DISCARD_ACTIVATION),
    ):
        for i in reversed(range(k)):
            is_left = is_so(Stored(what, Moment.END, k, i))
            if is_left and not is_so(Stored(what, Moment.START, k - 1, i)):
                yield Op(kind, i)


def encode(of: Moments, schedule: Schedule) -> _Facts:
    """All that is so in `schedule`, as far as the model has words for it.

    What the model cannot say, such as two runs of a stage at different times of one phase,
    is lost: whether the rest is a solution is for the solver to say.
    """
    facts: _Facts = set()
    k, is_between = len(of.profile) - 1, False
    stored = {(Data.ACTIVATION, 0)}
    for op in schedule:
        is_discard = op.kind in {OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED}
        if is_between and not is_discard:
            facts |= {Stored(what, Moment.START, k, i) for what, i in stored}
            is_between = False
        if op.kind.is_forward:
            facts.add(Ran(op.kind, k, op.stage))
        if op.kind is OpKind.BACKWARD:
            facts |= _turns_and_ends(of, k, facts, stored)
            k, is_between = k - 1, True
        _apply(op, stored)
    return facts


def _turns_and_ends(of: Moments, k: int, facts: _Facts, at_end: set[tuple[Data, int]]) -> _Facts:
    """What is stored at turns and at the end of phase k, from what started and what ran.

    Only free discards happen within a phase; those of a tape can wait for its end.
    """
    keep_all, keep_input, drop_input = FORMS
    found: _Facts = {Stored(Data.ACTIVATION, when, k, 0) for when in Moment}
    for i in range(k + 1):
        makers: dict[Data, set[Key]] = {
            Data.ACTIVATION: {Ran(keep_input, k, i - 1), Ran(drop_input, k, i - 1)},
            Data.SAVED: {Ran(keep_all, k, i)},
        }
        for what in Data:
            if facts & (makers[what] | {Stored(what, Moment.START, k, i)}):
                found.add(Stored(what, Moment.TURN, k, i))
                is_taken = what is Data.ACTIVATION and Ran(drop_input, k, i) in facts
                is_dropped = of.discards is Discards.FREE and (what, i) not in at_end
                if not is_taken and not is_dropped:
                    found.add(Stored(what, Moment.END, k, i))
    return found


def _apply(op: Op, stored: set[tuple[Data, int]]) -> None:
    """Add and remove what `op` adds and removes; whether it may run is not asked."""
    activation, saved = (Data.ACTIVATION, op.stage), (Data.SAVED, op.stage)
    match op.kind:
        case OpKind.FORWARD_KEEP_ALL:
            stored.add(saved)
        case OpKind.FORWARD_KEEP_INPUT | OpKind.FORWARD_DROP:
            stored.add((Data.ACTIVATION, op.stage + 1))
    match op.kind:
        case OpKind.FORWARD_DROP | OpKind.DISCARD_ACTIVATION:
            stored.discard(activation)
        case OpKind.DISCARD_SAVED:
            stored.discard(saved)
        case OpKind.BACKWARD:
            stored -= {activation, saved}
