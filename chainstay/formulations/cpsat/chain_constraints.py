"""The constraints of the program of a chain, one function per group.

``Fa``, ``Fc``, ``Fn`` at (k, j) and the time points of data are those of
`chainstay.formulations.cpsat.chain_variables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, DataKind, TimePoint
from chainstay.schedule import Discards

__all__ = ["CONSTRAINTS"]

KEEP_ALL, KEEP_INPUT, DROP_INPUT = FORMS


def activations_have_one_origin(variables: ChainVariables) -> None:
    """``a^i`` is there at its turn since the start, from one forward of stage i - 1, or not."""
    for k, i in variables.turns:
        if i > 0:
            variables.model.add_exactly_one(
                variables.stored(DataKind.ACTIVATION, TimePoint.START, k, i),
                variables.ran(KEEP_INPUT, k, i - 1),
                variables.ran(DROP_INPUT, k, i - 1),
                ~variables.stored(DataKind.ACTIVATION, TimePoint.TURN, k, i),
            )


def saved_data_has_one_origin(variables: ChainVariables) -> None:
    """``ā^i`` is there after its turn since the start, from ``Fa`` of stage i, or not."""
    for k, i in variables.turns:
        variables.model.add_exactly_one(
            variables.stored(DataKind.SAVED, TimePoint.START, k, i),
            variables.ran(KEEP_ALL, k, i),
            ~variables.stored(DataKind.SAVED, TimePoint.TURN, k, i),
        )


def forwards_read_their_input(variables: ChainVariables) -> None:
    """``Fa`` and ``Fc`` read ``a^j``, itself or inside ``ā^{j-1}``; ``Fn`` takes ``a^j``."""
    for k, j in variables.turns:
        if j > 0:
            activation = variables.stored(DataKind.ACTIVATION, TimePoint.TURN, k, j)
            inside = variables.stored(DataKind.SAVED, TimePoint.TURN, k, j - 1)
            for form in (KEEP_ALL, KEEP_INPUT):
                variables.model.add_bool_or(~variables.ran(form, k, j), activation, inside)
            variables.model.add_implication(variables.ran(DROP_INPUT, k, j), activation)


def backwards_read_saved_data_and_input(variables: ChainVariables) -> None:
    """``B`` of stage k reads ``ā^k`` and ``a^k``, the latter itself or inside ``ā^{k-1}``."""
    for k in variables.phases:
        variables.model.add_bool_and(variables.stored(DataKind.SAVED, TimePoint.END, k, k))
        if k > 0:
            variables.model.add_bool_or(
                variables.stored(DataKind.ACTIVATION, TimePoint.END, k, k),
                variables.stored(DataKind.SAVED, TimePoint.END, k, k - 1),
            )


def data_stays_until_the_end(variables: ChainVariables) -> None:
    """Data that is there at its turn is there at the end, but for ``Fn`` and free discards.

    A free discard drops ``a^i`` right after the turn of stage i, ``ā^i`` right after the
    next one.
    """
    for k, i in variables.turns:
        saved = variables.stored(DataKind.SAVED, TimePoint.TURN, k, i)
        saved_left = variables.stored(DataKind.SAVED, TimePoint.END, k, i)
        activation = variables.stored(DataKind.ACTIVATION, TimePoint.TURN, k, i)
        left = variables.stored(DataKind.ACTIVATION, TimePoint.END, k, i)
        dropped = variables.ran(DROP_INPUT, k, i)
        if variables.discards is Discards.FREE:
            variables.model.add_implication(saved_left, saved)
            variables.model.add_implication(left, activation)
            variables.model.add_implication(dropped, ~left)
        else:
            variables.model.add(saved_left == saved)
            variables.model.add_exactly_one(left, dropped, ~activation)


def data_stays_between_phases(variables: ChainVariables) -> None:
    """The next phase starts with what this one left, or with less where discards are allowed."""
    for k, i in variables.turns:
        if i == k:
            continue
        for what in DataKind:
            left = variables.stored(what, TimePoint.END, k, i)
            carried = variables.stored(what, TimePoint.START, k - 1, i)
            variables.model.add_implication(carried, left)
            if variables.discards is Discards.TABLE1:
                variables.model.add_implication(left, carried)


def tapes_keep_inputs(variables: ChainVariables) -> None:
    """On a tape, ``ā^i`` has its input beside it, ``a^i`` or ``ā^{i-1}``, at all moments."""
    if variables.discards is not Discards.TAPE:
        return
    for k, i in variables.turns:
        if i > 0:
            for saved_when, input_when in (
                (TimePoint.START, TimePoint.START),
                (TimePoint.TURN, TimePoint.END),
            ):
                variables.model.add_bool_or(
                    ~variables.stored(DataKind.SAVED, saved_when, k, i),
                    variables.stored(DataKind.ACTIVATION, input_when, k, i),
                    variables.stored(DataKind.SAVED, saved_when, k, i - 1),
                )


CONSTRAINTS: Final[tuple[Callable[[ChainVariables], None], ...]] = (
    activations_have_one_origin,
    saved_data_has_one_origin,
    forwards_read_their_input,
    backwards_read_saved_data_and_input,
    data_stays_until_the_end,
    data_stays_between_phases,
    tapes_keep_inputs,
)
"""All constraint groups of a chain but those on memory, in the order of reading."""
