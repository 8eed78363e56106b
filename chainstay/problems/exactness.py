"""Conditions on a chain under which narrow families of schedules contain an optimal one.

They rest on exhaustive search over about two thousand random chains of up to six stages,
not on a proof; ``tests/agreement/test_mip_chain.py`` repeats a part of that and holds the
counter-examples that the conditions leave out. Chains with options, costs by kind of run or
records of several stages need more of every option and kind; those conditions were held to
exhaustive search on some hundred thousand chains, and to the model by phases on hundreds
(``tests/agreement/test_options_formulations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from chainstay.profiles import ChainProfile, StageOption
from chainstay.profiles.stage import undominated
from chainstay.schedule import Discards


def is_complete(profile: ChainProfile, discards: Discards) -> bool:
    """Return whether a single-sweep schedule is a fastest one of all that `discards` allows.

    Except for free discards, whether a weakly persistent one is, too.

    It does when no gradient is larger than its activation and no output larger than what
    is saved with it (δ ≤ a ≤ ā) and, unless a tape keeps the input of all that is
    recorded, ``o_f <= o_b + δ`` of the input. Else stages may run out of order between two
    backwards: for a large gradient, for saved data that stands in for a larger activation,
    or to have a hungry forward done before memory fills. For free discards the statement
    rests on exhaustive search alone. With skips, which make what is stored beside them
    cheaper, nothing is claimed, nor with environments.

    Of every option, besides: it needs its input; its forward takes no less time, and together
    with what it saves no less memory, than running its stages without keeping them (else a
    record is made as a cheap forward, and dropped); its overheads, too, are covered. And a run
    beforehand that makes a first run a repetition gains nothing; under Table 1, nor does
    keeping a first run rather than a later one. For free discards nothing is claimed then.
    """
    if profile.skips or profile.has_environments:
        return False
    if not (_has_small_gradients(profile) and are_records_full(profile)):
        return False
    if discards is Discards.FREE and not profile.is_plain:
        return False
    is_tape_enough = profile.is_plain or not _does_warming_up_pay(profile)
    return is_tape_enough and (discards is Discards.TAPE or never_needs_a_rerun(profile))


def _has_small_gradients(profile: ChainProfile) -> bool:
    return all(
        profile.gradient_bytes(i) <= profile.activation_bytes(i) for i in range(len(profile) + 1)
    )


def are_records_full(profile: ChainProfile) -> bool:
    """Return whether no record is cheaper to make than what is in it, and all need their input."""
    return all(
        option.needs_input
        and option.saved_bytes >= profile.activation_bytes(i + option.stages)
        and all(_is_forward_full(profile, i, option, first=first) for first in (True, False))
        for i, option in _options(profile)
    )


def _is_forward_full(profile: ChainProfile, i: int, option: StageOption, *, first: bool) -> bool:
    """Return whether a forward under an option needs all that it takes to drop its result."""
    run, span = option.run(first=first), range(i, i + option.stages)
    dropped = {j: profile.stages[j].dropped(first=first) for j in span}
    return run.time >= sum(cost.time for cost in dropped.values()) and all(
        option.saved_bytes + run.overhead_bytes
        >= profile.activation_bytes(j) * (j > i)
        + profile.activation_bytes(j + 1)
        + dropped[j].overhead_bytes
        for j in span
    )


def never_needs_a_rerun(profile: ChainProfile) -> bool:
    """Return whether a backward always needs the memory of the forwards before it.

    And whether making a record in a first run is no bargain, to be used as input only.
    """
    return all(
        max(run.overhead_bytes for run in (*profile.stages[i].dropped_runs, *option.runs))
        <= option.backward_overhead_bytes + profile.gradient_bytes(i)
        and _does_postponing_cost_nothing(profile, i, option)
        for i, option in _options(profile)
    )


def _does_warming_up_pay(profile: ChainProfile) -> bool:
    """Return whether a first run that is dropped may make keeping cheaper, in time or memory."""
    return any(
        first.total_time > _dropped_time(profile, i, option, first=True) + again.total_time
        or first.overhead_bytes > again.overhead_bytes
        for i, option in _options(profile)
        for first, again in (option.runs,)
    ) or any(
        first.overhead_bytes > again.overhead_bytes
        for first, again in (stage.dropped_runs for stage in profile.stages)
    )


def _does_postponing_cost_nothing(profile: ChainProfile, i: int, option: StageOption) -> bool:
    """Return whether keeping a first run is no cheaper than dropping it and keeping a later one."""
    first, again = option.runs
    kept_first = first.total_time + _dropped_time(profile, i, option, first=False)
    kept_later = again.total_time + _dropped_time(profile, i, option, first=True)
    return kept_first >= kept_later


def _dropped_time(profile: ChainProfile, i: int, option: StageOption, *, first: bool) -> int:
    """Return the time of the stages of an option, run without keeping them."""
    span = profile.stages[i : i + option.stages]
    return sum(stage.dropped(first=first).time for stage in span)


def _options(profile: ChainProfile) -> Iterator[tuple[int, StageOption]]:
    """Yield every option that none replaces, with its first stage."""
    for i, stage in enumerate(profile.stages):
        options = stage.all_options
        yield from ((i, options[k]) for k in undominated(options))
