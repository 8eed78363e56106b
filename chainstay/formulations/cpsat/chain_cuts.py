"""Cuts of the program of a chain: each makes the search quick and leaves an optimal schedule.

The conditions under which they hold are in `chainstay.formulations.chain.exactness_conditions`.
"""

from __future__ import annotations

from chainstay.formulations.chain.exactness_conditions import (
    are_sweep_cuts_exact,
    may_record_and_rerun,
)
from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, DataKind, TimePoint
from chainstay.schedule import Discards

__all__ = ["add_cuts"]

_KEEP_ALL, _KEEP_INPUT, _DROP_INPUT = FORMS


def add_cuts(variables: ChainVariables) -> None:
    """Add every cut that is exact for the chain."""
    are_sweeps = are_sweep_cuts_exact(variables.profile, variables.discards)
    stages_run_in_one_form(variables)
    first_sweep_runs_every_stage(variables)
    if are_sweeps or variables.discards is Discards.TABLE1:
        saved_data_stays(variables)
        kept_inputs_stay(variables)
    if are_sweeps:
        sweeps_are_unbroken(variables)


def stages_run_in_one_form(variables: ChainVariables) -> None:
    """A stage runs in one form per turn; ``Fa`` may come first where reruns can pay."""
    forms = FORMS[1:] if may_record_and_rerun(variables.profile, variables.discards) else FORMS
    for k, j in variables.turns:
        variables.model.add_at_most_one(variables.ran(form, k, j) for form in forms)


def first_sweep_runs_every_stage(variables: ChainVariables) -> None:
    """Nothing but ``a^0`` is there at first."""
    first = variables.phases[0]
    for j in variables.phases:
        variables.model.add_bool_or(variables.ran(form, first, j) for form in FORMS)


def saved_data_stays(variables: ChainVariables) -> None:
    """``ā^i`` is never thrown away ([BEHJS24], Lemma 4.6), so it is recorded once."""
    for j in variables.phases:
        variables.model.add_exactly_one(
            variables.ran(_KEEP_ALL, k, j) for k in variables.phases if k >= j
        )
    for k, i in variables.turns:
        if i < k:
            variables.model.add_implication(
                variables.stored(DataKind.SAVED, TimePoint.TURN, k, i),
                variables.stored(DataKind.SAVED, TimePoint.START, k - 1, i),
            )


def kept_inputs_stay(variables: ChainVariables) -> None:
    """``Fc`` keeps its input for a later phase, itself or inside ``ā^{j-1}``."""
    for k, j in variables.turns:
        if 0 < j < k:
            variables.model.add_bool_or(
                ~variables.ran(_KEEP_INPUT, k, j),
                variables.stored(DataKind.ACTIVATION, TimePoint.START, k - 1, j),
                variables.stored(DataKind.SAVED, TimePoint.START, k - 1, j - 1),
            )


def sweeps_are_unbroken(variables: ChainVariables) -> None:
    """The stages that run in phase k are ``s .. k``, all above what is stored at its start."""
    for k, j in variables.turns:
        variables.model.add_at_most_one(
            variables.stored(DataKind.SAVED, TimePoint.START, k, j),
            *(variables.ran(form, k, j) for form in FORMS),
        )
        if j < k:
            runs = [variables.ran(form, k, j) for form in FORMS]
            variables.model.add_at_most_one(
                variables.stored(DataKind.ACTIVATION, TimePoint.START, k, j + 1), *runs
            )
            for run in runs:
                variables.model.add_bool_or(
                    ~run, *(variables.ran(form, k, j + 1) for form in FORMS)
                )
