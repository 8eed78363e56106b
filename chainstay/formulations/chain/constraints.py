"""The constraints of the program of a chain: one function per group, its equation beside it.

The names in the equations are those of `chainstay.formulations.chain.phases`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.integer_program import LinearExpression, Relation
from chainstay.formulations.records import Record
from chainstay.schedule import Discards

Group: TypeAlias = Callable[[Phases], Iterable[Relation]]
"""A function that returns the rows of a group of constraints."""


def forward_needs_its_input(phases: Phases) -> Iterable[Relation]:
    """``Fc`` and ``Fa`` read ``a^j``, itself or inside ``ā^{j-1}``: ``<= available + recorded``."""
    starting, ending = phases.records.starting, phases.records.ending
    return (
        phases.total("keep_all", k, starting(j)) + phases.value("keep_input", k, j)
        <= phases.available(k, j) + phases.recorded(k, ending(j - 1))
        for k, j in phases.turns
        if j > 0
    )


def activation_stored_once(phases: Phases) -> Iterable[Relation]:
    """No activation is made while it is stored: ``available <= 1``.

    ``Fn`` would take one of two copies, where memory holds one.
    """
    return (phases.available(k, i) <= 1 for k, i in phases.turns if i > 0)


def backward_needs_its_saved_data(phases: Phases) -> Iterable[Relation]:
    """``B`` reads a record that ends with stage k: ``saved_left[k, k] = 1``, or k is joined."""
    return (
        phases.saved_left(k, phases.records.ending(k)).equals(1 - phases.is_joined(k))
        for k in range(len(phases.profile))
    )


def backward_needs_its_input(phases: Phases) -> Iterable[Relation]:
    """``B`` reads ``a^i``, itself or inside ``ā^{i-1}``: ``left + saved_left >= used``.

    Stage i is the first one of the record, which ends with stage k; some need no input.
    """
    return (
        phases.left(k, i) + phases.saved_left(k, phases.records.ending(i - 1))
        >= phases.used(k, needing)
        for k in range(len(phases.profile))
        for i in range(1, k + 1)
        if (needing := [record for record in _needing(phases, i, k) if record.last == k])
    )


def dropped_inputs_were_stored(phases: Phases) -> Iterable[Relation]:
    """An input that ``B`` does not need is dropped where it is: ``left[k, k] >= 0``.

    Of all others, `backward_needs_its_input` and what is carried over say so.
    """
    return (
        phases.left(k, k) >= 0
        for k in range(1, len(phases.profile))
        if phases.drops and not all(r.costs.needs_input for r in phases.records.ending(k))
    )


def _needing(phases: Phases, i: int, k: int) -> list[Record]:
    """Return the records that start with stage i, end by stage k and need their input."""
    return [r for r in phases.records.starting(i) if r.costs.needs_input and r.last <= k]


def records_of_several_stages_are_closed(phases: Phases) -> Iterable[Relation]:
    """Nothing within a record of several stages runs: ``recorded + Fc + Fn <= 1``."""
    return (
        phases.recorded(k, several) + phases.makes_output(k, j) <= 1
        for k, j in phases.turns
        if j < k and (several := [r for r in phases.records.covering(j) if r.stage < r.last <= k])
    )


def joined_phases_are_empty(phases: Phases) -> Iterable[Relation]:
    """No stage runs in a phase that does not happen: ``Fa + joined``, ``Fc + Fn + joined <= 1``."""
    for k, j in phases.turns:
        if phases.records.crossing(k):
            starting, joined = phases.records.starting(j), phases.is_joined(k)
            yield phases.total("keep_all", k, starting) + joined <= 1
            yield phases.makes_output(k, j) + joined <= 1


def activations_carried_to_next_phase(phases: Phases) -> Iterable[Relation]:
    """A phase starts with the activations the one before left, or fewer if discards are allowed.

    ``stored[k - 1, i] <= left[k, i]``, with ``=`` under Table 1. As nothing stored is less
    than 0, this says, too, that ``Fn`` and discards remove only what is there.
    """
    return (
        _carried(phases, phases.value("activation_stored", k - 1, i), phases.left(k, i))
        for k, i in phases.turns
        if 0 < i < k
    )


def saved_data_carried_to_next_phase(phases: Phases) -> Iterable[Relation]:
    """A phase starts with the saved data the one before left, or less if discards are allowed.

    ``stored[k - 1, i] <= saved_left[k, i]``, with ``=`` under Table 1; and only what is
    recorded is dropped.
    """
    return (
        _carried(phases, phases.total("saved_stored", k - 1, [r]), phases.saved_left(k, [r]))
        for k, r in records_left(phases)
    )


def _carried(phases: Phases, stored: LinearExpression, left: LinearExpression) -> Relation:
    return stored.equals(left) if phases.discards is Discards.TABLE1 else stored <= left


def records_left(phases: Phases) -> Iterator[tuple[int, Record]]:
    """Yield every phase with the records that may be there when it ends."""
    for k, i in phases.turns:
        yield from ((k, record) for record in phases.records.starting(i) if record.last < k)


def tape_keeps_inputs_between_phases(phases: Phases) -> Iterable[Relation]:
    """When a phase starts, no saved data lacks its input: ``ā^i <= a^i + ā^{i-1}``."""
    return (
        phases.total("saved_stored", k, needing)
        <= phases.value("activation_stored", k, i)
        + phases.total("saved_stored", k, phases.records.ending(i - 1))
        for k, i in phases.turns
        if i > 0 and k < len(phases.profile) - 1 and phases.discards is Discards.TAPE
        if (needing := _needing(phases, i, k))
    )


def tape_keeps_inputs_in_a_phase(phases: Phases) -> Iterable[Relation]:
    """A sweep takes no input from saved data: ``ā^i <= a^i + ā^{i-1}`` when it ends.

    What is dropped when the phase ends counts as there until then.
    """
    return (
        phases.recorded(k, needing)
        <= phases.left(k, i) + phases.saved_left(k, phases.records.ending(i - 1))
        for k, i in phases.turns
        if i > 0 and phases.discards is Discards.TAPE and (needing := _needing(phases, i, k))
    )


def skips_are_stored_with_what_has_them(phases: Phases) -> Iterable[Relation]:
    """A skip is in memory while anything that has it is: ``skip_stored >= is stored``, for each."""
    return (
        phases.value("skip_stored", k, j, v) >= is_stored
        for k, j in phases.moments
        for v in range(len(phases.profile.skips))
        for is_stored in phases.having(k, j, v)
    )


def environments_are_saved_for_later_runs(phases: Phases) -> Iterable[Relation]:
    """A stage that runs in a phase runs again in all phases before: ``runs_again >= runs``.

    The first phase is the exception: there only the second of two runs counts.
    """
    last = len(phases.profile) - 1
    for i in phases.with_environment:
        for k in range(i, last + 1):
            again = phases.value("runs_again", k, i)
            yield again >= phases.value("runs_again", k - 1, i)
            if k == last:
                yield again >= phases.runs(k, i) - 1
            else:
                yield again >= phases.total("keep_all", k, phases.records.covering(i))
                yield again >= phases.makes_output(k, i)


def memory_of_forwards(phases: Phases) -> Iterable[Relation]:
    """At every stage's turn, memory is within the budget; see `Phases.forward_memory`."""
    return (phases.forward_memory(k, j).fits() for k, j in phases.turns)


def memory_of_recordings(phases: Phases) -> Iterable[Relation]:
    """While a stage is recorded that runs again, memory is within the budget, too.

    See `Phases.recording_memory`.
    """
    return (phases.recording_memory(k, j).fits() for k, j in phases.turns if phases.reruns)


def memory_of_backwards(phases: Phases) -> Iterable[Relation]:
    """While a backward runs, memory is within the budget; see `Phases.backward_memory`."""
    return (phases.backward_memory(k).fits() for k in range(len(phases.profile)))


CONSTRAINTS: Final[tuple[Group, ...]] = (
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
    environments_are_saved_for_later_runs,
    memory_of_forwards,
    memory_of_recordings,
    memory_of_backwards,
)
"""All constraint groups of a chain, in the order of reading."""
