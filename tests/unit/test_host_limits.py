"""Limits on host memory, by hand-worked digits, and what is refused."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from chainstay import (
    DP,
    HostBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    solve_chain,
    solve_hybrid,
    solve_offload,
)
from chainstay.dp.jit import is_available
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Stage
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.simulate import simulate

CHAIN = ChainProfile(
    input_bytes=10,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=1, backward_time=2, output_bytes=5, saved_bytes=6),
        Stage(forward_time=3, backward_time=4, output_bytes=1, saved_bytes=2),
    ),
)
PLAIN = OffloadProfile(
    activations=(2, 3, 4, 2),
    gradients=(0, 0, 0, 0),
    forward_overheads=(0, 0, 5),
    backward_overheads=(0, 0, 0),
    forward_times=(1, 2, 2),
    backward_times=(1, 3, 2),
)


def run(text: str, link: Link, budget: int = 100) -> TransferReplay:
    return simulate_hybrid(CHAIN, Schedule.parse(text), budget=budget, link=link)


def test_a_place_on_the_host_is_free_when_the_last_prefetch_has_ended() -> None:
    text = "Oa0 Fa0 Pa0 Ob0 Fa1 B1 Pb0 B0"
    roomy = run(text, Link(bandwidth=2, capacity=16))
    # Host: a0 leaves 0-5; one link, and b0 is queued behind the prefetch of a0, which is 5-10.
    assert roomy.host_bytes == 10
    assert run(text, Link(bandwidth=2, capacity=10)) == roomy
    with pytest.raises(InvalidScheduleError, match=r"needs 10 bytes beside the 0 .* 9 are allowed"):
        run(text, Link(bandwidth=2, capacity=9))


def test_an_offload_waits_for_its_place() -> None:
    link = Link(bandwidth=2, duplex="full", capacity=12)
    replay = run("Fa0 Ob0 Oa0 Fa1 Pb0 B1 Pa0 B0", link)
    # b0 leaves 1-4 and comes back 4-7: a0 finds no place before, though the link is free at 4.
    moves = {str(move.op): (move.start, move.end) for move in replay.timetable.moves}
    assert moves == {"Ob0": (1, 4), "Pb0": (4, 7), "Oa0": (7, 12), "Pa0": (12, 17)}
    assert replay.host_bytes == 10


def test_what_never_finds_a_place_is_refused() -> None:
    with pytest.raises(InvalidScheduleError, match="Ob0 waits for ever: it needs 6 bytes"):
        run("Oa0 Fa0 Ob0 Fa1 Pb0 B1 Pa0 B0", Link(bandwidth=2, capacity=12))
    with pytest.raises(InvalidScheduleError, match="Oa0 waits for ever"):
        run("Oa0 Fa0 Fa1 B1 B0", Link(bandwidth=2, capacity=9))


def test_offloads_of_activations_have_the_same_limit() -> None:
    schedule = Schedule.parse("Oa0 Fa0 Oa1 Fa1 Fa2 B2 Pa1 B1 Pa0 B0")
    replay = simulate_offload(PLAIN, schedule, budget=13, link=Link(bandwidth=1, capacity=5))
    assert replay.host_bytes == 5
    with pytest.raises(InvalidScheduleError, match=r"needs 3 bytes beside the 2 .* 4 are allowed"):
        simulate_offload(PLAIN, schedule, budget=13, link=Link(bandwidth=1, capacity=4))


def test_links_with_limits_read_back() -> None:
    link = Link(bandwidth=Fraction(4, 3), latency=Fraction(1, 2), capacity=7)
    assert Link.from_json(link.to_json()) == link
    assert link.ticks == 4
    assert link.transfer_ticks(2) == 8
    assert not link.is_plain
    assert Link(bandwidth=6).is_plain


def test_a_link_file_with_a_second_memory_is_refused() -> None:
    """Version 2 had a link beyond the host's; one that says there is none is read."""
    old = json.loads(Link(bandwidth=6).to_json()) | {"version": 2, "beyond": ""}
    assert Link.from_json(json.dumps(old)) == Link(bandwidth=6)
    layered = old | {"beyond": Link(bandwidth=1).to_json()}
    with pytest.raises(InvalidProfileError, match="'beyond' names a second memory"):
        Link.from_json(json.dumps(layered))


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"capacity": -1}, "capacity is -1"),
        ({"capacity": 1.5}, "capacity is 1.5"),
    ],
)
def test_links_that_are_none_are_refused(settings: dict[str, object], match: str) -> None:
    with pytest.raises(InvalidProfileError, match=match):
        Link(bandwidth=1, **settings)  # type: ignore[arg-type]


