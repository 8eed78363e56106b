"""Joins with options and costs by kind of run: programs = exhaustive search, all replayed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from canonical_joins import CanonicalSearch
from chainstay import (
    CPSAT,
    DP,
    MIP,
    InfeasibleBudgetError,
    InvalidScheduleError,
    JoinProfile,
    Schedule,
    simulate_join,
    solve_join,
)
from chainstay.dp.join.canonical import LeastMemoryProgram
from chainstay.problems.join import joined
from chainstay.profiles import ChainProfile, RunCost, SharedGradient, Stage, StageOption
from chainstay.validation.join.search import join_optimum
from chainstay.verify.option_instances import with_options


def drawn(seed: int, most_stages: int) -> tuple[random.Random, JoinProfile, tuple[bool, ...]]:
    """Two branches and a tail, mostly, of stages with up to three options each."""
    draw = random.Random(seed)
    family, largest = draw.choice(["options", "runs"]), draw.choice([3, 9, 30])

    def chain() -> ChainProfile:
        sizes = [draw.randint(1, largest) for _ in range(draw.randint(2, most_stages + 1))]
        stages = [
            Stage(
                forward_time=draw.randint(0, 9),
                backward_time=draw.randint(0, 9),
                output_bytes=size,
                saved_bytes=size + draw.randint(-size, largest),
                gradient_bytes=draw.choice([size, draw.randint(0, largest)]),
                forward_overhead_bytes=draw.randint(0, largest // 2),
                backward_overhead_bytes=draw.randint(0, largest // 2),
            )
            for size in sizes[1:]
        ]
        plain = ChainProfile(
            input_bytes=sizes[0],
            input_gradient_bytes=draw.choice([0, sizes[0]]),
            stages=tuple(stages),
        )
        return with_options(draw, plain, family)

    join = joined((chain(), chain()), chain() if draw.random() < 5 / 6 else None)
    if draw.random() < 3 / 4:
        join = replace(join, shared=tuple(shared(draw, join) for _ in range(draw.randint(1, 3))))
    return draw, join, (draw.random() < 1 / 5, draw.random() < 1 / 5)


def shared(draw: random.Random, join: JoinProfile) -> SharedGradient:
    users = draw.sample(range(join.stages), draw.randint(2, min(3, join.stages)))
    return SharedGradient(bytes=draw.randint(1, 40), users=tuple(sorted(users)))


@pytest.mark.parametrize(
    "start", [0, *(pytest.param(start, marks=pytest.mark.long) for start in range(1, 10))]
)
def test_program_is_the_optimum_of_its_family(start: int) -> None:
    for seed in range(start, 100, 10):
        draw, join, keep = drawn(seed, 2)
        canonical = CanonicalSearch(join, keep)
        least = canonical.least_budget()
        program = LeastMemoryProgram(join, keep)
        assert program.root + program.inputs == least
        budget = least + draw.choice([0, draw.randint(0, 10), draw.randint(0, 60)])
        solution = solve_join(join, budget, keep=keep)
        assert solution.makespan == solution.lower_bound == canonical.optimum(budget)
        rounded = solve_join(join, budget, DP(slots=20), keep=keep)
        assert rounded.lower_bound <= solution.makespan <= rounded.makespan
        if least > 1:
            with pytest.raises(InfeasibleBudgetError) as caught:
                solve_join(join, least - 1, keep=keep)
            assert caught.value.required == least


@pytest.mark.parametrize("start", range(4))
def test_no_schedule_is_faster_than_search_says(start: int) -> None:
    for seed in range(start, 60, 4):
        draw, join, keep = drawn(100 + seed, 1)
        program = LeastMemoryProgram(join, keep)
        budget = program.root + program.inputs + draw.randint(0, 30)
        claim = join_optimum(join, budget, keep=keep)
        replay = simulate_join(join, claim.schedule, keep=keep)
        assert (replay.makespan, replay.peak_bytes <= budget) == (claim.makespan, True)
        assert join.least_time <= claim.makespan <= solve_join(join, budget, keep=keep).makespan
        by_phases = solve_join(join, budget, CPSAT(time_limit_s=60), keep=keep)
        assert claim.makespan <= by_phases.makespan == by_phases.lower_bound
        if seed % 4 == 0:
            by_mip = solve_join(join, budget, MIP(time_limit_s=60), keep=keep)
            assert by_mip.makespan == by_phases.makespan


def run(time: int, backward_time: int = 0) -> RunCost:
    return RunCost(time=time, backward_time=backward_time)


def test_kinds_of_runs_by_hand() -> None:
    """What runs before the join is a first run, what is made again after it is not."""
    stage = Stage(
        output_bytes=1,
        saved_bytes=10,
        gradient_bytes=1,
        first=run(1, 100),
        again=run(10, 1000),
        dropped_first=run(10_000),
        dropped_again=run(100_000),
        options=(StageOption(saved_bytes=2, first=run(3, 500), again=run(30, 5000)),),
    )
    tower = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(stage,))
    join = JoinProfile(branches=(tower, tower))
    schedule = Schedule.parse("0:Fc0 1:Fa0.1 T 1:B0 0:Fa0 0:B0")
    assert simulate_join(join, schedule).makespan == 10_000 + 3 + 500 + 10 + 1000
    assert solve_join(join, 100).makespan == 2 * 101
    tight = solve_join(join, 8)
    assert str(tight.schedule) == "0:Fa0.1 1:Fa0.1 T 1:B0 0:B0"
    assert tight.makespan == 2 * 503


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("0:Fa0.2", "names option 2, and that stage has 2"),
        ("0:Fa0.1 0:Fa0", "would save a stage twice"),
        ("0:Fa0.1 0:Fn0", "would drop a branch's input"),
    ],
)
def test_operations_that_are_refused(schedule: str, reason: str) -> None:
    option = StageOption(saved_bytes=2, first=RunCost(), needs_input=False)
    stage = Stage(output_bytes=1, saved_bytes=10, options=(option,))
    tower = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(stage,))
    with pytest.raises(InvalidScheduleError, match=reason):
        simulate_join(JoinProfile(branches=(tower,)), Schedule.parse(schedule))
