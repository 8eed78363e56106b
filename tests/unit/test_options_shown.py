"""Schedules with options in plan files and reports."""

from __future__ import annotations

import json

from chainstay import Plan, Schedule, Solution
from chainstay.plans import parse_plan
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


def test_the_table_of_stages_says_which_option_a_plan_uses() -> None:
    plan = Plan(solution=SOLUTION, profile=CHAIN)
    table = stage_table(plan.problem, SOLUTION.schedule)
    assert table.columns[-1][0] == "Kept"
    assert [row[-1].text for row in table.rows] == ["0", "1", "", "0"]
    assert "Fa1.1" in page(SOLUTION, CHAIN)
