"""The constraints of the model of a chain: one function per group, its equation beside it.

The names in the equations are those of `chainstay.formulations.chain.phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.chain.records import Record
from chainstay.formulations.pyomo_types import Constraint, Expression, Relation
from chainstay.schedule import Discards

__all__ = ["CONSTRAINTS"]


def forward_needs_its_input(phases: Phases) -> Constraint:
    """``Fc`` and ``Fa`` read ``a^j``, itself or inside ``ā^{j-1}``: ``<= available + recorded``."""
    starting, ending = phases.records.starting, phases.records.ending
    return phases.indexed(
        (
            (k, j),
            phases.total("keep_all", k, starting(j)) + phases.value("keep_input", k, j)
            <= phases.available(k, j) + phases.recorded(k, ending(j - 1)),
        )
        for k, j in phases.turns
        if j > 0
    )


def activation_stored_once(phases: Phases) -> Constraint:
    """No activation is made while it is stored: ``available <= 1``.

    ``Fn`` would take one of two copies, where memory holds one.
    """
    return phases.indexed(((k, i), phases.available(k, i) <= 1) for k, i in phases.turns if i > 0)


def backward_needs_its_saved_data(phases: Phases) -> Constraint:
    """``B`` reads a record that ends with stage k: ``saved_left[k, k] = 1``, or k is joined."""
    return phases.indexed(
        ((k,), phases.saved_left(k, phases.records.ending(k)) == 1 - phases.is_joined(k))
        for k in range(len(phases.profile))
    )


def backward_needs_its_input(phases: Phases) -> Constraint:
    """``B`` reads ``a^i``, itself or inside ``ā^{i-1}``: ``left + saved_left >= used``.

    Stage i is the first one of the record, which ends with stage k; some need no input.
    """
    return phases.indexed(
        (
            (k, i),
            phases.left(k, i) + phases.saved_left(k, phases.records.ending(i - 1))
            >= phases.used(k, needing),
        )
        for k in range(len(phases.profile))
        for i in range(1, k + 1)
        if (needing := tuple(r for r in _needing(phases, i) if r.last == k))
    )


def dropped_inputs_were_stored(phases: Phases) -> Constraint:
    """An input that ``B`` does not need is dropped where it is: ``left[k, k] >= 0``.

    Of all others, `backward_needs_its_input` and what is carried over say so.
    """
    return phases.indexed(
        ((k,), phases.left(k, k) >= 0)
        for k in range(1, len(phases.profile))
        if phases.drops and not all(r.costs.needs_input for r in phases.records.ending(k))
    )


def _needing(phases: Phases, i: int) -> list[Record]:
    """Return the records that start with stage i and need its input."""
    return [record for record in phases.records.starting(i) if record.costs.needs_input]


def records_of_several_stages_are_closed(phases: Phases) -> Constraint:
    """Nothing within a record of several stages runs: ``recorded + Fc + Fn <= 1``."""
    return phases.indexed(
        ((k, j), phases.recorded(k, several) + phases.makes_output(k, j) <= 1)
        for k, j in phases.turns
        if j < k and (several := [r for r in phases.records.covering(j) if r.stage < r.last <= k])
    )


def joined_phases_are_empty(phases: Phases) -> Constraint:
    """No stage runs in a phase that does not happen: ``Fa + joined``, ``Fc + Fn + joined <= 1``."""
    return phases.indexed(
        ((k, j, number), runs + phases.is_joined(k) <= 1)
        for k, j in phases.turns
        if phases.records.crossing(k)
        for number, runs in enumerate(
            (
                phases.total("keep_all", k, phases.records.starting(j)),
                phases.makes_output(k, j),
            )
        )
    )


def activations_carried_to_next_phase(phases: Phases) -> Constraint:
    """A phase starts with the activations the one before left, or fewer if discards are allowed.

    ``stored[k - 1, i] <= left[k, i]``, with ``=`` under Table 1. As nothing stored is less
    than 0, this says, too, that ``Fn`` and discards remove only what is there.
    """
    return phases.indexed(
        ((k, i), _carried(phases, phases.value("activation_stored", k - 1, i), phases.left(k, i)))
        for k, i in phases.turns
        if 0 < i < k
    )


def saved_data_carried_to_next_phase(phases: Phases) -> Constraint:
    """A phase starts with the saved data the one before left, or less if discards are allowed.

    ``stored[k - 1, i] <= saved_left[k, i]``, with ``=`` under Table 1; and only what is
    recorded is dropped.
    """
    return phases.indexed(
        (
            (k, *record.key),
            _carried(
                phases,
                phases.value("saved_stored", k - 1, *record.key),
                phases.saved_left(k, [record]),
            ),
        )
        for k, i in phases.turns
        for record in phases.records.starting(i)
        if record.last < k
    )


def _carried(phases: Phases, stored: Expression, left: Expression) -> Relation:
    return stored == left if phases.discards is Discards.TABLE1 else stored <= left


def tape_keeps_inputs_between_phases(phases: Phases) -> Constraint:
    """When a phase starts, no saved data lacks its input: ``ā^i <= a^i + ā^{i-1}``."""
    return phases.indexed(
        (
            (k, i),
            phases.total("saved_stored", k, needing)
            <= phases.value("activation_stored", k, i)
            + phases.total("saved_stored", k, phases.records.ending(i - 1)),
        )
        for k, i in phases.turns
        if i > 0 and k < len(phases.profile) - 1 and phases.discards is Discards.TAPE
        if (needing := [r for r in _needing(phases, i) if r.last <= k])
    )


def tape_keeps_inputs_in_a_phase(phases: Phases) -> Constraint:
    """A sweep takes no input from saved data: ``ā^i <= a^i + ā^{i-1}`` when it ends.

    What is dropped when the phase ends counts as there until then.
    """
    return phases.indexed(
        (
            (k, i),
            phases.recorded(k, needing)
            <= phases.left(k, i) + phases.saved_left(k, phases.records.ending(i - 1)),
        )
        for k, i in phases.turns
        if i > 0 and phases.discards is Discards.TAPE
        if (needing := [r for r in _needing(phases, i) if r.last <= k])
    )


def skips_are_stored_with_what_has_them(phases: Phases) -> Constraint:
    """A skip is in memory while anything that has it is: ``skip_stored >= is stored``, for each."""
    return phases.indexed(
        ((k, j, v, number), phases.model.skip_stored[k, j, v] >= is_stored)
        for k, j in phases.moments
        for v in range(len(phases.profile.skips))
        for number, is_stored in enumerate(phases.having(k, j, v))
    )


def memory_of_forwards(phases: Phases) -> Constraint:
    """At every stage's turn, memory is within the budget; see `Phases.forward_memory`."""
    return phases.indexed(
        ((k, j), phases.forward_memory(k, j) <= phases.model.memory_limit) for k, j in phases.turns
    )


