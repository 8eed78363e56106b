"""What a plan does over time, as reports draw it, against the referees and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.baselines import BASELINES
from chainstay.errors import InvalidScheduleError, InvalidSolutionError
from chainstay.problems.hybrid import HybridProblem
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Stage
from chainstay.report.timeline import Timeline, build_timeline
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve import solve_join
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import AutoOffload, solve_offload
from chainstay.timetable import Transfers
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.simulate import simulate
from offload_strategies import OffloadCase, offload_cases
from report_plans import KINDS, a_chain, plan
from strategies import chains

_STAGE = Stage(
    forward_time=2, backward_time=3, output_bytes=10, saved_bytes=30, backward_overhead_bytes=1
)
_CHAIN = ChainProfile(input_bytes=5, input_gradient_bytes=0, stages=(_STAGE, _STAGE))


def _replayed(profile: ChainProfile, schedule: Schedule) -> Solution:
    """`schedule` as a solution about which nothing is proved."""
    replay = simulate(profile, schedule, discards="free")
    return Solution(
        schedule=schedule,
        makespan=replay.makespan,
        peak_bytes=replay.peak_bytes,
        budget=max(replay.peak_bytes, 1),
        lower_bound=0,
        family=Family.ALL,
        discards=Discards.FREE,
        method="by hand",
        solve_seconds=0.0,
    )


def _timeline(solution: Solution, profile: ChainProfile | OffloadProfile) -> Timeline:
    timeline = build_timeline(solution, profile)
    assert timeline is not None
    return timeline


def _require_consistent(timeline: Timeline, peak_bytes: int) -> None:
    levels = timeline.levels
    assert max(level.total for level in levels) == peak_bytes
    assert all(min(level[1:]) >= 0 for level in levels)
    times = [level.time for level in levels]
    assert times == sorted(times)
    assert times[-1] <= timeline.makespan
    for lane in range(len(timeline.lanes)):
        busy = [activity for activity in timeline.activities if activity.lane == lane]
        for one, other in pairwise(busy):
            assert one.end <= other.start


def test_chain_by_hand() -> None:
    solution = _replayed(_CHAIN, Schedule.parse("Fc0 Da1 Fc0 Fa1 B1 Fa0 B0"))
    timeline = _timeline(solution, _CHAIN)
    assert [level.time for level in timeline.levels[::2]] == [0, 2, 2, 4, 6, 9, 11]
    assert [level.time for level in timeline.levels[1::2]] == [2, 2, 4, 6, 9, 11, 14]
    assert [level[1:] for level in timeline.levels[::2]] == [
        (15, 0, 0, 0),
        (15, 0, 0, 0),
        (15, 0, 0, 0),
        (15, 30, 0, 0),
        (15, 30, 0, 1),
        (5, 30, 0, 0),
        (5, 30, 0, 1),
    ]
    assert [(str(a.op), a.start, a.end, a.is_again) for a in timeline.activities] == [
        ("Fc0", 0, 2, False),
        ("Fc0", 2, 4, True),
        ("Fa1", 4, 6, False),
        ("B1", 6, 9, False),
        ("Fa0", 9, 11, True),
        ("B0", 11, 14, False),
    ]


@pytest.mark.parametrize(
    ("bandwidth", "expected"),
    [
        # a0 leaves in [0, 2] and is read until 1, so that F1 starts beside it
        (1, [(0, 5, 0, 0), (1, 9, 0, 1), (2, 7, 0, 1), (3, 7, 2, 2)]),
        # a0 has left when F0 ends
        (2, [(0, 5, 0, 0), (1, 7, 0, 1), (3, 7, 2, 2)]),
        # a0 has left at 1/2 and is read until 1
        (4, [(0, 5, 0, 0), (1, 3, 0, 0), (1, 7, 0, 1), (3, 7, 2, 2)]),
    ],
)
def test_offload_by_hand(bandwidth: int, expected: list[tuple[int, ...]]) -> None:
    profile = OffloadProfile(
        activations=(2, 3, 4),
        gradients=(1, 1, 1),
        forward_overheads=(0, 1),
        backward_overheads=(0, 2),
        forward_times=(1, 2),
        backward_times=(2, 3),
    )
    schedule = Schedule.parse("Oa0 Fa0 Fa1 B1 Pa0 B0")
    link = Link(bandwidth=bandwidth)
    replay = simulate_offload(profile, schedule, budget=12, link=link)
    solution = OffloadSolution(
        schedule=schedule,
        makespan=replay.makespan,
        peak_bytes=replay.peak_bytes,
        budget=12,
        lower_bound=0,
        family=Family.ALL,
        method="by hand",
        solve_seconds=0.0,
        link=link,
        transfers=Transfers.INTEGRAL,
        timetable=replay.timetable,
    )
    timeline = _timeline(solution, profile)
    assert [lane.name for lane in timeline.lanes] == ["compute", "to host", "from host"]
    seen = [(level.time, level.activation, level.gradient, level.temporary)
            for level in timeline.levels]  # fmt: skip
    assert seen[-1] == (replay.makespan, 0, 1, 0)
    assert [level for level in seen if level in expected] == expected
    assert all(level[1] == 5 for level in seen if 0 < level[0] < 1)


@given(chains(), st.data())
@settings(max_examples=60)
def test_chain_levels_are_the_simulators(profile: ChainProfile, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["keep-all", "drop-all", "sqrt"]))
    solution = _replayed(profile, *BASELINES[name](profile, 0))
    timeline = _timeline(solution, profile)
    _require_consistent(timeline, solution.peak_bytes)
    replay = simulate(profile, solution.schedule, discards="free")
    assert [level.total for level in timeline.levels[::2]] == [
        snapshot.during_bytes for snapshot in replay.timeline
    ]
    for level, snapshot in zip(timeline.levels[::2], replay.timeline, strict=True):
        stage = profile.stages[snapshot.op.stage]
        assert level.temporary in {stage.forward_overhead_bytes, stage.backward_overhead_bytes, 0}
        assert level.gradient >= snapshot.gradient_bytes


@pytest.mark.parametrize("transfers", list(Transfers))
@given(offload_cases())
@settings(max_examples=40)
def test_offload_levels_have_the_referees_peak(transfers: Transfers, case: OffloadCase) -> None:
    profile, link = case.profile, case.link
    if 0 in (*profile.forward_times, *profile.backward_times):
        times = {name: tuple(time + 1 for time in getattr(profile, name))
                 for name in ("forward_times", "backward_times")}  # fmt: skip
        profile = replace(profile, **times)
    if transfers is not Transfers.INTEGRAL:
        link = Link(bandwidth=link.bandwidth)
    solution = solve_offload(
        profile, case.budget, link=link, transfers=transfers, method=AutoOffload(exact_stages=0)
    )
    timeline = _timeline(solution, profile)
    levels = timeline.levels
    highest = max(level.total for level in levels)
    assert -int(-highest // 1) == solution.peak_bytes
    assert all(min(level[1:]) >= 0 for level in levels)
    assert levels[-1].total == profile.gradients[0]
    assert levels[-1].time <= timeline.makespan == solution.makespan


@given(chains(max_stages=5, families=("plain", "fat", "wild")), st.integers(0, 3))
@settings(max_examples=25)
@pytest.mark.long
def test_hybrid_levels_have_the_referees_peak(profile: ChainProfile, quarters: int) -> None:
    link = Link(bandwidth=Fraction(3, 2))
    most = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    least = HybridProblem(profile, 1, link).required_bytes
    budget = max(1, most - quarters * (most - least) // 4)
    solution = solve_hybrid(profile, budget, link=link)
    _require_consistent(_timeline(solution, profile), solution.peak_bytes)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_plan(kind: str) -> None:
    solution, profile = plan(kind).solution, plan(kind).profile
    timeline = build_timeline(solution, profile)
    assert timeline is not None
    _require_consistent(timeline, solution.peak_bytes)
    assert max(activity.end for activity in timeline.activities) == solution.makespan
    moves = [activity for activity in timeline.activities if timeline.lanes[activity.lane].is_link]
    assert bool(moves) == any(op.kind.is_transfer for op in solution.schedule)
    if kind == "join":
        assert [lane.name for lane in timeline.lanes] == ["branch 0", "branch 1", "tail"]
    again = [activity for activity in timeline.activities if activity.is_again]
    forwards = [(op.branch, op.stage) for op in solution.schedule if op.kind.is_forward]
    assert len(again) == len(forwards) - len(set(forwards))


def test_overheads_of_each_operation_count() -> None:
    schedule = Schedule.parse("Fc0 Fa1 B1 Fa0 B0")
    overheads = (7, 0, 2, 100, 3)
    replay = simulate(_CHAIN, schedule, overheads=overheads)
    solution = replace(_replayed(_CHAIN, schedule), peak_bytes=135, budget=200)
    timeline = build_timeline(solution, _CHAIN, overheads=overheads)
    assert timeline is not None
    assert [level.temporary for level in timeline.levels[::2]] == list(overheads)
    assert [level.total for level in timeline.levels[::2]] == [
        snapshot.during_bytes for snapshot in replay.timeline
    ]
    with pytest.raises(InvalidSolutionError, match="gives 12 ns and 135 bytes"):
        build_timeline(replace(solution, peak_bytes=134), _CHAIN, overheads=overheads)


def test_fractional_hybrid_has_no_times_and_is_checked() -> None:
    solution, profile = plan("hybrid fractional").solution, plan("hybrid fractional").profile
    assert build_timeline(solution, profile) is None
    with pytest.raises(InvalidSolutionError, match=r"the solution says .*, its replay"):
        build_timeline(replace(solution, makespan=solution.makespan + 1), profile)


@pytest.mark.parametrize("keep", [(True, False), [False, True]])
def test_kept_gradients_of_a_join(keep: Sequence[bool]) -> None:
    profile = plan("slots").profile
    solution = solve_join(profile, 8, keep=keep)  # type: ignore[arg-type]
    timeline = build_timeline(solution, profile, keep=keep)
    assert timeline is not None
    assert timeline.levels[-1].gradient == 1


def test_a_plan_of_another_profile_is_refused() -> None:
    solution = plan("chain").solution
    other = a_chain(8)
    slower = replace(other, stages=(replace(other.stages[0], forward_time=1), *other.stages[1:]))
    with pytest.raises(InvalidSolutionError, match=r"the solution says \d+ ns .*gives \d+ ns"):
        build_timeline(solution, slower)
    with pytest.raises(InvalidScheduleError):
        build_timeline(solution, a_chain(7))
    with pytest.raises(InvalidSolutionError, match="Solution is no solution of an OffloadProfile"):
        build_timeline(solution, plan("offload integral").profile)
    with pytest.raises(
        InvalidSolutionError, match="OffloadSolution is no solution of a JoinProfile"
    ):
        build_timeline(plan("offload integral").solution, plan("join").profile)
