"""Homogeneous chains: numbers of [GW00], and what `Revolve` refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chainstay import (
    ChainProfile,
    InfeasibleBudgetError,
    InvalidProfileError,
    Skip,
    Stage,
    simulate,
)
from chainstay.dp.revolve import Revolve
from chainstay.errors import UnknownMethodError
from chainstay.problems.binomial import binomial_schedule, least_forwards

STAGE = Stage(forward_time=3, backward_time=5, output_bytes=10, saved_bytes=35, gradient_bytes=7)
CHAIN = ChainProfile(input_bytes=10, input_gradient_bytes=7, stages=(STAGE,) * 6)


@pytest.mark.parametrize(
    ("stages", "slots", "forwards"),
    [(1, 0, 1), (2, 1, 3), (10, 1, 55), (10, 2, 30), (10, 3, 25), (10, 9, 19), (56, 5, 196)],
)
def test_least_forwards_by_hand(stages: int, slots: int, forwards: int) -> None:
    assert least_forwards(stages, slots) == forwards
    schedule = binomial_schedule(stages, slots)
    assert sum(op.kind.is_forward for op in schedule) == forwards


def test_a_million_stages_take_no_time() -> None:
    assert least_forwards(10**6, 20) == 9 * 10**6 - 1_184_040


@pytest.mark.parametrize(("stages", "slots"), [(0, 1), (2, 0), (1, -1)])
def test_nothing_to_reverse_or_to_reverse_with(stages: int, slots: int) -> None:
    with pytest.raises(UnknownMethodError, match=f"{stages} stages with {slots} slots"):
        binomial_schedule(stages, slots)
    with pytest.raises(UnknownMethodError, match=f"{stages} stages with {slots} slots"):
        least_forwards(stages, slots)


def test_required_is_the_exact_threshold() -> None:
    with pytest.raises(InfeasibleBudgetError) as caught:
        Revolve()(CHAIN, 1)
    required = caught.value.required
    assert simulate(CHAIN, Revolve()(CHAIN, required).schedule).peak_bytes == required
    with pytest.raises(InfeasibleBudgetError):
        Revolve()(CHAIN, required - 1)


def test_bound_is_modest_where_saved_data_of_two_stages_fits() -> None:
    base = 10 + 35 + 2 * 7
    assert Revolve()(CHAIN, base + 34).lower_bound > CHAIN.least_time
    assert Revolve()(CHAIN, base + 35).lower_bound == CHAIN.least_time


@pytest.mark.parametrize(
    ("chain", "text"),
    [
        (replace(CHAIN, stages=(*CHAIN.stages, Stage())), r"stages\[6\] differs"),
        (replace(CHAIN, input_bytes=11), "input has 11 bytes"),
        (replace(CHAIN, stages=(replace(STAGE, saved_bytes=9),) * 2), "saved_bytes is 9"),
    ],
)
def test_other_chains_are_refused(chain: ChainProfile, text: str) -> None:
    with pytest.raises(InvalidProfileError, match=text):
        Revolve()(chain, 10**6)


def test_names_of_stages_do_not_matter() -> None:
    stages = tuple(replace(STAGE, name=str(number)) for number in range(3))
    assert Revolve()(replace(CHAIN, stages=stages), 90).makespan > 0


def test_chains_with_skips_are_not_homogeneous() -> None:
    chain = replace(CHAIN, skips=(Skip(first=1, last=3, bytes=2),))
    with pytest.raises(InvalidProfileError, match=r"has 1 skips: not a homogeneous .* DP\(\)"):
        Revolve()(chain, 1_000)