def memory_of_recordings(phases: Phases) -> Constraint:
    """While a stage is recorded that runs again, memory is within the budget, too.

    See `Phases.recording_memory`.
    """
    return phases.indexed(
        ((k, j), phases.recording_memory(k, j) <= phases.model.memory_limit)
        for k, j in phases.turns
        if phases.reruns
    )


def memory_of_backwards(phases: Phases) -> Constraint:
    """While a backward runs, memory is within the budget; see `Phases.backward_memory`."""
    return phases.indexed(
        ((k,), phases.backward_memory(k) <= phases.model.memory_limit)
        for k in range(len(phases.profile))
    )


CONSTRAINTS: Final[tuple[Callable[[Phases], Constraint], ...]] = (
    forward_needs_its_input,
    activation_stored_once,
    backward_needs_its_saved_data,
    backward_needs_its_input,
    dropped_inputs_were_stored,
    records_of_several_stages_are_closed,
    joined_phases_are_empty,
    activations_carried_to_next_phase,
    saved_data_carried_to_next_phase,
    tape_keeps_inputs_between_phases,
    tape_keeps_inputs_in_a_phase,
    skips_are_stored_with_what_has_them,
    memory_of_forwards,
    memory_of_recordings,
    memory_of_backwards,
)
"""All constraint groups of a chain, in the order of reading."""
