"""Fronts, completion bounds and labels against the recurrences, where nothing is rounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from chainstay.dp.hybrid import Amounts, ExactHybrid
from chainstay.dp.hybrid.completion_bounds import Weights
from chainstay.dp.hybrid.discretisation import DiscretisedChain, Effort
from chainstay.dp.hybrid.recompute_fronts import recompute_cost
from chainstay.dp.hybrid.slot_chain import FINITE, INFINITE, SlotChain, row_of
from chainstay.dp.hybrid.slots import _in_slots
from chainstay.dp.jit import interpreted
from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import ChainProfile, Link, Stage
from hybrid_support import with_options

LINK = Link(bandwidth=Fraction(1))
FINE = Effort(cells=1000, labels=20_000)
MOST_OPTIONS = pytest.mark.parametrize("most_options", [1, 3])


@pytest.fixture(autouse=True)
def _as_written() -> Iterator[None]:
    with interpreted():
        yield


def _chain(draw: random.Random, stages: int, most_options: int = 1) -> tuple[ChainProfile, int]:
    """Sizes such that a slot is a byte, and times such that the link takes 1 for it."""
    slowest = draw.choice([1, 1, 4])  # with times of little, transfers decide
    largest = draw.choice([2, 2, 12])  # with overheads of much, forwards do
    sizes = [draw.randint(1, 4) for _ in range(stages + 1)]
    profile = ChainProfile(
        input_bytes=sizes[0],
        input_gradient_bytes=draw.choice([0, sizes[0]]),
        stages=tuple(
            Stage(
                forward_time=draw.randint(0, slowest),
                backward_time=draw.randint(0, slowest),
                output_bytes=size,
                saved_bytes=size + draw.randint(0, 4),
                gradient_bytes=draw.randint(0, size),
                forward_overhead_bytes=draw.choice([0, draw.randint(0, largest)]),
                backward_overhead_bytes=draw.randint(0, 2),
            )
            for size in sizes[1:]
        ),
    )
    profile = with_options(draw, profile, most_options)
    required = HybridProblem(profile, 1, LINK).required_bytes
    return profile, required + draw.randint(0, sum(sizes))


def _rounding(chain: SlotChain, *, is_bound: bool) -> SlotChain:
    return chain._replace(rooms=chain.rooms._replace(is_bound=is_bound))


@MOST_OPTIONS
@pytest.mark.parametrize("seed", range(24))
def test_fronts_are_the_recurrence(seed: int, most_options: int) -> None:
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(2, 5), most_options)
    exact = ExactHybrid(Amounts.from_chain(profile, budget, LINK))
    chain = _rounding(_in_slots(profile, budget, LINK, budget), is_bound=seed % 2 == 1)
    grid = DiscretisedChain(chain, 1.0, INFINITE)
    fronts = grid._filled(np.full_like(grid.compute_costs, INFINITE))  # nothing is dropped
    for j in range(len(profile) - 1):
        for i in range(j + 1):
            row = row_of(i, j)
            for kept in range(budget + 1):
                for returning in range(budget - kept + 1):
                    found = recompute_cost(fronts, chain.rooms, row, budget - kept, returning)
                    expected = exact.inner(i, j, kept, returning)
                    if expected is None:
                        assert found > FINITE
                    else:
                        assert found == pytest.approx(expected[0], abs=1e-5)


def test_a_forward_passed_again_waits_for_its_own_need() -> None:
    """By hand: in 17, stage 0 cannot be kept beside the gradient, so it is passed, 17 being used.

    Backwards, 17 come back: 2 beside stage 0 (backward 1, forward 1), none beside stage 1, whose
    backward and forward take no time. So 15 are left, all of which the pass has to wait for.
    """
    first = Stage(
        forward_time=1, backward_time=1, output_bytes=1, saved_bytes=2, forward_overhead_bytes=10,
        gradient_bytes=0,
    )  # fmt: skip
    second = Stage(output_bytes=6, saved_bytes=6, gradient_bytes=6)
    stages = (first, second, Stage(output_bytes=1, saved_bytes=1))
    profile = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=stages)
    exact = ExactHybrid(Amounts.from_chain(profile, 20, LINK)).inner(0, 1, 3, 17)
    chain = _in_slots(profile, 20, LINK, 20)
    grid = DiscretisedChain(chain, 1.0, INFINITE)
    fronts = grid._filled(np.full_like(grid.compute_costs, INFINITE))
    found = recompute_cost(fronts, chain.rooms, row_of(0, 1), 17.0, 17.0)
    assert exact is not None
    assert exact[0] == found == (1 + 1 + 1) + 15


@MOST_OPTIONS
@pytest.mark.parametrize("seed", range(25))
def test_what_a_limit_drops_is_not_needed(seed: int, most_options: int) -> None:
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(2, 6 if most_options == 1 else 5), most_options)
    plan = ExactHybrid.solve(Amounts.from_chain(profile, budget, LINK))
    if plan is None:
        return
    chain = _in_slots(profile, budget, LINK, budget)
    limit = plan.cost + 1e-4
    chain = _rounding(chain, is_bound=draw.random() < 0.5)
    grid = DiscretisedChain(chain, 8.0, limit)
    grid.with_bounds(Weights(*draw.choice([(0.5, 0.5), (0.2, 0.0), (1.0, 1.0), (0.0, 0.6)])))
    assert grid.root <= limit
    cost, last, _ = grid.search(grid.fronts, grid.completion_bounds(), limit, FINE)
    assert last >= 0
    assert cost == pytest.approx(plan.cost, abs=1e-4)
    loose = DiscretisedChain(chain, 8.0, 1.2 * limit).with_bounds(grid.weights[0])
    bounds = loose.completion_bounds(relaxed=True)
    relaxed, last, _ = loose.search(loose.fronts, bounds, 1.2 * limit, FINE)
    assert last >= 0
    assert relaxed <= limit


@MOST_OPTIONS
@pytest.mark.parametrize("seed", range(1000, 1160))
def test_caps_drop_nothing_of_the_best_plan(seed: int, most_options: int) -> None:
    """Of sizes that are no whole slots: with a limit just above it, the optimum is the same.

    In little memory and with the best weights, so that caps are hardly above what they cap.
    """
    draw = random.Random(seed)
    profile, _ = _chain(draw, draw.randint(4, 6), most_options)
    budget = HybridProblem(profile, 1, LINK).required_bytes + draw.randint(0, 6)
    slots, is_bound, finer = draw.choice([7, 11, 16]), seed % 2 == 1, draw.choice([1.0, 3.0])
    chain = _rounding(_in_slots(profile, budget, LINK, slots), is_bound=is_bound)
    _require_the_same_optimum(DiscretisedChain(chain, finer, INFINITE))


def test_caps_hold_for_all_that_is_kept_between_two_steps() -> None:
    """Found by search: what is kept is more than its step, and leaves a slot less."""
    draw = random.Random(576)
    profile, _ = _chain(draw, draw.randint(3, 6))
    budget = HybridProblem(profile, 1, LINK).required_bytes + draw.randint(0, 6)
    slots, finer = draw.choice([3, 4, 5, 7, 11, 16]), draw.choice([1.0, 2.0])
    chain = _in_slots(profile, budget, LINK, slots)
    _require_the_same_optimum(DiscretisedChain(chain, finer, INFINITE))


def _require_the_same_optimum(free: DiscretisedChain) -> None:
    """With nothing dropped, and with a limit just above that."""
    weights = free.best_weights(1.0, Weights(0.5, 0.5), 1 / 4, 1 / 8)
    fronts = free._filled(np.full_like(free.compute_costs, INFINITE))
    bounds = free.with_bounds(weights).completion_bounds()
    expected, last, _ = free.search(fronts, bounds, INFINITE, FINE)
    if last < 0:
        return
    tight = DiscretisedChain(free.chain, free.finer, expected + 1e-4)
    tight.with_bounds(weights)
    found, last, _ = tight.search(tight.fronts, tight.completion_bounds(), expected + 1e-4, FINE)
    assert last >= 0
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("seed", range(30))
def test_fronts_hold_what_their_caps_allow(seed: int) -> None:
    """Caps of one row may go up and down with room; its parts have none."""
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(4, 6))
    chain = _rounding(_in_slots(profile, budget, LINK, budget), is_bound=seed % 2 == 1)
    grid = DiscretisedChain(chain, 1.0, INFINITE)
    caps = np.full_like(grid.compute_costs, INFINITE)
    free, last = grid._filled(caps), len(profile) - 2
    row = row_of(0, last)
    most = sum(stage.forward_time + stage.backward_time for stage in profile.stages[:-1])
    caps[row] = [draw.choice([INFINITE, most, most + draw.randint(0, 6)]) for _ in caps[row]]
    capped = grid._filled(caps)
    for room in range(budget + 1):
        first = free.start[row, room]
        plans = range(first, first + free.plan_count[row, room])
        for returning in range(room + 1):
            expected = [
                free.base[plan] + max(0.0, returning + free.demand[plan] - room)
                for plan in plans
                if free.base[plan] <= caps[row, room]
            ]
            found = recompute_cost(capped, chain.rooms, row, room, returning)
            assert found == pytest.approx(min(expected, default=INFINITE), abs=1e-5)


@MOST_OPTIONS
@pytest.mark.parametrize("seed", range(60))
def test_merged_labels_are_below_every_plan(seed: int, most_options: int) -> None:
    """However few the cells: a merged label keeps less and is quicker than any that it is for."""
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(3, 6 if most_options == 1 else 5), most_options)
    plan = ExactHybrid.solve(Amounts.from_chain(profile, budget, LINK))
    if plan is None:
        return
    limit = plan.cost * draw.choice([1.0, 1.01, 1.1, 1.5]) + 1e-3
    slots = draw.choice([budget, 7, 10])
    chain = _rounding(_in_slots(profile, budget, LINK, slots), is_bound=True)
    grid = DiscretisedChain(chain, 4.0, limit * slots / budget)
    grid.with_bounds(Weights(draw.randint(0, 8) / 8, draw.randint(0, 8) / 8))
    for relaxed in (True, False):
        for cells in (1, 2, 3, 5, 8):
            bounds = grid.completion_bounds(relaxed=relaxed)
            effort = Effort(cells, 20_000)
            found, _, _ = grid.search(grid.fronts, bounds, grid.limit, effort)
            assert found * budget / slots <= plan.cost + 1e-5
