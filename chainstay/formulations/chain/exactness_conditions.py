"""Conditions on a chain under which the model by phases contains an optimal schedule.

They rest on exhaustive search over about two thousand random chains of up to six stages,
not on a proof; ``tests/agreement/test_mip_chain.py`` repeats a part of that and holds the
counter-examples that the conditions leave out.
"""

from __future__ import annotations

from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards
from chainstay.solution import Family

__all__ = [
    "are_sweep_cuts_exact",
    "family_of",
    "is_complete",
    "may_record_and_rerun",
    "searched_family_name",
]


def is_complete(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether the model contains a fastest schedule of all that `discards` allows.

    It does when no gradient is larger than its activation and no output larger than what
    is saved with it (δ ≤ a ≤ ā) and, unless a tape keeps the input of all that is
    recorded, ``o_f <= o_b + δ`` of the input. Else stages may run out of order between two
    backwards: for a large gradient, for saved data that stands in for a larger activation,
    or to have a hungry forward done before memory fills. For free discards the statement
    rests on exhaustive search alone. With skips, which make what is stored beside them
    cheaper, nothing is claimed.
    """
    return (
        not profile.skips
        and _has_small_gradients(profile)
        and _is_output_saved(profile)
        and (discards is Discards.TAPE or _are_overheads_covered(profile))
    )


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
    return discards is Discards.TABLE1 and not (
        _is_output_saved(profile) and _are_overheads_covered(profile) and not profile.skips
    )


def are_sweep_cuts_exact(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether some optimal schedule runs, in each phase, one unbroken sweep.

    So it is for the optimum of an autograd tape when δ ≤ a ≤ ā, and for that of Table 1
    where the two are equal: when, besides, ``o_f <= o_b + δ`` of the input.
    """
    return discards is not Discards.FREE and is_complete(profile, discards)


def _has_small_gradients(profile: ChainProfile) -> bool:
    return all(
        profile.gradient_bytes(i) <= profile.activation_bytes(i) for i in range(len(profile) + 1)
    )


def _is_output_saved(profile: ChainProfile) -> bool:
    return all(stage.saved_bytes >= stage.output_bytes for stage in profile.stages)


def _are_overheads_covered(profile: ChainProfile) -> bool:
    return all(
        stage.forward_overhead_bytes <= stage.backward_overhead_bytes + profile.gradient_bytes(i)
        for i, stage in enumerate(profile.stages)
    )
