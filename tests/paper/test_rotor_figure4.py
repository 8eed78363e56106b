"""Figure 4 of [BEHJS24]: persistent schedules 3/2 slower than the best, for k = n - 2."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from chainstay import DP, Family, simulate, solve_chain
from chainstay.validation import search
from figure4 import BUDGET, Row, drifting_schedule, figure4_chain, measure
from golden_chains import GOLDEN, GoldenChain

FIGURE4 = [golden for golden in GOLDEN if golden.name.startswith("figure4")]


@pytest.mark.parametrize("golden", FIGURE4, ids=lambda golden: golden.name)
def test_golden_instances_are_of_the_family(golden: GoldenChain) -> None:
    n, k = map(int, re.findall(r"[nk](\d+)", golden.name))
    profile = figure4_chain(n, k)
    for ours, theirs in zip(profile.arrays(), golden.profile.arrays(), strict=True):
        assert ours.tolist() == theirs.tolist()
    assert golden.budget == BUDGET
    assert golden.optimum["table1"] == min(2 * k + 6, k + 2 * n)
    assert DP()(profile, BUDGET).makespan == golden.optimum["persistent"]


@pytest.mark.parametrize("n", range(5, 41))
def test_printed_makespans_and_their_ratio(n: int) -> None:
    row = measure(n)
    assert row == Row(n=n, persistent=3 * n - 2, optimum=2 * n + 2)
    assert row.ratio == Fraction(3, 2) - Fraction(5, 2 * n + 2)
    assert simulate(figure4_chain(n, n - 2), drifting_schedule(n)).peak_bytes == BUDGET


@pytest.mark.long
def test_nothing_is_faster_by_exhaustive_search() -> None:
    assert search.optimum(figure4_chain(5, 3), BUDGET).makespan == 12


@pytest.mark.parametrize("n", range(5, 11))
def test_nothing_is_faster_by_mip(n: int) -> None:
    solution = solve_chain(figure4_chain(n, n - 2), BUDGET, method="mip")
    assert solution.makespan == solution.lower_bound == 2 * n + 2
    assert solution.family is Family.ALL


@pytest.mark.parametrize(("n", "k"), [(3, 2), (4, 2), (6, 2), (5, 5), (5, 6), (7, 12)])
def test_the_proved_bound_is_met_away_from_the_diagonal(n: int, k: int) -> None:
    solution = solve_chain(figure4_chain(n, k), BUDGET, method="mip")
    assert solution.makespan == solution.lower_bound == min(2 * k + 6, k + 2 * n)
