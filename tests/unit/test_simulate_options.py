"""The referee on stage options, kinds of runs and super-stages: sums worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, RunCost, Skip, Stage, StageOption
from chainstay.schedule import Schedule
from chainstay.validation.simulate import Replay, simulate

# Every kind of run has digits of its own.
ONE = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=100,
    stages=(
        Stage(
            forward_time=9,  # of no run here
            output_bytes=2,
            saved_bytes=10,
            gradient_bytes=200,
            backward_overhead_bytes=10_000,
            dropped_first=RunCost(time=1, overhead_bytes=1_000),
            dropped_again=RunCost(time=2, overhead_bytes=2_000),
            first=RunCost(time=10, overhead_bytes=3_000, backward_time=100),
            again=RunCost(time=20, overhead_bytes=4_000, backward_time=200),
            options=(
                StageOption(
                    saved_bytes=20,
                    backward_overhead_bytes=20_000,
                    first=RunCost(time=30, overhead_bytes=5_000, backward_time=300),
                    again=RunCost(time=40, overhead_bytes=6_000, backward_time=400),
                ),
            ),
        ),
    ),
)

# Record 1.1 covers stages 1 and 2.
SUPER = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=10_000,
    stages=(
        Stage(forward_time=1, output_bytes=2, saved_bytes=100, gradient_bytes=20_000),
        Stage(
            forward_time=10,
            output_bytes=4,
            saved_bytes=200,
            gradient_bytes=40_000,
            options=(
                StageOption(
                    saved_bytes=3_000,
                    backward_overhead_bytes=100_000,
                    first=RunCost(time=5, overhead_bytes=200_000, backward_time=7),
                    again=RunCost(time=6, overhead_bytes=400_000, backward_time=8),
                    stages=2,
                ),
                StageOption(saved_bytes=50, first=RunCost(time=11), needs_input=False),
            ),
        ),
        Stage(forward_time=100, output_bytes=8, saved_bytes=400, gradient_bytes=80_000),
        Stage(forward_time=1_000, output_bytes=16, saved_bytes=800, gradient_bytes=160_000),
    ),
)


def run(profile: ChainProfile, text: str, rules: str = "table1") -> Replay:
    return simulate(profile, Schedule.parse(text), discards=rules)


def test_every_kind_of_run_has_its_own_costs() -> None:
    for text, during, ends in (
        ("Fa0 B0", [3_211, 10_311], [10, 110]),
        ("Fa0.1 B0", [5_221, 20_321], [30, 330]),
        ("Fc0 Fa0 B0", [1_203, 4_213, 10_313], [1, 21, 221]),
        ("Fc0 Fa0.1 B0", [1_203, 6_223, 20_323], [1, 41, 441]),
        ("Fc0 Fc0 Fa0 B0", [1_203, 2_203, 4_213, 10_313], [1, 3, 23, 223]),
    ):
        replay = run(ONE, text)
        assert [snapshot.during_bytes for snapshot in replay.timeline] == during, text
        assert [snapshot.end for snapshot in replay.timeline] == ends, text


def test_a_discarded_record_counts_as_a_run_and_may_be_made_under_another_option() -> None:
    replay = run(ONE, "Fa0.1 Db0 Fa0 B0", "tape")
    assert [snapshot.during_bytes for snapshot in replay.timeline] == [5_221, 221, 4_211, 10_311]
    assert [snapshot.end for snapshot in replay.timeline] == [30, 30, 50, 250]


def test_given_overheads_take_the_place_of_every_kind() -> None:
    replay = simulate(ONE, Schedule.parse("Fc0 Fa0.1 B0"), overheads=[0, 1, 2])
    assert [snapshot.during_bytes for snapshot in replay.timeline] == [203, 224, 325]


def test_buffers_of_an_environment_stay_to_the_backward_random_states_to_the_last_run() -> None:
    stage = Stage(output_bytes=1, saved_bytes=10, environment_bytes=5_000, random_bytes=2_000)
    profile = ChainProfile(
        input_bytes=100,
        input_gradient_bytes=0,
        stages=(stage, replace(stage, environment_bytes=50_000, random_bytes=50_000), Stage()),
    )
    for text, during in (
        ("Fa0 Fa1 Fa2 B2 B1 B0", [110, 120, 120, 120, 120, 110]),
        ("Fc0 Fa1 Fa2 B2 B1 Fa0 B0", [5_101, 5_111, 5_111, 5_111, 5_111, 5_110, 3_110]),
        (
            "Fc0 Fn1 Fa2 B2 Fa0 Fa1 B1 B0",
            [5_101, 55_102, 55_101, 55_101, 55_110, 53_120, 3_120, 3_110],
        ),
    ):
        timeline = run(profile, text).timeline
        assert [snapshot.during_bytes for snapshot in timeline] == during, text
        assert timeline[-1].after_bytes == 0, text
    without = simulate(profile, Schedule.parse("Fc0 Fa1 Fa2 B2 B1 Fa0 B0"), overheads=[0] * 7)
    assert without.peak_bytes == 111, "given overheads have them"


def test_environments_of_a_record_of_several_stages() -> None:
    stages = (replace(stage, environment_bytes=10**6) for stage in SUPER.stages[:3])
    profile = replace(SUPER, stages=(*stages, SUPER.stages[3]))
    words = "Fc0 Fc1 Fn2 Fa3 B3 Fa0 Fa1.1 B1 B0"
    added = [
        extended.during_bytes - plain.during_bytes
        for extended, plain in zip(
            run(profile, words).timeline, run(SUPER, words).timeline, strict=True
        )
    ]
    assert added == [10**6 * count for count in (1, 2, 3, 3, 3, 3, 3, 3, 1)]


def test_one_record_of_several_stages() -> None:
    replay = run(SUPER, "Fc0 Fa1.1 Fa3 B3 B1 Fa0 B0")
    assert [snapshot.during_bytes for snapshot in replay.timeline] == [
        160_003,
        363_003,  # 3 + 3_000 + 160_000 + 200_000
        163_803,
        243_803,  # and the gradient of a3
        203_003,  # 3 + 3_000 + 80_000+20_000 + 100_000
        20_101,
        30_101,
    ]
    assert [snapshot.after_bytes for snapshot in replay.timeline][3:5] == [83_003, 20_001]
    assert replay.makespan == 1 + 5 + 1_000 + 0 + 7 + 1 + 0


def test_backward_of_several_stages_removes_what_lies_between() -> None:
    replay = run(SUPER, "Fc0 Fc1 Fc2 Fa3 B3 Fa1.1 B1 Fa0 B0")
    after = [snapshot.after_bytes for snapshot in replay.timeline]
    assert after[4:7] == [80_007, 83_007, 20_001]
    # All of its stages have run, so the record is one of a later run.
    assert replay.makespan == 1 + 10 + 100 + 1_000 + 6 + 8 + 1
    assert replay.peak_bytes == 80_007 + 3_000 + 400_000


def test_a_record_of_several_stages_is_first_if_one_of_them_is() -> None:
    replay = run(SUPER, "Fc0 Fc1 Fa1.1 Fa3 B3 B1 Fa0 B0")
    assert replay.makespan == 1 + 10 + 5 + 1_000 + 7 + 1
    replay = run(SUPER, "Fc0 Fa1.1 Fa3 B3 Db1 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0", "free")
    assert replay.makespan == 1 + 5 + 1_000 + 10 + 100 + 1 + 10 + 1, "and all of them have run"


def test_an_option_that_needs_no_input_keeps_none() -> None:
    text = "Fc0 Fa1.2 Da1 Fc2 Fa3 B3 Fa2 B2 B1 Fa0 B0"
    assert run(SUPER, text, "tape").timeline[2].after_bytes == 160_051
    with pytest.raises(InvalidScheduleError, match="Da1 removes the input of stage 1"):
        run(SUPER, text.replace("Fa1.2", "Fa1"), "tape")
    with pytest.raises(InvalidScheduleError, match="Fn1 removes the input of stage 1"):
        run(SUPER, "Fc0 Fa1 Fn1", "tape")
    assert run(SUPER, "Fc0 Fa1.2 Fn1 Fa2 Fa3 B3 B2 B1 Fa0 B0", "table1").makespan > 0


def test_a_tensor_in_a_record_of_several_stages_counts_once() -> None:
    """One tensor that the record makes and holds, one that passes by it."""
    two = ChainProfile(
        input_bytes=1_001,
        input_gradient_bytes=100_000,
        stages=(
            Stage(
                output_bytes=11_010,
                saved_bytes=10_020,
                gradient_bytes=300_000,
                options=(
                    StageOption(saved_bytes=10_400, first=RunCost(), stages=2),
                    StageOption(saved_bytes=10_800, first=RunCost()),
                ),
            ),
            Stage(output_bytes=11_040, saved_bytes=80, gradient_bytes=700_000),
            Stage(saved_bytes=5, gradient_bytes=0),
        ),
        skips=(
            Skip(first=0, last=2, bytes=1_000, gradient_bytes=100_000),
            Skip(first=1, last=2, bytes=10_000, gradient_bytes=200_000),
        ),
    )
    replay = run(two, "Fc0 Fa0.1 Fa2 B2 B0")
    assert [snapshot.during_bytes for snapshot in replay.timeline] == [
        11_011,
        11_411,
        11_416,
        711_416,
        711_411,  # the gradient of a0 is one tensor, and that is part of the one of a2
    ]
    assert replay.timeline[1].activation_bytes == 11_011
    assert replay.timeline[1].saved_bytes == 400
    single = run(two, "Fa0.2 Fa1 Fa2 B2 B1 B0")
    assert [snapshot.during_bytes for snapshot in single.timeline][:2] == [11_801, 11_881]


REFUSED = [
    ("Fa0.1", "table1", r"Fa0\.1 names option 1, and stage 0 has 1, counted from 0; write Fa0"),
    (
        "Fc0 Fa1.3",
        "table1",
        (
            r"Fa1\.3 names option 3, and stage 1 has 3, counted from 0; write Fa1 or an option up "
            r"to \.2"
        ),
    ),
    (
        "Fc0 Fa1 Fa1",
        "table1",
        "Fa1 would save stage 1 twice: what Fa1 saved is still stored; run B1 first",
    ),
    (
        "Fc0 Fa1.1 Fa1",
        "free",
        (
            r"Fa1 would save stage 1 twice: what Fa1\.1 saved, of stages 1 to 2, is still stored; "
            "run B1 first"
        ),
    ),
    (
        "Fc0 Fc1 Fa2 Fa1.1",
        "table1",
        r"Fa1\.1 would save stage 2 twice: what Fa2 saved is still stored; run B2 first",
    ),
    *(
        (
            f"Fc0 Fc1 Fa1.1 {op}",
            "table1",
            (
                rf"{op} runs a stage of what Fa1\.1 saved, of stages 1 to 2, which are one while "
                r"that is stored; run it before Fa1\.1, or after B1"
            ),
        )
        for op in ("Fc1", "Fn1", "Fc2", "Fn2")
    ),
    ("Fc0 Fa1.1 Fc2", "table1", "Fc2 needs its input a2, and neither it nor what Fa1 saves"),
    (
        "Fc0 Fa1.1 Fa3 B3 B2",
        "table1",
        r"B2 is part of the backward of what Fa1\.1 saved, of stages 1 to 2, which is B1",
    ),
    (
        "Fc0 Fa1.1 Db2",
        "free",
        r"Db2 is part of what Fa1\.1 saved, of stages 1 to 2, which Db1 drops whole",
    ),
    ("Fc0 Fa1.1 B1", "table1", "B1 needs the gradient of a3, but that of a4 is held"),
    ("Fn0", "free", "Fn0 would drop the network's input; write Fc0"),
    ("Da5", "free", "Da5 names stage 5, the last one is 3"),
    ("Da4", "free", "Da4 drops what is not stored"),
]


def test_refused_operations() -> None:
    for text, rules, reason in REFUSED:
        with pytest.raises(InvalidScheduleError, match=rf"^step {len(text.split())}: {reason}"):
            run(SUPER, text, rules)


def test_the_output_of_the_loss_may_go_where_a_first_run_was_for_its_costs() -> None:
    text = "Fc0 Fc1 Fc2 Fc3 Da4 Fa3 B3 Fa2 B2 Fa1 B1 Fa0 B0"
    assert run(SUPER, text, "tape").timeline[4].after_bytes == 160_015
    plain = replace(SUPER, stages=tuple(replace(stage, options=()) for stage in SUPER.stages))
    with pytest.raises(InvalidScheduleError, match="Da4 names stage 4, the last one is 3"):
        run(plain, text, "tape")
