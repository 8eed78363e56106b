"""The constraints of the model of a chain: one function per group, its equation beside it.

The names in the equations are those of `chainstay.formulations.chain.phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.pyomo_types import Constraint, Expression, Relation
from chainstay.schedule import Discards

__all__ = ["CONSTRAINTS"]


def forward_needs_its_input(phases: Phases) -> Constraint:
    """``Fc`` and ``Fa`` read ``a^j``, itself or inside ``ā^{j-1}``: ``<= available + recorded``."""
    return phases.indexed(
        (
            (k, j),
            phases.value("keep_all", k, j) + phases.value("keep_input", k, j)
            <= phases.available(k, j) + phases.recorded(k, j - 1),
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
    """``B`` of stage k reads ``ā^k``: ``saved_left[k, k] = 1``."""
    return phases.indexed(((k,), phases.saved_left(k, k) == 1) for k in range(len(phases.profile)))


def backward_needs_its_input(phases: Phases) -> Constraint:
    """``B`` of stage k reads ``a^k``, itself or inside ``ā^{k-1}``: ``left + saved_left >= 1``."""
    return phases.indexed(
        ((k,), phases.left(k, k) + phases.saved_left(k, k - 1) >= 1)
        for k in range(1, len(phases.profile))
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
        ((k, i), _carried(phases, phases.value("saved_stored", k - 1, i), phases.saved_left(k, i)))
        for k, i in phases.turns
        if i < k
    )


def _carried(phases: Phases, stored: Expression, left: Expression) -> Relation:
    return stored == left if phases.discards is Discards.TABLE1 else stored <= left


def tape_keeps_inputs_between_phases(phases: Phases) -> Constraint:
    """When a phase starts, no saved data lacks its input: ``ā^i <= a^i + ā^{i-1}``."""
    return phases.indexed(
        (
            (k, i),
            phases.value("saved_stored", k, i)
            <= phases.value("activation_stored", k, i) + phases.value("saved_stored", k, i - 1),
        )
        for k, i in phases.turns
        if i > 0 and k < len(phases.profile) - 1 and phases.discards is Discards.TAPE
    )


def tape_keeps_inputs_in_a_phase(phases: Phases) -> Constraint:
    """A sweep takes no input from saved data: ``ā^i <= a^i + ā^{i-1}`` when it ends.

    What is dropped when the phase ends counts as there until then.
    """
    return phases.indexed(
        ((k, i), phases.recorded(k, i) <= phases.left(k, i) + phases.recorded(k, i - 1))
        for k, i in phases.turns
        if i > 0 and phases.discards is Discards.TAPE
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
