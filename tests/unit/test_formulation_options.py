"""Programs by phases of chains with options: records, conditions, schedules in and out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.chain.exactness_conditions import (
    may_discard_in_a_phase,
    may_record_and_rerun,
)
from chainstay.formulations.chain.formulation import build
from chainstay.formulations.memory_units import enough_bytes, most_bytes, size_divisor
from chainstay.formulations.records import Records
from chainstay.problems.exactness import is_complete
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from formulation_support import CHAIN, PAIR
from golden_options import ALL, GoldenOptions

TABLE1, TAPE, FREE = Discards
LEAN: Final = StageOption(
    saved_bytes=4, backward_overhead_bytes=3, first=RunCost(time=10, backward_time=8)
)
STAGE: Final = replace(CHAIN.stages[0], options=(LEAN,))


def chain_of(stage: Stage, **changes: Any) -> ChainProfile:
    return replace(CHAIN, stages=(replace(stage, **changes),) * 3)


def beginning_with(**changes: Any) -> ChainProfile:
    return replace(CHAIN, stages=(replace(STAGE, **changes), STAGE, STAGE))


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({}, "one"),  # the same twice
        ({"saved_bytes": 5}, "one"),
        ({"first": RunCost(time=10, overhead_bytes=1, backward_time=8)}, "one"),
        ({"again": RunCost(time=11, backward_time=8)}, "one"),
        ({"saved_bytes": 3}, "other"),
        ({"backward_overhead_bytes": 2}, "other"),
        ({"needs_input": False}, "other"),
        ({"again": RunCost(time=9, backward_time=8)}, "other"),
        ({"first": RunCost(time=9, backward_time=9)}, "both"),  # as long, but less if dropped
        ({"first": RunCost(time=11, backward_time=7)}, "both"),
        ({"stages": 2}, "both"),
    ],
)
def test_options_that_never_pay_are_left_out(change: dict[str, Any], left: str) -> None:
    records = Records(beginning_with(options=(LEAN, replace(LEAN, **change))))
    expected = {"one": {0, 1}, "other": {0, 2}, "both": {0, 1, 2}}[left]
    assert {record.option for record in records.starting(0)} == expected


def test_an_option_that_is_left_out_is_replaced_in_hints() -> None:
    worse = replace(LEAN, backward_overhead_bytes=4)
    records = Records(chain_of(STAGE, options=(worse, LEAN)))
    assert [record.option for record in records.starting(0)] == [0, 2]
    replaced = records.named(0, 1, first=True)
    assert replaced is not None
    assert replaced.option == 2
    assert records.named(0, 3, first=True) is None
    assert records.named(3, 0, first=True) is None


def test_first_and_later_runs_with_backwards_of_their_own_are_two_records() -> None:
    again = RunCost(time=10, backward_time=9)
    records = Records(chain_of(STAGE, options=(replace(LEAN, again=again),)))
    kinds = [(record.option, record.first, record.backward_time) for record in records.starting(0)]
    assert kinds == [(0, None, 7), (1, True, 8), (1, False, 9)]
    assert [record.first for record in records.starting(2)] == [None, None]  # the loss runs once
    assert records.least_backward_time == 21
    assert [records.backward_excess(record) for record in records.starting(0)] == [0, 1, 2]
    assert records.time_unit == 1


def test_a_plain_chain_has_one_record_a_stage() -> None:
    records = Records(CHAIN)
    assert [record.key for record in records.all] == [(i, 0) for i in range(6)]
    assert (records.time_unit, records.least_backward_time) == (10, 42)
    assert [record.last for record in Records(PAIR).starting(1)] == [1, 2]


def test_sizes_of_all_options_and_runs_count() -> None:
    wide = replace(LEAN, first=RunCost(overhead_bytes=64), saved_bytes=400)
    profile = chain_of(STAGE, output_bytes=4, saved_bytes=8, gradient_bytes=4, options=(wide,))
    profile = replace(profile, input_bytes=4)
    assert size_divisor(profile) == 1
    assert size_divisor(chain_of(profile.stages[0], options=())) == 1
    even = replace(wide, backward_overhead_bytes=2)
    even_chain = replace(chain_of(profile.stages[0], options=(even,)), input_bytes=4)
    assert size_divisor(even_chain) == 2
    assert most_bytes(profile) == 4 + 3 * (4 + 4 + 400 + 64 + 3) + 2 * 4
    assert enough_bytes(profile) == 4 + 3 * (4 + 4 + 8) + 2 * 4


NARROW: Final = [
    ("it needs no input", {"options": (replace(LEAN, needs_input=False),)}, TAPE),
    ("less than its output", {"options": (replace(LEAN, saved_bytes=2),)}, TAPE),
    (
        "a cheap forward",
        {"options": (replace(LEAN, first=RunCost(time=9, backward_time=8)),)},
        TAPE,
    ),
    (
        "a cheap repetition",
        {"options": (replace(LEAN, again=RunCost(time=9, backward_time=8)),)},
        TAPE,
    ),
    ("a lean forward", {"forward_overhead_bytes": 2}, TAPE),
    (
        "a lean super-stage",
        {
            "options": (
                replace(LEAN, saved_bytes=5, stages=2, first=RunCost(time=20, backward_time=14)),
            )
        },
        TAPE,
    ),
    (
        "warming up saves time",
        {"first": RunCost(time=99, backward_time=7)},
        TAPE,
    ),
    (
        "warming up saves memory",
        {"first": RunCost(time=10, overhead_bytes=1, backward_time=7), "again": RunCost(time=10)},
        TAPE,
    ),
    (
        "an overhead that no backward covers",
        {"options": (replace(LEAN, first=RunCost(time=10, overhead_bytes=7, backward_time=8)),)},
        TABLE1,
    ),
    (
        "a first record is a bargain",
        {"first": RunCost(time=10, backward_time=7), "again": RunCost(time=10, backward_time=9)},
        TABLE1,
    ),
]


def test_chains_with_options_are_complete_where_their_conditions_hold() -> None:
    profile = chain_of(STAGE)
    for rules in (TABLE1, TAPE):
        assert is_complete(profile, rules)
        assert not may_record_and_rerun(profile, rules)
        assert not may_discard_in_a_phase(profile, rules)
    assert not is_complete(profile, FREE)
    assert is_complete(CHAIN, FREE)


@pytest.mark.parametrize(
    ("change", "rules"),
    [(change, rules) for _, change, rules in NARROW],
    ids=[name for name, _, _ in NARROW],
)
def test_every_option_has_to_meet_the_conditions(change: dict[str, Any], rules: Discards) -> None:
    profile = beginning_with(**change)
    assert not is_complete(profile, rules)
    assert is_complete(profile, TAPE) == (rules is TABLE1)
    assert may_record_and_rerun(profile, TABLE1)
    assert may_discard_in_a_phase(profile, TAPE) == (rules is TAPE)


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_schedules_survive_encoding(golden: GoldenOptions, discards: Discards) -> None:
    schedule = golden.schedules[discards]
    if schedule is None:
        return
    optimum, budget = golden.optimum[discards], golden.budget
    formulation = build(golden.profile, budget, discards=discards, cuts=False)
    if (on := formulation.encode(schedule)) is None:
        return
    assert formulation.program.peak(on) * formulation.phases.unit <= budget
    replay = simulate(golden.profile, formulation.decode(on), discards=discards)
    assert replay.makespan <= (optimum or 0)  # an option may have been replaced
    assert replay.peak_bytes <= budget


def test_witnesses_of_the_recursion_are_in_the_program() -> None:
    for golden in ALL:
        if schedule := golden.recursion_schedule:
            assert build(golden.profile, golden.budget).encode(schedule)


def test_makespans_of_hints_are_those_of_the_simulator() -> None:
    for golden in ALL:
        for schedule in filter(None, golden.schedules.values()):
            replay = simulate(golden.profile, schedule, discards=FREE)
            assert time_of(golden.profile, schedule) == replay.makespan


@pytest.mark.parametrize("formulation", [MIP, CPSAT])
def test_hints_and_least_budgets_with_options(formulation: type[MIP | CPSAT]) -> None:
    hint = Schedule.parse("Fc0 Fc1 Fn2 Fa3 B3 Fa1.1 B1 Fa0 B0")
    claim = formulation()(PAIR, 21, hint=hint)
    assert claim.makespan == claim.lower_bound == simulate(PAIR, claim.schedule).makespan
    with pytest.raises(InfeasibleBudgetError) as caught:
        formulation()(PAIR, 5)
    assert formulation()(PAIR, caught.value.required).makespan >= claim.makespan
    with pytest.raises(InvalidScheduleError, match=r"Fa1\.2 of the hint names option 2"):
        formulation(time_limit_s=1e-9)(PAIR, 21, hint=Schedule.parse("Fa0 Fa1.2"))


@pytest.mark.parametrize("formulation", [MIP, CPSAT])
def test_a_hint_that_no_single_sweep_is_as_fast_as_does_no_harm(
    formulation: type[MIP | CPSAT],
) -> None:
    """A first run that is dropped saves time: nothing that the model has is as fast."""
    hints = [golden for golden in ALL if "warm_up_saves_time" in golden.name]
    for golden in hints:
        claim = formulation()(golden.profile, golden.budget, hint=golden.schedules[TABLE1])
        assert claim.makespan == formulation()(golden.profile, golden.budget).makespan
        assert claim.family is Family.SINGLE_SWEEP
    assert hints


@pytest.mark.parametrize("formulation", [MIP, CPSAT])
def test_phases_that_a_record_skips_hold_no_gradient(formulation: type[MIP | CPSAT]) -> None:
    """The gradient between the two stages has no room, and a record of both never makes it."""
    both = StageOption(saved_bytes=2, first=RunCost(time=9, backward_time=9), stages=2)
    first = Stage(forward_time=1, output_bytes=2, saved_bytes=2, gradient_bytes=1)
    within = Stage(output_bytes=1, saved_bytes=1, gradient_bytes=99, options=(both,))
    profile = ChainProfile(input_bytes=1, input_gradient_bytes=1, stages=(first, within, Stage()))
    claim = formulation()(profile, 6)
    assert str(claim.schedule) == "Fa0 Fa1.1 B1 B0"
    assert claim.makespan == search.optimum(profile, 6).makespan == 19


@pytest.mark.parametrize("formulation", [MIP, CPSAT])
def test_what_runs_twice_in_the_first_phase_runs_first_only_once(
    formulation: type[MIP | CPSAT],
) -> None:
    """``Fa1 Fn1`` in the first phase would pay if its second run were as cheap as a first one."""
    sizes = ((9, 2, 4, 2, 2), (0, 0, 0, 0, 1), (0, 1, 1, 1, 0), (8, 1, 1, 0, 2))
    stages = [
        Stage(
            forward_time=time,
            output_bytes=output,
            saved_bytes=saved,
            gradient_bytes=gradient,
            forward_overhead_bytes=overhead,
        )
        for time, output, saved, gradient, overhead in sizes
    ]
    stages[1] = replace(
        stages[1],
        again=RunCost(time=40, overhead_bytes=1),
        dropped_first=RunCost(overhead_bytes=1),
        dropped_again=RunCost(time=50, overhead_bytes=1),
    )
    profile = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=tuple(stages))
    claim = formulation()(profile, 7)
    replay = simulate(profile, claim.schedule)
    assert claim.makespan == replay.makespan == search.optimum(profile, 7).makespan
    again = Schedule.parse("Fc0 Fa1 Fn1 Fa2 Fa3 B3 B2 Fa0 B1 B0")
    assert simulate(profile, again).makespan - 50 < claim.makespan


def test_a_size_that_nothing_can_have_costs_no_accuracy() -> None:
    huge = chain_of(STAGE, saved_bytes=2**48)
    phases = build(huge, 30).phases
    assert (phases.unit, phases.ceiling) == (1, 31)
    assert MIP()(huge, 30).makespan == MIP()(chain_of(STAGE, saved_bytes=40), 30).makespan
