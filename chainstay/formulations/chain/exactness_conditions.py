"""Conditions on a chain under which the model by phases is complete, or may leave rows out.

`chainstay.problems.exactness` has the conditions.
"""

from __future__ import annotations

from chainstay.problems.exactness import are_records_full, is_complete, never_needs_a_rerun
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards
from chainstay.solution import Family


def family_of(profile: ChainProfile, discards: Discards) -> Family:
    """Return the schedules that an optimum of the model is an optimum of."""
    return Family.ALL if is_complete(profile, discards) else Family.SINGLE_SWEEP


def searched_family_name(profile: ChainProfile, discards: Discards) -> str:
    """Return the name that `InfeasibleBudgetError` gives the schedules of which none fits.

    Those of Table 1 are simply all; other rules for discards are worth a word.
    """
    family = family_of(profile, discards)
    return family if family is not Family.ALL or discards is Discards.TABLE1 else discards


def may_record_and_rerun(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether ``Fa`` and then ``Fn`` of one stage in one phase can pay.

    Under Table 1 that is the only way to be rid of an input while what was made from it
    stays. It can pay where saved data is smaller than the output in it, or where a forward
    needs more memory than the backward that has to wait for it, so never when a ≤ ā and
    ``o_f <= o_b + δ`` of the input. With skips nothing is claimed.
    """
    if discards is not Discards.TABLE1:
        return False
    if not profile.is_plain:
        return not is_complete(profile, discards)
    return bool(profile.skips) or not (are_records_full(profile) and never_needs_a_rerun(profile))


def may_discard_in_a_phase(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether discards in the middle of a phase can pay.

    Free ones can. Those of a tape can wait for its end, unless an option needs no input, or is
    a cheaper forward than one that is not kept, so that its record is made and dropped.
    """
    is_open = not profile.is_plain and not is_complete(profile, discards)
    return discards is Discards.FREE or (discards is Discards.TAPE and is_open)


def are_sweep_cuts_exact(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether some optimal schedule runs, in each phase, one unbroken sweep.

    So it is for the optimum of an autograd tape when δ ≤ a ≤ ā, and for that of Table 1
    where the two are equal: when, besides, ``o_f <= o_b + δ`` of the input.
    """
    return discards is not Discards.FREE and is_complete(profile, discards)
