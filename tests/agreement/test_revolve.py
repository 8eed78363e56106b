"""The binomial closed form against the persistent dynamic program and exhaustive search."""

from __future__ import annotations

import pytest

from chainstay import DP, ChainProfile, Stage, simulate
from chainstay.baselines import revolve
from chainstay.baselines.revolve import equal_slots
from chainstay.dp.revolve import Revolve
from chainstay.problems.binomial import binomial_schedule, least_forwards
from chainstay.validation import search

OUTPUT, GRADIENT = 10, 8


def homogeneous(stages: int, slots: int) -> tuple[ChainProfile, int]:
    """A chain that is just exact at `slots`, and the largest budget with that many."""
    stage = Stage(
        forward_time=7,
        backward_time=11,
        output_bytes=OUTPUT,
        saved_bytes=OUTPUT * (slots + 1),
        gradient_bytes=GRADIENT,
        forward_overhead_bytes=slots % 3 * 10,
        backward_overhead_bytes=3,
    )
    base = stage.saved_bytes + GRADIENT + max(stage.forward_overhead_bytes, GRADIENT + 3)
    profile = ChainProfile(
        input_bytes=OUTPUT, input_gradient_bytes=GRADIENT, stages=(stage,) * stages
    )
    return profile, OUTPUT * (slots + 2) + base - 1


def check(stages: int, slots: int) -> None:
    profile, budget = homogeneous(stages, slots)
    claim = Revolve()(profile, budget)
    optimum = DP()(profile, budget).makespan
    assert claim.makespan == claim.lower_bound == optimum
    assert optimum == 7 * least_forwards(stages, slots) + 11 * stages
    replay = simulate(profile, claim.schedule)
    assert replay.makespan == optimum
    assert replay.peak_bytes <= budget
    baseline = revolve(stages, equal_slots(profile, budget))
    assert simulate(profile, baseline).makespan == optimum


@pytest.mark.parametrize("stages", range(2, 13))
def test_equal_to_the_dynamic_program_with_all_slot_counts(stages: int) -> None:
    for slots in range(1, stages + 1):
        check(stages, slots)


@pytest.mark.parametrize(("stages", "slots"), [(40, 1), (50, 3), (70, 10), (90, 89)])
@pytest.mark.long
def test_equal_to_the_dynamic_program_on_long_chains(stages: int, slots: int) -> None:
    check(stages, slots)


@pytest.mark.parametrize(("stages", "slots"), [(3, 1), (4, 2), (5, 1), (5, 2), (6, 3)])
def test_equal_to_exhaustive_search(stages: int, slots: int) -> None:
    profile, budget = homogeneous(stages, slots)
    assert search.optimum(profile, budget).makespan == Revolve()(profile, budget).makespan


@pytest.mark.parametrize("stages", range(2, 40, 3))
def test_baseline_written_apart_has_as_many_forwards(stages: int) -> None:
    for slots in range(1, stages + 1):
        forwards = [
            sum(op.kind.is_forward for op in schedule)
            for schedule in (binomial_schedule(stages, slots), revolve(stages, slots))
        ]
        assert forwards == [least_forwards(stages, slots)] * 2


def test_one_more_byte_lets_saved_data_of_two_stages_stay() -> None:
    profile, budget = homogeneous(6, 2)
    assert DP()(profile, budget + 1).makespan < Revolve()(profile, budget).makespan
