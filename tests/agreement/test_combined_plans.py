"""Combined plans of measured chains: never behind either way alone, and as the referees say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstay.applying import moved_profile
from chainstay.errors import (
    ChainstayError,
    HostBudgetError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.fitting.strategies.combined import solve_combined
from chainstay.fitting.strategies.offloaded import solve_offloaded
from chainstay.planning import solve_measured
from chainstay.planning.questions import plain_peak
from chainstay.profiles import ChainProfile, Link
from chainstay.report.timeline import build_timeline
from chainstay.runtime.execute.items import bounding_chain, standing_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import program_of
from chainstay.solution import Solution
from chainstay.solve.offload import solve_offload
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.simulate import simulate
from measured_models import measured_sample
from offload_support import gpt_case
from runtime_support import random_persistent
from strategies import chains
from zoo import build


@cache
def extracted(family: str) -> Measurement:
    """A model of the zoo in few stages; tensors are shared between them."""
    return measured_sample(build(family), granularity=10).costs


MODELS: dict[str, Callable[[], Measurement]] = {
    "GPT-2": lambda: gpt_case().measured,
    "U-Net": partial(extracted, "U-Net"),
    "BERT": partial(extracted, "BERT"),
    "ConvNeXt": partial(extracted, "ConvNeXt"),
}


def link_for(measured: Measurement) -> Link:
    """All that is saved takes as long to move as a step takes to compute."""
    profile = measured.movable_profile
    moved = sum(stage.saved_bytes for stage in profile.stages)
    return Link(bandwidth=Fraction(moved, profile.least_time), latency=1000)


def either_alone(measured: Measurement, budget: int, link: Link) -> dict[str, Solution]:
    """Plans that recompute only, and that offload only, as far as there are any."""
    found: dict[str, Solution] = {}
    ways: dict[str, Callable[[], Solution]] = {
        "recompute": lambda: solve_measured(measured, budget),
        "offload": lambda: solve_offloaded(measured, budget, link=link, method="heuristics"),
    }
    for name, solve in ways.items():
        try:
            found[name] = solve()
        except ChainstayError:
            continue
    return found


def least_budget(measured: Measurement) -> int:
    """In which recomputing only is known to fit."""
    with pytest.raises(InfeasibleBudgetError) as info:
        solve_measured(measured, 1)
    return info.value.required


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_offloading_alone_takes_what_hooks_take_the_computing_thread(model: str) -> None:
    """The program list for the stages' own times, less what is never away, by the schedule's."""
    measured = MODELS[model]()
    link, least = link_for(measured), measured.offload_profile.required_bytes
    budget = least + (plain_peak(measured) - least) // 4
    solution = solve_offloaded(measured, budget, link=link, method="heuristics")
    bare = solve_offload(measured.offload_profile, budget, link=link, method="heuristics")
    kept = iter(bare.schedule)
    assert all(op in kept for op in solution.schedule), "the same operations in the same order"
    assert [op for op in solution.schedule if not op.kind.is_transfer] == [
        op for op in bare.schedule if not op.kind.is_transfer
    ]
    hooks = sum(cost.hooks_time for cost in measured.account.stages)
    assert bare.lower_bound <= solution.makespan <= bare.makespan + hooks
    course = build_timeline(
        solution, moved_profile(solution, measured.profile_for(program_of(solution)))
    )
    assert course is not None
    assert course.makespan == solution.makespan
    assert course.peak_bytes <= solution.peak_bytes <= budget


def whole(measured: Measurement) -> Measurement:
    """The same chain, whose stages are kept whole: plans that move data know no options."""
    account, chain = measured.account.without_options(), replace(measured.chain, options={})
    return replace(measured, account=account, chain=chain)


@pytest.mark.long
@pytest.mark.parametrize("share", [pytest.param(0.0, marks=pytest.mark.long), 0.1, 0.35])
@pytest.mark.parametrize("model", MODELS)
def test_never_behind_either_way_alone(model: str, share: float) -> None:
    measured = whole(MODELS[model]())
    link, least = link_for(measured), least_budget(measured)
    budget = least + int((plain_peak(measured) - least) * share)
    alone = either_alone(measured, budget, link)
    assert "recompute" in alone
    combined = solve_combined(measured, budget, link=link, known=alone.values())
    for solution in alone.values():
        assert combined.makespan <= solution.makespan
    assert combined.lower_bound <= combined.makespan
    assert combined.peak_bytes <= budget
    overheads = measured.overheads_for(combined.schedule)
    if combined.host_bytes == 0:  # then the referee of chains knows all of it
        own = measured.profile_for(combined.schedule)
        replay = simulate(own, combined.schedule, discards="free", overheads=overheads)
        assert replay.makespan == combined.makespan
        assert replay.peak_bytes <= combined.peak_bytes


@pytest.mark.long
def test_host_memory_that_is_enough_is_named() -> None:
    """Where recomputing alone does not fit: what is refused for little, fits in what is told."""
    measured = whole(gpt_case().measured)
    link = link_for(measured)
    budget = least_budget(measured)
    little = Link(bandwidth=link.bandwidth, latency=link.latency, capacity=1000)
    with pytest.raises(HostBudgetError, match="host_budget is 1000 bytes") as info:
        solve_combined(measured, budget, link=little)
    enough = Link(bandwidth=link.bandwidth, latency=link.latency, capacity=info.value.required)
    assert solve_combined(measured, budget, link=enough).host_bytes <= info.value.required


@pytest.mark.long
def test_a_budget_in_which_nothing_fits() -> None:
    measured = gpt_case().measured
    with pytest.raises(SolverLimitError, match=r"every one needs .* or more"):
        solve_combined(measured, 1000, link=link_for(measured))


@given(profile=chains(), seed=st.integers(0, 10**6))
def test_items_and_what_stands_beside_them_are_the_whole_chain(
    profile: ChainProfile, seed: int
) -> None:
    """Without transfers, items, standing bytes and overheads need what the chain needs."""
    schedule = random_persistent(len(profile), seed)
    replay = simulate(profile, schedule, discards="free")
    bare = simulate(profile, schedule, discards="free", overheads=[0] * len(schedule))
    bares = [snapshot.during_bytes for snapshot in bare.timeline]
    own = [
        snapshot.during_bytes - bare for snapshot, bare in zip(replay.timeline, bares, strict=True)
    ]
    standing = standing_bytes(profile, schedule)
    overheads = [sum(both) for both in zip(own, standing, strict=True)]
    movable = bounding_chain(profile)
    question = partial(
        simulate_hybrid, movable, schedule, link=Link(bandwidth=1), overheads=overheads
    )
    found = question(budget=replay.peak_bytes)
    assert found.makespan == replay.makespan
    assert found.peak_bytes == max(snapshot.during_bytes for snapshot in replay.timeline)
    with pytest.raises(InvalidScheduleError):
        question(budget=replay.peak_bytes - 1)
    assert simulate(movable, schedule, discards="free").peak_bytes <= replay.peak_bytes
