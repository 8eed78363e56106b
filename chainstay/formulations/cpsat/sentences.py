"""What the constraint program says about a chain, one function per sentence.

``Fa``, ``Fc``, ``Fn`` at (k, j) and the moments of data are those of
`chainstay.formulations.cpsat.moments`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.formulations.cpsat.moments import FORMS, Data, Moment, Moments
from chainstay.schedule import Discards

__all__ = ["SENTENCES"]

KEEP_ALL, KEEP_INPUT, DROP_INPUT = FORMS


def activations_have_one_origin(of: Moments) -> None:
    """``a^i`` is there at its turn since the start, from one forward of stage i - 1, or not."""
    for k, i in of.turns:
        if i > 0:
            of.model.add_exactly_one(
                of.stored(Data.ACTIVATION, Moment.START, k, i),
                of.ran(KEEP_INPUT, k, i - 1),
                of.ran(DROP_INPUT, k, i - 1),
                ~of.stored(Data.ACTIVATION, Moment.TURN, k, i),
            )


def saved_data_has_one_origin(of: Moments) -> None:
    """``ā^i`` is there after its turn since the start, from ``Fa`` of stage i, or not."""
    for k, i in of.turns:
        of.model.add_exactly_one(
            of.stored(Data.SAVED, Moment.START, k, i),
            of.ran(KEEP_ALL, k, i),
            ~of.stored(Data.SAVED, Moment.TURN, k, i),
        )


def forwards_read_their_input(of: Moments) -> None:
    """``Fa`` and ``Fc`` read ``a^j``, itself or inside ``ā^{j-1}``; ``Fn`` takes ``a^j``."""
    for k, j in of.turns:
        if j > 0:
            activation = of.stored(Data.ACTIVATION, Moment.TURN, k, j)
            inside = of.stored(Data.SAVED, Moment.TURN, k, j - 1)
            for form in (KEEP_ALL, KEEP_INPUT):
                of.model.add_bool_or(~of.ran(form, k, j), activation, inside)
            of.model.add_implication(of.ran(DROP_INPUT, k, j), activation)


def backwards_read_saved_data_and_input(of: Moments) -> None:
    """``B`` of stage k reads ``ā^k`` and ``a^k``, the latter itself or inside ``ā^{k-1}``."""
    for k in of.phases:
        of.model.add_bool_and(of.stored(Data.SAVED, Moment.END, k, k))
        if k > 0:
            of.model.add_bool_or(
                of.stored(Data.ACTIVATION, Moment.END, k, k),
                of.stored(Data.SAVED, Moment.END, k, k - 1),
            )


def data_stays_until_the_end(of: Moments) -> None:
    """What is there at its turn is there at the end, but for ``Fn`` and free discards.

    A free discard drops ``a^i`` right after the turn of stage i, ``ā^i`` right after the
    next one.
    """
    for k, i in of.turns:
        saved = of.stored(Data.SAVED, Moment.TURN, k, i)
        saved_left = of.stored(Data.SAVED, Moment.END, k, i)
        activation = of.stored(Data.ACTIVATION, Moment.TURN, k, i)
        left = of.stored(Data.ACTIVATION, Moment.END, k, i)
        dropped = of.ran(DROP_INPUT, k, i)
        if of.discards is Discards.FREE:
            of.model.add_implication(saved_left, saved)
            of.model.add_implication(left, activation)
            of.model.add_implication(dropped, ~left)
        else:
            of.model.add(saved_left == saved)
            of.model.add_exactly_one(left, dropped, ~activation)


def data_stays_between_phases(of: Moments) -> None:
    """The next phase starts with what this one left, or with less where discards are allowed."""
    for k, i in of.turns:
        if i == k:
            continue
        for what in Data:
            left = of.stored(what, Moment.END, k, i)
            carried = of.stored(what, Moment.START, k - 1, i)
            of.model.add_implication(carried, left)
            if of.discards is Discards.TABLE1:
                of.model.add_implication(left, carried)


def tapes_keep_inputs(of: Moments) -> None:
    """On a tape, ``ā^i`` has its input beside it, ``a^i`` or ``ā^{i-1}``, at all moments."""
    if of.discards is not Discards.TAPE:
        return
    for k, i in of.turns:
        if i > 0:
            for saved_when, input_when in (
                (Moment.START, Moment.START),
                (Moment.TURN, Moment.END),
            ):
                of.model.add_bool_or(
                    ~of.stored(Data.SAVED, saved_when, k, i),
                    of.stored(Data.ACTIVATION, input_when, k, i),
                    of.stored(Data.SAVED, saved_when, k, i - 1),
                )


SENTENCES: Final[tuple[Callable[[Moments], None], ...]] = (
    activations_have_one_origin,
    saved_data_has_one_origin,
    forwards_read_their_input,
    backwards_read_saved_data_and_input,
    data_stays_until_the_end,
    data_stays_between_phases,
    tapes_keep_inputs,
)
"""All that is said about a chain but how much memory it needs, in the order of reading."""
