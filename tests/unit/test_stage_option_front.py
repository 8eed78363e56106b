"""The front of what a stage may keep: exact, and thinned where least is lost."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from chainstay.errors import SolverLimitError
from chainstay.formulations import stage_front
from chainstay.formulations.highs_backend import HighsResult
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.formulations.stage_front import least_replay_time
from chainstay.profiles.operators import Operator
from chainstay.runtime.options.front import pareto_front, thinned
from chainstay.runtime.options.front_hull import convex_front, fewest_bytes
from chainstay.runtime.options.selection import Selection


def random_stage(count: int, seed: int) -> list[Operator]:
    """Operators that read a few in front of them; some cannot be kept, some not be replayed."""
    draw = random.Random(seed)
    stage: list[Operator] = []
    for index in range(count):
        is_keepable = draw.random() < 0.8
        is_saved = is_keepable and draw.random() < 0.6
        extra = draw.choice((0, 0, draw.randint(1, 30)))
        stage.append(
            Operator(
                time=draw.randint(1, 50),
                inputs=tuple(
                    sorted(draw.sample(range(index), min(index, draw.choice((0, 1, 1, 2)))))
                ),
                result_bytes=draw.choice((0, draw.randint(1, 40), draw.randint(1, 40))),
                is_saved=is_saved,
                extra_bytes=extra,
                is_keepable=is_keepable,
                is_replayable=draw.random() < 0.85,
                state_bytes=draw.choice((0, 0, 2)),
                is_redrawable=extra > 0 and draw.random() < 0.5,
            )
        )
    return stage


def cost(
    stage: list[Operator], replayed: frozenset[int], redrawn: frozenset[int]
) -> tuple[int, int] | None:
    """Bytes and time of a choice; ``None`` if a replay lacks what it reads."""
    read = {source for index in replayed for source in stage[index].inputs}
    size = time = 0
    for index, operator in enumerate(stage):
        if index in replayed:
            if not operator.is_replayable or index in redrawn:
                return None
            size += operator.state_bytes
            time += operator.time
            continue
        if operator.is_saved or index in read:
            if not operator.is_keepable:
                return None
            size += operator.result_bytes
        if index in redrawn:
            if not (operator.is_redrawable and operator.extra_bytes):
                return None
            size += operator.state_bytes
            time += operator.time
        else:
            size += operator.extra_bytes
    return size, time


def enumerated(stage: list[Operator]) -> list[tuple[int, int]]:
    """All choices of what is run again, those left out that another beats."""
    places = range(len(stage))
    drawn = [index for index in places if stage[index].is_redrawable]
    points = {
        point
        for count in range(len(stage) + 1)
        for replayed in combinations(places, count)
        for more in range(len(drawn) + 1)
        for redrawn in combinations(drawn, more)
        if (point := cost(stage, frozenset(replayed), frozenset(redrawn))) is not None
    }
    best: list[tuple[int, int]] = []
    for point in sorted(points):
        if not best or point[1] < best[-1][1]:
            best.append(point)
    return best[::-1]


@pytest.mark.parametrize("count", [1, 4, 8, 10])
def test_the_front_is_that_of_all_choices(count: int) -> None:
    for seed in range(60 if count < 10 else 12):
        stage = random_stage(count, seed)
        front = pareto_front(stage)
        assert [(point.kept_bytes, point.replay_time) for point in front] == enumerated(stage), seed
        for point in front:
            assert cost(stage, point.replayed, point.redrawn) == (
                point.kept_bytes,
                point.replay_time,
            )


def test_the_front_of_twelve_operators() -> None:
    stage = random_stage(12, 3)
    found = [(point.kept_bytes, point.replay_time) for point in pareto_front(stage)]
    assert found == enumerated(stage)
    assert len(found) > 5


@pytest.mark.parametrize(
    "count", [15, *(pytest.param(count, marks=pytest.mark.long) for count in (25, 40))]
)
def test_an_integer_program_finds_the_same_times(count: int) -> None:
    for seed in range(4):
        stage = random_stage(count, seed)
        front = pareto_front(stage, 10**6, 10**9)
        budgets = {
            0,
            *(choice.kept_bytes - one for choice in front[:: len(front) // 3] for one in (0, 1)),
        }
        for budget in budgets:
            best = next((choice for choice in front if choice.kept_bytes <= budget), None)
            found = least_replay_time(stage, budget, Limits(time_s=60.0))
            if best is None or found is None:
                assert best is None
                assert found is None
                continue
            point = cost(stage, found.replayed, found.redrawn)
            assert point is not None
            assert point[0] <= budget
            assert point[1] == best.replay_time


def test_a_solver_that_runs_out_of_time_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = HighsResult(status=TerminationStatus.LIMIT, has_values=False, bound=0.0)
    monkeypatch.setattr(stage_front, "solve", lambda *_, **__: ended)
    with pytest.raises(SolverLimitError, match=r"a stage of 3 operators was not solved in 2 s"):
        least_replay_time(random_stage(3, 0), 10, Limits(time_s=2.0))


def test_few_choices_per_state_are_right_and_keep_both_ends() -> None:
    for seed in range(20):
        stage = random_stage(30, seed)
        exact, found = (pareto_front(stage, limit, 10**9) for limit in (10**6, 5))
        assert len(found) <= 5
        assert found[0].replay_time == exact[0].replay_time
        for point in found:
            assert cost(stage, point.replayed, point.redrawn) == (
                point.kept_bytes,
                point.replay_time,
            )


@pytest.mark.parametrize("count", [1, 12, 30])
def test_a_minimum_cut_finds_the_fewest_bytes(count: int) -> None:
    """And of those of so few bytes the fastest."""
    for seed in range(20):
        stage = random_stage(count, seed)
        found, front = fewest_bytes(stage), pareto_front(stage, 10**6, 10**9)
        if found is None:
            assert not front
            continue
        point = (found.kept_bytes, found.replay_time)
        assert point == (front[-1].kept_bytes, front[-1].replay_time)
        assert cost(stage, found.replayed, found.redrawn) == point


@pytest.mark.parametrize("count", [1, 12, 25])
def test_minimum_cuts_find_the_corners_of_the_hull(count: int) -> None:
    for seed in range(20):
        stage = random_stage(count, seed)
        front = [(x.kept_bytes, x.replay_time) for x in pareto_front(stage, 10**6, 10**9)]
        found = convex_front(stage, 1000)
        for choice in found:
            assert cost(stage, choice.replayed, choice.redrawn) == (
                choice.kept_bytes,
                choice.replay_time,
            )
        points = [(choice.kept_bytes, choice.replay_time) for choice in found]
        assert set(hull(front)) <= set(points) <= set(front)
        assert len(convex_front(stage, 3)) == min(len(points), 3)


def hull(front: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points that are least by some weights of bytes and time, one on each corner."""
    corners: list[tuple[int, int]] = []
    for size, time in front:
        while len(corners) > 1:
            (first, early), (middle, later) = corners[-2:]
            if (first - middle) * (time - early) > (first - size) * (later - early):
                break
            corners.pop()
        corners.append((size, time))
    return corners


