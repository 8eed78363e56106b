"""Fronts, guides and labels against the memoised recurrences, where nothing is rounded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from chainstay.dp.hybrid import Amounts, ExactHybrid
from chainstay.dp.hybrid.grids import Effort, Grid
from chainstay.dp.hybrid.inner import FINITE, INFINITE, looked_up
from chainstay.dp.hybrid.slots import _in_slots
from chainstay.dp.jit import interpreted
from chainstay.hybrid import HybridProblem
from chainstay.profiles import ChainProfile, Link, Stage

LINK = Link(bandwidth=Fraction(1))
FINE = Effort(cells=1000, labels=20_000)


@pytest.fixture(autouse=True)
def _as_written() -> Iterator[None]:
    with interpreted():
        yield


def _chain(draw: random.Random, stages: int) -> tuple[ChainProfile, int]:
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
    required = HybridProblem(profile, 1, LINK).required_bytes
    return profile, required + draw.randint(0, sum(sizes))


@pytest.mark.parametrize("seed", range(24))
def test_fronts_are_the_recurrence(seed: int) -> None:
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(2, 5))
    exact = ExactHybrid(Amounts.of(profile, budget, LINK))
    grid = Grid(_in_slots(profile, budget, LINK, budget), budget, 1.0, seed % 2 == 1, INFINITE)
    fronts = grid._filled(np.full_like(grid.table, INFINITE))  # nothing is dropped
    for j in range(len(profile) - 1):
        for i in range(j + 1):
            row = j * (j + 1) // 2 + i
            for kept in range(budget + 1):
                for returning in range(budget - kept + 1):
                    found = looked_up(fronts, row, budget, budget - kept, returning, grid.is_bound)
                    expected = exact.inner(i, j, kept, returning)
                    if expected is None:
                        assert found > FINITE
                    else:
                        assert found == pytest.approx(expected[0], abs=1e-5)


@pytest.mark.parametrize("seed", range(25))
def test_what_a_limit_drops_is_not_needed(seed: int) -> None:
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(2, 6))
    plan = ExactHybrid.solve(Amounts.of(profile, budget, LINK))
    if plan is None:
        return
    costs = _in_slots(profile, budget, LINK, budget)
    limit = plan.cost + 1e-4
    grid = Grid(costs, budget, 8.0, draw.random() < 0.5, limit)
    grid.guided(draw.choice([(0.5, 0.5), (0.2, 0.0), (1.0, 1.0), (0.0, 0.6)]))
    assert grid.root <= limit
    cost, last, _ = grid.sweep(grid.fronts, grid.guides(), limit, FINE)
    assert last >= 0
    assert cost == pytest.approx(plan.cost, abs=1e-4)
    loose = Grid(costs, budget, 8.0, grid.is_bound, 1.2 * limit).guided(grid.weights[0])
    relaxed, last, _ = loose.sweep(loose.fronts, loose.guides(relaxed=True), 1.2 * limit, FINE)
    assert last >= 0
    assert relaxed <= limit


@pytest.mark.parametrize("seed", range(60))
def test_merged_labels_are_below_every_plan(seed: int) -> None:
    """However few the cells: a merged label keeps less and is quicker than any that it is for."""
    draw = random.Random(seed)
    profile, budget = _chain(draw, draw.randint(3, 6))
    plan = ExactHybrid.solve(Amounts.of(profile, budget, LINK))
    if plan is None:
        return
    limit = plan.cost * draw.choice([1.0, 1.01, 1.1, 1.5]) + 1e-3
    slots = draw.choice([budget, 7, 10])
    costs = _in_slots(profile, budget, LINK, slots)
    grid = Grid(costs, slots, 4.0, is_bound=True, limit=limit * slots / budget)
    grid.guided((draw.randint(0, 8) / 8, draw.randint(0, 8) / 8))
    for relaxed in (True, False):
        for cells in (1, 2, 3, 5, 8):
            found, _, _ = grid.sweep(
                grid.fronts, grid.guides(relaxed=relaxed), grid.limit, Effort(cells, 20_000)
            )
            assert found * budget / slots <= plan.cost + 1e-5
