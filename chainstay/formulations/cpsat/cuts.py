"""What need not be said, but makes the search quick; each cut leaves an optimal schedule.

Which hold when is the theory of `chainstay.formulations.domains`.
"""

from __future__ import annotations

from chainstay.formulations.cpsat.moments import FORMS, Data, Moment, Moments
from chainstay.formulations.domains import are_sweep_cuts_exact, may_record_and_rerun
from chainstay.schedule import Discards

__all__ = ["add_cuts"]

_KEEP_ALL, _KEEP_INPUT, _DROP_INPUT = FORMS


def add_cuts(of: Moments) -> None:
    """State every cut that is exact for the chain."""
    are_sweeps = are_sweep_cuts_exact(of.profile, of.discards)
    stages_run_in_one_form(of)
    first_sweep_runs_every_stage(of)
    if are_sweeps or of.discards is Discards.TABLE1:
        saved_data_stays(of)
        kept_inputs_stay(of)
    if are_sweeps:
        sweeps_are_unbroken(of)


def stages_run_in_one_form(of: Moments) -> None:
    """One forward per turn; ``Fa`` before another, too, where recording and rerunning can pay."""
    forms = FORMS[1:] if may_record_and_rerun(of.profile, of.discards) else FORMS
    for k, j in of.turns:
        of.model.add_at_most_one(of.ran(form, k, j) for form in forms)


def first_sweep_runs_every_stage(of: Moments) -> None:
    """Nothing but ``a^0`` is there at first."""
    first = of.phases[0]
    for j in of.phases:
        of.model.add_bool_or(of.ran(form, first, j) for form in FORMS)


def saved_data_stays(of: Moments) -> None:
    """``ā^i`` is never thrown away ([BEHJS24], Lemma 4.6), so it is recorded once."""
    for j in of.phases:
        of.model.add_exactly_one(of.ran(_KEEP_ALL, k, j) for k in of.phases if k >= j)
    for k, i in of.turns:
        if i < k:
            of.model.add_implication(
                of.stored(Data.SAVED, Moment.TURN, k, i),
                of.stored(Data.SAVED, Moment.START, k - 1, i),
            )


def kept_inputs_stay(of: Moments) -> None:
    """``Fc`` keeps its input for a later phase, itself or inside ``ā^{j-1}``."""
    for k, j in of.turns:
        if 0 < j < k:
            of.model.add_bool_or(
                ~of.ran(_KEEP_INPUT, k, j),
                of.stored(Data.ACTIVATION, Moment.START, k - 1, j),
                of.stored(Data.SAVED, Moment.START, k - 1, j - 1),
            )


def sweeps_are_unbroken(of: Moments) -> None:
    """The stages that run in phase k are ``s .. k``, all above what is stored at its start."""
    for k, j in of.turns:
        of.model.add_at_most_one(
            of.stored(Data.SAVED, Moment.START, k, j), *(of.ran(form, k, j) for form in FORMS)
        )
        if j < k:
            runs = [of.ran(form, k, j) for form in FORMS]
            of.model.add_at_most_one(of.stored(Data.ACTIVATION, Moment.START, k, j + 1), *runs)
            for run in runs:
                of.model.add_bool_or(~run, *(of.ran(form, k, j + 1) for form in FORMS))