def test_whoever_is_left_out_costs_least() -> None:
    points = [(100, 0), (90, 1), (50, 2), (45, 3), (10, 50), (0, 60)]
    front = [Selection(kept_bytes=size, replay_time=time) for size, time in points]
    assert thinned(front, 6) == front
    # Beside the ends (45, 3) is worth 55 bytes * 57 ns, (50, 2) 50 * 58; then (10, 50) 35 * 10.
    assert [point.kept_bytes for point in thinned(front, 3)] == [100, 45, 0]
    assert [point.kept_bytes for point in thinned(front, 4)] == [100, 45, 10, 0]
    assert [point.kept_bytes for point in thinned(front, 5)] == [100, 50, 45, 10, 0]
    assert thinned(front[:1]) == front[:1]


@pytest.mark.long
def test_of_a_long_stage_the_hull_is_found() -> None:
    """A loop over time: hundreds of operators, each of which reads what is some steps behind."""
    stage = [
        Operator(
            time=1 + index % 7,
            inputs=tuple({index - 1, index - 7}) if index > 6 else (),
            result_bytes=1 + index % 11,
            is_saved=index % 3 > 0,
        )
        for index in range(400)
    ]
    found = pareto_front(stage)
    assert found == convex_front(stage, 32)
    assert len(found) == 32
    assert found[0].replay_time == 0
    for point in found:
        assert cost(stage, point.replayed, point.redrawn) == (point.kept_bytes, point.replay_time)
