"""The settings of the method `DP` that are refused, and sizes that need some."""

from __future__ import annotations

import re

import pytest

from chainstay.dp import DP
from chainstay.dp.chain.fronts import ChainFronts
from chainstay.dp.recursion import Recursion
from chainstay.errors import InvalidProfileError, UnknownMethodError
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.validation.simulate import simulate


@pytest.mark.parametrize("slots", [0, -1, 1.5, True, "5", [5]])
def test_slots_that_are_no_positive_integer_are_refused(slots: object) -> None:
    text = re.escape(f"slots is {slots!r}, must be a positive integer or None")
    with pytest.raises(UnknownMethodError, match=text):
        DP(slots=slots)  # type: ignore[arg-type]


def test_slots_may_be_left_out_or_counted() -> None:
    assert str(DP(slots=None)) == "dp"
    assert str(DP(slots=5)) == "dp, 5 slots"


@pytest.mark.long
def test_sizes_beyond_exact_arithmetic_are_refused_and_slots_help() -> None:
    stage = Stage(forward_time=1, backward_time=1, output_bytes=2**47, saved_bytes=2**48)
    profile = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(stage,) * 130)
    recursion = Recursion.from_profile(profile)
    with pytest.raises(InvalidProfileError, match=r"130 stages in .* 64 bits; .*DP\(slots=500\)"):
        ChainFronts.all(recursion, recursion.keep_all_need, compiled=False)
    budget = recursion.keep_all_need // 2
    claim = DP(slots=500)(profile, budget)
    assert claim.makespan > profile.least_time
    assert simulate(profile, claim.schedule).peak_bytes <= budget


def test_a_byte_worth_days_overflows_nothing() -> None:
    both = StageOption(saved_bytes=0, first=RunCost(backward_time=1), stages=2)
    first = Stage(
        forward_time=2**47,
        backward_time=1,
        forward_overhead_bytes=11,
        output_bytes=1000,
        saved_bytes=1000,
        gradient_bytes=1000,
        options=(both,),
    )
    last = Stage(
        backward_time=2**48,
        backward_overhead_bytes=10_000,
        options=(StageOption(saved_bytes=1000, first=RunCost(time=2**47)),),
    )
    profile = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(first, last))
    assert str(DP()(profile, 10).schedule) == "Fa0.1 B0"
