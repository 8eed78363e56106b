"""Between schedules and the variables of the program of a chain, both ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, Key, TimePoint
from chainstay.formulations.cpsat.ortools_backend import Literal
from chainstay.schedule import Op, OpKind, Schedule

_Answer: TypeAlias = Callable[[Literal], bool]


def decode(variables: ChainVariables, is_on: _Answer) -> Schedule:
    """Return the schedule of an answer; `is_on` returns the values of variables."""
    ops: list[Op] = []
    k = variables.phases[0]
    while k >= 0:
        for j in range(k + 1):
            ops += _forwards(variables, k, j, is_on)
            ops += _drops_at(variables, k, j, is_on)
        ending = variables.records.ending(k)
        used = (r.stage for r in ending if is_on(variables.recorded(TimePoint.END, k, r)))
        first = next(used, k)
        ops.append(Op(OpKind.BACKWARD, first))
        ops += _drops_between(variables, k, first - 1, is_on)
        k = first - 1
    return Schedule(tuple(ops))


def _forwards(variables: ChainVariables, k: int, j: int, is_on: _Answer) -> Iterator[Op]:
    """Yield the forwards at the turn of stage j, ``Fa`` before the others."""
    keep_all, *others = FORMS
    for record in variables.records.starting(j):
        if is_on(variables.kept(k, record)):
            yield Op(keep_all, j, option=record.option)
    yield from (Op(form, j) for form in others if is_on(variables.ran(form, k, j)))


def _drops_at(variables: ChainVariables, k: int, j: int, is_on: _Answer) -> Iterator[Op]:
    """Yield discards after the turn of stage j: of its input, and of ``ā^{j-1}``."""
    is_there = is_on(variables.stored(TimePoint.TURN, k, j))
    is_left = is_on(variables.stored(TimePoint.END, k, j))
    if is_there and not is_left and not is_on(variables.ran(OpKind.FORWARD_DROP, k, j)):
        yield Op(OpKind.DISCARD_ACTIVATION, j)
    for record in variables.records.ending(j - 1):
        was_saved = is_on(variables.recorded(TimePoint.TURN, k, record))
        if was_saved and not is_on(variables.recorded(TimePoint.END, k, record)):
            yield Op(OpKind.DISCARD_SAVED, record.stage)


def _drops_between(variables: ChainVariables, k: int, after: int, is_on: _Answer) -> Iterator[Op]:
    """Yield discards between phases `k` and `after`, of which `after` starts without.

    Saved data goes before its input: a tape never lacks one.
    """
    for record in reversed(variables.records.all):
        is_left = record.last <= after and is_on(variables.recorded(TimePoint.END, k, record))
        if is_left and not is_on(variables.recorded(TimePoint.START, after, record)):
            yield Op(OpKind.DISCARD_SAVED, record.stage)
    for i in reversed(range(after + 1)):
        is_left = is_on(variables.stored(TimePoint.END, k, i))
        if is_left and not is_on(variables.stored(TimePoint.START, after, i)):
            yield Op(OpKind.DISCARD_ACTIVATION, i)


def runs_of(variables: ChainVariables, schedule: Schedule) -> set[Key]:
    """Return the forwards of `schedule` by phase, as far as the model has variables for them.

    They say what is stored, but for discards. What the model cannot express, such as two runs of a
    stage at different times of one phase, is lost: whether the rest is part of a solution is for
    the solver to say.
    """
    k, runs = variables.phases[0], set[Key]()
    for op in schedule:
        if op.kind is OpKind.BACKWARD:
            k = op.stage - 1
        elif op.kind is OpKind.FORWARD_KEEP_ALL:
            record = variables.records.named(op.stage, op.option, first=variables.is_first(k))
            if record is None:
                break
            runs.add(("kept", k, *record.key))
        elif op.kind.is_forward:
            runs.add(("ran", op.kind, k, op.stage))
    return runs
