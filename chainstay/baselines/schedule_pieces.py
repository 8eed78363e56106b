"""Schedules as pieces laid one after another: the form every simple baseline has.

A piece is a run of stages with what the first pass does to it and what the way back does.
The first pass goes through all pieces in order, the way back through all in reverse. The
last stage belongs to a kept piece: its backward comes right after its forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs


class Piece(NamedTuple):
    """Operations of some neighbouring stages, in the first pass and on the way back."""

    first_pass: tuple[Op, ...]
    way_back: tuple[Op, ...]


def kept(start: int, stop: int) -> Piece:
    """Return the piece whose stages ``start .. stop-1`` keep everything until their backward."""
    keeps = tuple(Op(OpKind.FORWARD_KEEP_ALL, stage) for stage in range(start, stop))
    return Piece(keeps, tuple(Op(OpKind.BACKWARD, op.stage) for op in reversed(keeps)))


def recomputed(start: int, stop: int) -> Piece:
    """Return the piece whose stages ``start .. stop-1`` keep their input and all run once more."""
    keeps, backwards = kept(start, stop)
    return Piece(advance(start, stop), keeps + backwards)


def one_by_one(start: int, stop: int) -> Piece:
    """Return the piece in which each backward restarts from the input of stage `start`."""
    turns = (advance(start, stage) + turn(stage) for stage in reversed(range(start, stop)))
    return Piece(advance(start, stop), tuple(chain.from_iterable(turns)))


def nest(pieces: Iterable[Piece]) -> Schedule:
    """Return the schedule that `pieces`, given from the first stage to the last, make together.

    Example:
        >>> str(nest([kept(0, 1), recomputed(1, 3), kept(3, 4)]))
        'Fa0 Fc1 Fn2 Fa3 B3 Fa1 Fa2 B2 B1 B0'
    """
    pieces = tuple(pieces)
    first_pass = chain.from_iterable(piece.first_pass for piece in pieces)
    way_back = chain.from_iterable(piece.way_back for piece in reversed(pieces))
    return Schedule((*first_pass, *way_back))


def advance(start: int, stop: int) -> tuple[Op, ...]:
    """Run ``start .. stop-1`` and keep the input of the first only."""
    return tuple(forwards_dropping_inputs(start, stop - 1))


def turn(stage: int) -> tuple[Op, Op]:
    """Return the last forward of `stage` and its backward."""
    return Op(OpKind.FORWARD_KEEP_ALL, stage), Op(OpKind.BACKWARD, stage)
