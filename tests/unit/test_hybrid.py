"""Parts of recomputing and offloading together, by hand-worked digits."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from chainstay import InvalidProfileError, InvalidScheduleError, UnknownMethodError, solve_hybrid
from chainstay.dp.hybrid.recompute_fronts import RecomputeFronts, recompute_cost
from chainstay.dp.hybrid.slot_chain import FINITE, Rooms
from chainstay.dp.jit import interpreted
from chainstay.profiles import Link, Skip
from chainstay.schedule import Schedule
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan, fractional_replay
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.verify.chain_instances import with_skip
from hybrid_support import CHAIN

LINK = Link(bandwidth=2)


def test_what_a_forward_reads_is_not_free_before_it_ends() -> None:
    schedule = Schedule.parse("Oa0 Fa0 Fa1 B1 B0")
    with pytest.raises(InvalidScheduleError, match="budget of 14"):
        fractional_makespan(CHAIN, schedule, budget=14, link=LINK)
    # Fa1 needs 17, so 2 of 10 bytes leave beside Fa0, 6 beside Fa1, and 2 in one more time unit.
    # On the way back, from the end: none beside B0; 2 before B1 has room, the rest beside it.
    replay = fractional_replay(CHAIN, schedule, budget=15, link=LINK)
    assert (replay.makespan, replay.peak_bytes) == ((1 + 3 + 1) + (2 + 1 + 4), 15)
    # With room enough, 15 are there when Fa1 starts, and all 17 when B1 ends: a0 is back by then.
    replay = fractional_replay(CHAIN, schedule, budget=1000, link=LINK)
    assert (replay.makespan, replay.peak_bytes, replay.host_bytes) == (4 + 1 + 6 + 1, 17, 10)
    assert solve_hybrid(CHAIN, 1000, link=LINK, transfers="fractional").peak_bytes == 17


def test_whole_transfers_free_memory_when_they_end() -> None:
    schedule = Schedule.parse("Oa0 Fa0 Fa1 B1 Pa0 B0")
    # a0 leaves from 0 to 5, so Fa1 runs from 5 to 8, B1 to 12; a0 is back at 17 (15 + 2 in use).
    replay = simulate_hybrid(CHAIN, schedule, budget=16, link=LINK)
    assert replay.makespan == 5 + 3 + 4 + 5 + 2
    assert replay.peak_bytes == 15
    # With 17, Fa1 need not wait: it ends at 4, B1 at 8, and a0 is back at 10.
    assert simulate_hybrid(CHAIN, schedule, budget=17, link=LINK).makespan == 10 + 2


def test_the_overhead_of_a_backward_is_gone_when_it_ends() -> None:
    first, last = CHAIN.stages
    stages = (replace(first, backward_overhead_bytes=5), replace(last, backward_overhead_bytes=4))
    replay = simulate_hybrid(
        replace(CHAIN, stages=stages), Schedule.parse("Fa0 Fa1 B1 B0"), budget=50, link=LINK
    )
    # B1 runs beside 10 + 5 + 2 and needs 4; B0 runs beside 10 + 5 and needs 5.
    assert replay.peak_bytes == 10 + 5 + 2 + 4


def test_a_front_waits_for_what_it_has_no_room_for() -> None:
    none = np.empty(2, dtype=np.int32)
    # Of two plans with room for 2, one is quick and needs 2, the other needs none of it.
    fronts = RecomputeFronts(
        start=np.array([[0, 0, 0, 0]], dtype=np.int32),
        plan_count=np.array([[0, 0, 2, 2]], dtype=np.int32),
        base=np.array([5.0, 6.0]),
        demand=np.array([2.0, 0.0]),
        choice=none,
        later=none,
        sooner=none,
    )
    plan, bound = Rooms(3, is_bound=False), Rooms(3, is_bound=True)
    with interpreted():
        assert recompute_cost(fronts, plan, 0, 1.9, 0.0) > FINITE
        assert recompute_cost(fronts, bound, 0, 1.9, 0.0) == pytest.approx(5.1)
        assert recompute_cost(fronts, plan, 0, 2.0, 0.5) == pytest.approx(5.5)
        assert recompute_cost(fronts, plan, 0, 2.0, 2.5) == pytest.approx(6.5)
        assert recompute_cost(fronts, plan, 0, 3.0, 1.5) == pytest.approx(5.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Fa0 Pa0 Fa1 B1 B0", "Pa0 brings back what was not offloaded"),
        ("Oa0 Fa0 Da0 Fa1 B1 B0", "a0, which is gone; issue Pa0 before"),
        ("Da0 Fa0 Fa1 B1 B0", "which nothing can recompute"),
        ("Fa0 Fa1 B0", "needs the gradient of a1, but that of a2 is held"),
        ("Fa0 Fa1 B1", "ends before B0"),
        ("Oa0 Oa0 Fa0 Fa1 B1 B0", "comes a second time"),
        ("Fa0 Fa2", "names stage 2, the last one is 1"),
    ],
)
def test_invalid_program_lists_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        simulate_hybrid(CHAIN, Schedule.parse(text), budget=100, link=LINK)


def test_bad_questions_are_refused() -> None:
    with pytest.raises(InvalidProfileError, match="1 skips"):
        solve_hybrid(with_skip(CHAIN, Skip(first=0, last=1, bytes=3)), 100, link=LINK)
    with pytest.raises(InvalidProfileError, match="'interruptible'"):
        solve_hybrid(CHAIN, 100, link=LINK, transfers="interruptible")
    slow = Link(bandwidth=1, latency=Fraction(1, 2))
    with pytest.raises(InvalidProfileError, match="without latency"):
        solve_hybrid(CHAIN, 100, link=slow, transfers="fractional")
    with pytest.raises(UnknownMethodError, match="'pofo'"):
        solve_hybrid(CHAIN, 100, link=LINK, method="pofo")


def test_what_is_dropped_before_the_loss_does_not_move() -> None:
    """Fn1 drops a1, and Fc0 makes another one: moving the first cannot make room for anything."""
    chain = replace(CHAIN, stages=(CHAIN.stages[0], *CHAIN.stages))
    schedule = Schedule.parse("Oa1 Fc0 Fn1 Fa2 B2 Fc0 Fa1 Fa0 B1 B0")
    with pytest.raises(InvalidScheduleError, match="a1 moves, and no one copy"):
        fractional_makespan(chain, schedule, budget=100, link=LINK)
