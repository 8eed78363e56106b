"""The constraints of the program of a chain, one function per group.

``Fa``, ``Fc``, ``Fn`` at (k, j) and the time points of data are those of
`chainstay.formulations.cpsat.chain_variables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, TimePoint
from chainstay.schedule import Discards

__all__ = ["CONSTRAINTS"]

_, KEEP_INPUT, DROP_INPUT = FORMS
START, TURN, END = TimePoint


def activations_have_one_origin(variables: ChainVariables) -> None:
    """``a^i`` is there at its turn since the start, from one forward of stage i - 1, or not."""
    for k, i in variables.turns:
        if i > 0:
            variables.model.add_exactly_one(
                variables.stored(START, k, i),
                *variables.made(k, i - 1),
                ~variables.stored(TURN, k, i),
            )


def saved_data_has_one_origin(variables: ChainVariables) -> None:
    """``ā^i`` is there after its turn since the start, from ``Fa`` of stage i, or not.

    And of all that keeps stage i, one record at most.
    """
    for k, i in variables.turns:
        for record in variables.fitting(k, variables.records.starting(i)):
            variables.model.add_exactly_one(
                variables.recorded(START, k, record),
                variables.kept(k, record),
                ~variables.recorded(TURN, k, record),
            )
        covering = variables.fitting(k, variables.records.covering(i))
        if len(covering) > 1:
            variables.model.add_at_most_one(
                variables.recorded(TURN, k, origin) for origin in covering
            )


def forwards_read_their_input(variables: ChainVariables) -> None:
    """``Fa`` and ``Fc`` read ``a^j``, itself or inside ``ā^{j-1}``; ``Fn`` takes ``a^j``."""
    for k, j in variables.turns:
        if j > 0:
            records = variables.fitting(k, variables.records.starting(j))
            kept = [variables.kept(k, record) for record in records]
            holding = variables.holding(TURN, k, j)
            for run in (*kept, variables.ran(KEEP_INPUT, k, j)):
                variables.model.add_bool_or(~run, *holding)
            dropped = variables.ran(DROP_INPUT, k, j)
            variables.model.add_implication(dropped, variables.stored(TURN, k, j))


def backwards_read_saved_data_and_input(variables: ChainVariables) -> None:
    """``B`` that ends phase k reads a record that ends with stage k, and its input.

    The input ``a^i``, of the record's first stage, is there itself or inside ``ā^{i-1}``; some
    records need none. There is no ``B`` where phase k is joined to an earlier one.
    """
    for k in variables.phases:
        ending = variables.records.ending(k)
        used = [variables.recorded(END, k, record) for record in ending]
        variables.model.add_exactly_one(*used, *variables.joined(k))
        for record, is_used in zip(ending, used, strict=True):
            if record.stage > 0 and record.costs.needs_input:
                variables.model.add_bool_or(~is_used, *variables.holding(END, k, record.stage))


def records_of_several_stages_are_closed(variables: ChainVariables) -> None:
    """While a record of several stages is stored, none of them runs; nor does a joined phase."""
    for k, j in variables.turns:
        for record in variables.fitting(k, variables.records.covering(j)):
            if record.stage < record.last:
                for run in variables.made(k, j):
                    variables.model.add_implication(variables.recorded(TURN, k, record), ~run)
        for is_joined in variables.joined(k):
            for run in variables.runs(k, j):
                variables.model.add_implication(is_joined, ~run)


def data_stays_until_the_end(variables: ChainVariables) -> None:
    """Data that is there at its turn is there at the end, but for ``Fn`` and free discards.

    A discard drops ``a^i`` right after the turn of stage i, ``ā^i`` right after the next one.
    """
    for k, i in variables.turns:
        activation, left = variables.stored(TURN, k, i), variables.stored(END, k, i)
        dropped = variables.ran(DROP_INPUT, k, i)
        for record in variables.fitting(k, variables.records.starting(i)):
            saved = variables.recorded(TURN, k, record)
            saved_left = variables.recorded(END, k, record)
            if variables.drops:
                variables.model.add_implication(saved_left, saved)
            else:
                variables.model.add(saved_left == saved)
        if variables.drops:
            variables.model.add_implication(left, activation)
            variables.model.add_implication(dropped, ~left)
        else:
            variables.model.add_exactly_one(left, dropped, ~activation)


def data_stays_between_phases(variables: ChainVariables) -> None:
    """The next phase starts with what this one left, or with less where discards are allowed."""
    for k, i in variables.turns:
        if i == k:
            continue
        both = [(variables.stored(END, k, i), variables.stored(START, k - 1, i))]
        both += [
            (variables.recorded(END, k, record), variables.recorded(START, k - 1, record))
            for record in variables.fitting(k - 1, variables.records.starting(i))
        ]
        for left, carried in both:
            variables.model.add_implication(carried, left)
            if variables.discards is Discards.TABLE1:
                variables.model.add_implication(left, carried)


def tapes_keep_inputs(variables: ChainVariables) -> None:
    """On a tape, what needs its input has it beside it at all moments.

    Discards in the middle of a phase come right after the turn of the stage that reads last
    what they drop, so what is left of the input at the end was there until then.
    """
    if variables.discards is not Discards.TAPE:
        return
    for k, i in variables.turns:
        for record in variables.fitting(k, variables.records.starting(i)):
            if i > 0 and record.costs.needs_input:
                for saved_when, input_when in ((START, START), (TURN, END)):
                    variables.model.add_bool_or(
                        ~variables.recorded(saved_when, k, record),
                        *variables.holding(input_when, k, i),
                    )


CONSTRAINTS: Final[tuple[Callable[[ChainVariables], None], ...]] = (
    activations_have_one_origin,
    saved_data_has_one_origin,
    forwards_read_their_input,
    backwards_read_saved_data_and_input,
    records_of_several_stages_are_closed,
    data_stays_until_the_end,
    data_stays_between_phases,
    tapes_keep_inputs,
)
"""All constraint groups of a chain but those on memory, in the order of reading."""
