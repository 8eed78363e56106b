"""Between schedules and the variables of the program of a chain, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from chainstay.formulations.cpsat.chain_variables import (
    FORMS,
    ChainVariables,
    DataKind,
    Key,
    RanKey,
    StoredKey,
    TimePoint,
)
from chainstay.schedule import Discards, Item, Op, OpKind, Schedule, update_stored

__all__ = ["decode", "encode"]

_Facts: TypeAlias = set[Key]


def decode(variables: ChainVariables, is_so: Callable[[Key], bool]) -> Schedule:
    """Return the schedule of an answer.

    Args:
        variables: The variables.
        is_so: Returns the value of the variable with a meaning.
    """
    ops: list[Op] = []
    for k in variables.phases:
        for j in range(k + 1):
            ops += [Op(form, j) for form in FORMS if is_so(RanKey(form, k, j))]
            ops += _drops_at(k, j, is_so)
        ops.append(Op(OpKind.BACKWARD, k))
        ops += _drops_between(k, is_so)
    return Schedule(tuple(ops))


def _drops_at(k: int, j: int, is_so: Callable[[Key], bool]) -> Iterator[Op]:
    """Yield free discards after the turn of stage j: of its input, and of ``ā^{j-1}``."""
    is_there = is_so(StoredKey(DataKind.ACTIVATION, TimePoint.TURN, k, j))
    is_left = is_so(StoredKey(DataKind.ACTIVATION, TimePoint.END, k, j))
    if is_there and not is_left and not is_so(RanKey(OpKind.FORWARD_DROP, k, j)):
        yield Op(OpKind.DISCARD_ACTIVATION, j)
    was_saved = is_so(StoredKey(DataKind.SAVED, TimePoint.TURN, k, j - 1))
    if was_saved and not is_so(StoredKey(DataKind.SAVED, TimePoint.END, k, j - 1)):
        yield Op(OpKind.DISCARD_SAVED, j - 1)


def _drops_between(k: int, is_so: Callable[[Key], bool]) -> Iterator[Op]:
    """Yield discards between two phases, saved data before its input: a tape never lacks one."""
    for what, kind in (
        (DataKind.SAVED, OpKind.DISCARD_SAVED),
        (DataKind.ACTIVATION, OpKind.DISCARD_ACTIVATION),
    ):
        for i in reversed(range(k)):
            is_left = is_so(StoredKey(what, TimePoint.END, k, i))
            if is_left and not is_so(StoredKey(what, TimePoint.START, k - 1, i)):
                yield Op(kind, i)


def encode(variables: ChainVariables, schedule: Schedule) -> _Facts:
    """Return all meanings that hold in `schedule`, as far as the model has variables for them.

    What the model cannot express, such as two runs of a stage at different times of one phase,
    is lost: whether the rest is a solution is for the solver to say.
    """
    facts: _Facts = set()
    k, is_between = len(variables.profile) - 1, False
    stored = {Item("a", 0)}
    for op in schedule:
        is_discard = op.kind in {OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED}
        if is_between and not is_discard:
            facts |= {StoredKey(DataKind(what), TimePoint.START, k, i) for what, i in stored}
            is_between = False
        if op.kind.is_forward:
            facts.add(RanKey(op.kind, k, op.stage))
        if op.kind is OpKind.BACKWARD:
            facts |= _turns_and_ends(variables, k, facts, stored)
            k, is_between = k - 1, True
        update_stored(stored, op)
    return facts


def _turns_and_ends(variables: ChainVariables, k: int, facts: _Facts, at_end: set[Item]) -> _Facts:
    """Return what is stored at turns and at the end of phase k, from what started and what ran.

    Only free discards happen within a phase; those of a tape can wait for its end.
    """
    keep_all, keep_input, drop_input = FORMS
    found: _Facts = {StoredKey(DataKind.ACTIVATION, when, k, 0) for when in TimePoint}
    for i in range(k + 1):
        makers: dict[DataKind, set[Key]] = {
            DataKind.ACTIVATION: {RanKey(keep_input, k, i - 1), RanKey(drop_input, k, i - 1)},
            DataKind.SAVED: {RanKey(keep_all, k, i)},
        }
        for what in DataKind:
            if facts & (makers[what] | {StoredKey(what, TimePoint.START, k, i)}):
                found.add(StoredKey(what, TimePoint.TURN, k, i))
                is_taken = what is DataKind.ACTIVATION and RanKey(drop_input, k, i) in facts
                is_dropped = variables.discards is Discards.FREE and Item(what, i) not in at_end
                if not is_taken and not is_dropped:
                    found.add(StoredKey(what, TimePoint.END, k, i))
    return found
