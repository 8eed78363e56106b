"""Schedules with options in plan files and reports."""

from __future__ import annotations

import json
from dataclasses import replace

from chainstay import Plan, Schedule, Solution
from chainstay.plans import parse_plan
from chainstay.plans.kept_in_part import KeptInPart, kept_in_part, table_of_parts
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.report.descriptions import describe_activity
from chainstay.report.html.page import page
from chainstay.report.stage_table import stage_table
from chainstay.report.timeline import timeline_with_times
from chainstay.solution import Family
from chainstay.validation.simulate import simulate

STAGE = Stage(
    name="s",
    forward_time=3,
    backward_time=5,
    output_bytes=10,
    saved_bytes=30,
    gradient_bytes=10,
    forward_overhead_bytes=1,
)
PAIR = StageOption(
    name="drops gelu",
    saved_bytes=40,
    first=RunCost(time=6, overhead_bytes=7, backward_time=12),
    again=RunCost(time=5, overhead_bytes=2, backward_time=13),
    stages=2,
)
CHAIN = ChainProfile(
    input_bytes=10,
    input_gradient_bytes=0,
    stages=(
        STAGE,
        Stage(
            name="t",
            forward_time=3,
            backward_time=5,
            output_bytes=10,
            saved_bytes=30,
            gradient_bytes=10,
            options=(PAIR,),
            dropped_again=RunCost(time=2, overhead_bytes=3),
            needs_input=False,
        ),
        STAGE,
        STAGE,
    ),
)
TEXT = "Fc0 Fa1.1 Fa3 B3 B1 Fa0 B0"
REPLAY = simulate(CHAIN, Schedule.parse(TEXT))
SOLUTION = Solution(
    schedule=Schedule.parse(TEXT),
    makespan=REPLAY.makespan,
    peak_bytes=REPLAY.peak_bytes,
    budget=200,
    lower_bound=0,
    family=Family.PERSISTENT,
    method="by hand",
    solve_seconds=0.0,
)


def test_a_plan_file_keeps_options_and_kinds_of_runs() -> None:
    plan = Plan(solution=SOLUTION, profile=CHAIN)
    found = parse_plan(plan.to_json())
    assert found == plan
    assert str(found.solution.schedule) == TEXT
    option = json.loads(plan.to_json())["profile"]["stages"][1]["options"][0]
    assert (option["name"], option["stages"], option["again"]["time"]) == ("drops gelu", 2, 5)


def test_the_timeline_has_what_every_kind_of_run_needs() -> None:
    timeline = timeline_with_times(SOLUTION, CHAIN)
    assert [level.temporary for level in timeline.levels[::2]] == [1, 7, 1, 0, 0, 1, 0]
    assert max(level.total for level in timeline.levels) == REPLAY.peak_bytes
    assert describe_activity(timeline.activities[1], timeline) == (
        "forward of stage 1 “t”; its input and all that its backward needs stay; kept under "
        "option 1 (drops gelu), with the 1 after it"
    )


def test_the_table_of_stages_says_what_a_plan_drops() -> None:
    plan = Plan(solution=SOLUTION, profile=CHAIN)
    table = stage_table(plan.problem, SOLUTION.schedule)
    assert [name for name, _ in table.columns[-3:]] == ["Kept", "Saves", "Costs"]
    assert [[cell.text for cell in row[-3:]] for row in table.rows] == [
        ["whole", "–", "–"],
        ["drops gelu (of 2 stages as one)", "20 bytes", "6.25 %"],
        ["with stage 1", "–", "–"],
        ["whole", "–", "–"],
    ]
    assert [row[-4].text for row in table.rows] == ["2", "1", "1", "1"]
    shown = page(SOLUTION, CHAIN)
    assert "Fa1.1" in shown
    assert "2 of 4 stages<small>20 bytes less than whole, for 6.2% of a step" in shown


def test_a_plan_says_what_it_keeps_in_part() -> None:
    (part,) = kept_in_part(CHAIN, SOLUTION.schedule)
    assert part == KeptInPart(
        stage=1,
        stages=2,
        name="t",
        option=1,
        dropped="drops gelu",
        less_bytes=20,
        extra_time=2,
    )
    assert kept_in_part(CHAIN, Schedule.keep_all(4)) == kept_in_part(None, SOLUTION.schedule) == ()


def test_of_two_records_of_a_stage_the_last_one_counts() -> None:
    for text, found in (("Fa1.1 Da1 Fa1 B1", []), ("Fa1 Db1 Fa1.1 B1", [1])):
        assert [part.option for part in kept_in_part(CHAIN, Schedule.parse(text))] == found


def test_what_is_kept_in_part_is_told_in_few_lines() -> None:
    (part,) = kept_in_part(CHAIN, SOLUTION.schedule)
    several = [
        *[replace(part, stages=1, less_bytes=2048, extra_time=100)] * 3,
        *(replace(part, dropped=f"drops {n}", less_bytes=n) for n in range(10)),
    ]
    lines = table_of_parts(several, 40, 20_000).splitlines()
    assert lines[:3] == [
        "keeps in part: 23 of 40 stages",
        "   3x  drops gelu                    -2.00 KiB each  +0.5 % each",
        "   1x  drops 9 (of 2 stages as one)  -9 bytes        +0.0 %",
    ]
    assert lines[-1] == "   ... and 3 more"
    assert len(lines) == 10
    assert table_of_parts([], 4, 1) == ""
    grown = replace(part, less_bytes=-7, dropped="")
    assert "option 1 (of 2 stages as one)  +7 bytes  +0.0 %" in table_of_parts([grown], 4, 0)
