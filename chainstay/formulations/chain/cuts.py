"""Valid inequalities that make the model by phases quick to solve, and where each is exact.

A cut may remove optima as long as one remains. Every cut names the reason why one does;
`exact_cuts` says for which chains the reason holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chainstay.formulations.chain.constraints import Group, records_left
from chainstay.formulations.chain.exactness_conditions import are_sweep_cuts_exact
from chainstay.formulations.chain.phases import Phases
from chainstay.formulations.integer_program import Relation, sum_of
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards


def one_form_per_forward(phases: Phases) -> Iterable[Relation]:
    """A stage runs forward at most once in a phase: ``Fa + Fc + Fn <= 1``.

    Where reruns can pay, ``Fc + Fn <= 1`` alone: ``Fa`` may come first.
    """
    forms = phases.makes_output if phases.reruns else phases.runs
    return (forms(k, j) <= 1 for k, j in phases.turns if j < k)


def saved_data_stored_once(phases: Phases) -> Iterable[Relation]:
    """No stage is recorded while its saved data is stored: ``recorded <= 1``.

    More than a cut where a stage has several records: `build` always states it there.
    """
    return (phases.recorded(k, phases.records.covering(i)) <= 1 for k, i in phases.turns)


def first_sweep_runs_every_stage(phases: Phases) -> Iterable[Relation]:
    """Nothing but ``a^0`` is there at first: ``runs[n-1, j] >= 1``."""
    last = len(phases.profile) - 1
    return (phases.runs(last, j) >= 1 for j in range(last))


def every_stage_is_recorded_once(phases: Phases) -> Iterable[Relation]:
    """Saved data stays until its backward, so no stage is recorded twice: ``sum_k Fa = 1``."""
    n, covering = len(phases.profile), phases.records.covering
    return (
        sum_of(phases.total("keep_all", k, covering(j)) for k in range(j, n)).equals(1)
        for j in range(n)
    )


def saved_data_stays(phases: Phases) -> Iterable[Relation]:
    """Saved data is never thrown away ([BEHJS24], Lemma 4.6): ``stored[k-1, i] >= recorded``."""
    return (
        phases.total("saved_stored", k - 1, [record]) >= phases.recorded(k, [record])
        for k, record in records_left(phases)
    )


def kept_input_stays(phases: Phases) -> Iterable[Relation]:
    """An input is kept for a later phase: ``Fc[k, j] <= stored a^j + stored ā^{j-1}`` in k - 1."""
    return (
        phases.value("keep_input", k, j)
        <= phases.value("activation_stored", k - 1, j)
        + phases.total("saved_stored", k - 1, phases.records.ending(j - 1))
        for k, j in phases.turns
        if 0 < j < k
    )


def sweep_reaches_the_backward(phases: Phases) -> Iterable[Relation]:
    """A sweep that starts goes on to stage k: ``runs[k, j] <= runs[k, j+1]``."""
    return (phases.runs(k, j) <= phases.runs(k, j + 1) for k, j in phases.turns if j < k)


def sweep_starts_above_what_is_stored(phases: Phases) -> Iterable[Relation]:
    """No stage runs whose output is stored: ``runs[k, j] + stored[k, j+1] <= 1``."""
    return (
        phases.runs(k, j) + phases.value("activation_stored", k, j + 1) <= 1
        for k, j in phases.turns
        if j < k < len(phases.profile) - 1
    )


def sweep_starts_above_what_is_recorded(phases: Phases) -> Iterable[Relation]:
    """No stage runs whose saved data is stored: ``runs[k, j] + stored ā^j <= 1``."""
    return (
        phases.runs(k, j) + phases.total("saved_stored", k, phases.records.covering(j)) <= 1
        for k, j in phases.turns
        if j < k < len(phases.profile) - 1
    )


_ALWAYS: Final[tuple[Group, ...]] = (
    one_form_per_forward,
    saved_data_stored_once,
    first_sweep_runs_every_stage,
)
_TABLE1: Final[tuple[Group, ...]] = (
    every_stage_is_recorded_once,
    saved_data_stays,
    kept_input_stays,
)
_SWEEPS: Final[tuple[Group, ...]] = (
    sweep_reaches_the_backward,
    sweep_starts_above_what_is_stored,
    sweep_starts_above_what_is_recorded,
)
CUTS: Final[tuple[Group, ...]] = (*_ALWAYS, *_TABLE1, *_SWEEPS)
"""All cuts."""


def exact_cuts(profile: ChainProfile, discards: Discards) -> tuple[Group, ...]:
    """Return the cuts that leave an optimal schedule of `profile` in the model.

    All of them where `are_sweep_cuts_exact`. Elsewhere, nothing is ever worth making
    twice, the first sweep runs every stage, and what only restates that Table 1 has no
    discards holds under it.
    """
    if are_sweep_cuts_exact(profile, discards):
        return CUTS
    return (*_ALWAYS, *(_TABLE1 if discards is Discards.TABLE1 else ()))
