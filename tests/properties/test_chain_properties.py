"""What must hold for every chain: random ones, the same at every run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, InfeasibleBudgetError, Schedule, least_budget, simulate
from strategies import chains

MANY = settings(max_examples=1_000)
ONE_BYTE_SLOTS = DP(slots=10**6)


@MANY
@given(chains(), st.integers(0, 150))
@pytest.mark.long
def test_step_functions_agree_with_the_dense_table_and_the_referee(
    profile: ChainProfile, extra: int
) -> None:
    budget = least_budget(profile) + extra
    exact, dense = DP()(profile, budget), ONE_BYTE_SLOTS(profile, budget)
    replay = simulate(profile, exact.schedule)
    assert exact.makespan == dense.makespan == replay.makespan
    assert simulate(profile, dense.schedule).makespan == dense.makespan
    assert replay.peak_bytes <= budget
    assert len(exact.schedule) <= len(profile) * (len(profile) + 1)


@MANY
@given(chains(), st.data())
@pytest.mark.long
def test_curve_is_a_falling_staircase_through_the_optima(
    profile: ChainProfile, data: st.DataObject
) -> None:
    curve = DP().curve(profile)
    assert (curve.budgets[1:] > curve.budgets[:-1]).all()
    assert (curve.makespans[1:] < curve.makespans[:-1]).all()
    assert curve.budgets[0] == least_budget(profile)
    assert curve.makespans[-1] == profile.least_time
    assert curve.budgets[-1] <= simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    corner = data.draw(st.integers(0, len(curve) - 1))
    budget = int(curve.budgets[corner])
    replay = simulate(profile, curve.schedule(budget))
    assert replay.makespan == curve.makespans[corner] == curve.makespan(budget)
    assert replay.peak_bytes <= budget
    if corner:
        assert DP()(profile, budget - 1).makespan == curve.makespans[corner - 1]


@pytest.mark.long
@settings(max_examples=300)
@given(chains(), st.integers(0, 150), st.integers(2, 10**6), st.integers(2, 10**6))
def test_scaling_sizes_or_times_scales_the_answer(
    profile: ChainProfile, extra: int, sizes: int, times: int
) -> None:
    budget = least_budget(profile) + extra
    makespan = DP()(profile, budget).makespan
    scaled = _scaled(profile, sizes=sizes, times=times)
    assert DP()(scaled, budget * sizes).makespan == makespan * times
    assert DP()(scaled, budget * sizes + sizes - 1).makespan == makespan * times
    assert least_budget(scaled) == least_budget(profile) * sizes


@pytest.mark.long
@settings(max_examples=300)
@given(chains())
def test_required_is_the_exact_threshold(profile: ChainProfile) -> None:
    required = least_budget(profile)
    with pytest.raises(InfeasibleBudgetError, match=f"{required} bytes") as caught:
        DP()(profile, required - 1)
    assert (caught.value.budget, caught.value.required) == (required - 1, required)
    assert simulate(profile, DP()(profile, required).schedule).peak_bytes == required


@pytest.mark.long
@settings(max_examples=300)
@given(chains(), st.integers(0, 150), st.integers(1, 40))
def test_slots_bracket_the_optimum_whatever_their_number(
    profile: ChainProfile, extra: int, slots: int
) -> None:
    budget = least_budget(profile) + extra
    coarse, exact = DP(slots=slots)(profile, budget), DP()(profile, budget)
    assert coarse.lower_bound <= exact.makespan <= coarse.makespan
    replay = simulate(profile, coarse.schedule)
    assert replay.makespan == coarse.makespan
    assert replay.peak_bytes <= budget


@settings(max_examples=150)
@given(chains(), st.integers(1, 40))
def test_a_curve_on_slots_lies_on_or_above_the_exact_one(profile: ChainProfile, slots: int) -> None:
    exact, coarse = DP().curve(profile), DP(slots=slots).curve(profile)
    for budget, makespan in zip(coarse.budgets.tolist(), coarse.makespans.tolist(), strict=True):
        assert makespan >= exact.makespan(budget)
        replay = simulate(profile, coarse.schedule(budget))
        assert replay.makespan == makespan
        assert replay.peak_bytes <= budget


def _scaled(profile: ChainProfile, *, sizes: int, times: int) -> ChainProfile:
    return ChainProfile(
        input_bytes=profile.input_bytes * sizes,
        input_gradient_bytes=profile.input_gradient_bytes * sizes,
        stages=tuple(
            replace(
                stage,
                forward_time=stage.forward_time * times,
                backward_time=stage.backward_time * times,
                output_bytes=stage.output_bytes * sizes,
                saved_bytes=stage.saved_bytes * sizes,
                gradient_bytes=stage.gradient_bytes * sizes,
                forward_overhead_bytes=stage.forward_overhead_bytes * sizes,
                backward_overhead_bytes=stage.backward_overhead_bytes * sizes,
            )
            for stage in profile.stages
        ),
        skips=tuple(
            replace(skip, bytes=skip.bytes * sizes, gradient_bytes=skip.gradient_bytes * sizes)
            for skip in profile.skips
        ),
    )