def test_models_that_know_no_limit_refuse_it() -> None:
    limited = Link(bandwidth=1, capacity=5)
    with pytest.raises(InvalidProfileError, match="one memory without limit"):
        solve_hybrid(CHAIN, 17, link=limited, transfers="fractional")
    with pytest.raises(InvalidProfileError, match="know no limit on host memory"):
        solve_offload(PLAIN, 13, link=limited, transfers="interruptible")


@pytest.mark.parametrize("host_budget", [-1, "lots", 1.5, True])
def test_a_host_budget_is_a_number_of_bytes(host_budget: int) -> None:
    with pytest.raises(InvalidBudgetError, match="host_budget is"):
        solve_hybrid(CHAIN, 17, link=Link(bandwidth=1), host_budget=host_budget)


def test_of_two_limits_the_less_counts() -> None:
    link = Link(bandwidth=2, capacity=30)
    for budget, capacity in ((None, 30), (20, 20), ("1KB", 30)):
        found = solve_hybrid(CHAIN, 16, link=link, host_budget=budget, method="dp")
        assert found.link.capacity == capacity


def test_a_host_budget_is_any_whole_number() -> None:
    budget: Any = np.int64(25)
    assert _hybrid(budget).schedule == _hybrid(25).schedule


def _hybrid(host_budget: int | None) -> Solution:
    return solve_hybrid(CHAIN, 16, link=Link(bandwidth=2), host_budget=host_budget, method="dp")


def _offload(host_budget: int | None) -> Solution:
    return solve_offload(PLAIN, 12, link=Link(bandwidth=2), host_budget=host_budget)


@pytest.mark.parametrize("solve", [_hybrid, _offload])
def test_the_error_names_host_memory_that_is_enough(solve: object) -> None:
    assert callable(solve)
    with pytest.raises(HostBudgetError, match="host_budget is 1 byte") as caught:
        solve(1)
    solution = solve(caught.value.required)
    assert solution.host_bytes <= caught.value.required
    assert solution.makespan == solve(None).makespan


@pytest.mark.parametrize("method", ["auto", "cpsat", "mip"])
def test_a_program_finds_what_no_quick_method_does_in_so_little_host_memory(method: str) -> None:
    tight = OffloadProfile(
        activations=(2, 7, 8, 1),
        gradients=(0, 3, 0, 0),
        forward_overheads=(0, 0, 3),
        backward_overheads=(0, 0, 0),
        forward_times=(0, 0, 0),
        backward_times=(0, 0, 0),
    )
    link = Link(bandwidth=1, duplex="full", capacity=8)
    with pytest.raises(HostBudgetError, match="host_budget is 8 bytes"):
        solve_offload(tight, 18, link=link, method="heuristics")
    assert solve_offload(tight, 18, link=link, method=method).makespan == 18


def _longer() -> ChainProfile:
    draw = random.Random(4)
    stages = []
    for _ in range(10):
        size = draw.randint(20, 60)
        stages.append(
            Stage(
                forward_time=draw.randint(5, 15),
                backward_time=draw.randint(10, 30),
                output_bytes=size,
                saved_bytes=size * draw.randint(2, 4),
                gradient_bytes=size,
            )
        )
    return ChainProfile(input_bytes=30, input_gradient_bytes=0, stages=tuple(stages))


@pytest.mark.skipif(not is_available(), reason="as many slots take long without numba")
@pytest.mark.long
def test_the_less_may_be_away_the_more_is_made_again() -> None:
    """The room on the host is used, and a plan that fits is found between all and nothing."""
    chain, link, method = _longer(), Link(bandwidth=5), DP(slots=30)
    budget = simulate(chain, Schedule.keep_all(10)).peak_bytes * 45 // 100
    free = solve_hybrid(chain, budget, link=link, method=method)
    recomputed = solve_chain(chain, budget).makespan
    assert free.makespan < recomputed
    times = [free.makespan]
    for share in (2, 4):
        room = free.host_bytes // share
        found = solve_hybrid(chain, budget, link=link, method=method, host_budget=room)
        assert room // 3 < found.host_bytes <= room
        times.append(found.makespan)
    none = solve_hybrid(chain, budget, link=link, method=method, host_budget=0)
    assert none.host_bytes == 0
    times.append(none.makespan)
    assert times == sorted(times)
    assert len(set(times)) == 4
    assert times[-1] <= recomputed
