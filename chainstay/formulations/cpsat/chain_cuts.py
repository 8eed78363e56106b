"""Cuts of the program of a chain: each makes the search quick and leaves an optimal schedule.

The conditions under which they hold are in `chainstay.formulations.chain.exactness_conditions`.
"""

from __future__ import annotations

from chainstay.formulations.chain.exactness_conditions import (
    are_sweep_cuts_exact,
    may_record_and_rerun,
)
from chainstay.formulations.cpsat.chain_variables import FORMS, ChainVariables, TimePoint
from chainstay.schedule import Discards

__all__ = ["add_cuts"]

_, _KEEP_INPUT, _ = FORMS


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
    may_rerun = may_record_and_rerun(variables.profile, variables.discards)
    forms = variables.made if may_rerun else variables.runs
    for k, j in variables.turns:
        variables.model.add_at_most_one(forms(k, j))


def first_sweep_runs_every_stage(variables: ChainVariables) -> None:
    """Nothing but ``a^0`` is there at first."""
    first = variables.phases[0]
    for j in variables.phases:
        variables.model.add_bool_or(variables.runs(first, j))


def saved_data_stays(variables: ChainVariables) -> None:
    """``ā^i`` is never thrown away ([BEHJS24], Lemma 4.6), so it is recorded once."""
    for j in variables.phases:
        variables.model.add_exactly_one(
            variables.kept(k, record)
            for k in variables.phases
            for record in variables.fitting(k, variables.records.covering(j))
        )
    for k, i in variables.turns:
        for record in variables.fitting(k - 1, variables.records.starting(i)):
            variables.model.add_implication(
                variables.recorded(TimePoint.TURN, k, record),
                variables.recorded(TimePoint.START, k - 1, record),
            )


def kept_inputs_stay(variables: ChainVariables) -> None:
    """``Fc`` keeps its input for a later phase, itself or inside ``ā^{j-1}``."""
    for k, j in variables.turns:
        if 0 < j < k:
            variables.model.add_bool_or(
                ~variables.ran(_KEEP_INPUT, k, j), *variables.holding(TimePoint.START, k - 1, j)
            )


def sweeps_are_unbroken(variables: ChainVariables) -> None:
    """The stages that run in phase k are ``s .. k``, all above what is stored at its start."""
    for k, j in variables.turns:
        runs = variables.runs(k, j)
        covering = variables.fitting(k, variables.records.covering(j))
        variables.model.add_at_most_one(
            *(variables.recorded(TimePoint.START, k, record) for record in covering), *runs
        )
        if j < k:
            after = variables.stored(TimePoint.START, k, j + 1)
            variables.model.add_at_most_one(after, *runs)
            for run in runs:
                variables.model.add_bool_or(~run, *variables.runs(k, j + 1))
