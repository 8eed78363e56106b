"""The figures of [BHPS20], and the toy of its Section 4; all steps take one unit of time."""

from __future__ import annotations

from itertools import pairwise
from math import comb

import pytest

import golden_joins
from chainstay import (
    HomogeneousJoin,
    InfeasibleBudgetError,
    JoinProfile,
    Schedule,
    join_curve,
    simulate_join,
    solve_join,
    waterfilling_bound,
)
from chainstay.baselines.join import equivalent_chain
from chainstay.problems.binomial import IMPOSSIBLE, least_reversal_forwards

CROSS_MODAL = {
    5: (132, 106, 99, 91, 84, 83),
    10: (337, 271, 233, 211, 202, 192),
    15: (596, 451, 383, 347, 323, 313),
}
SIAMESE = {
    5: (125, 98, 91, 84, 83, 82),
    10: (370, 238, 211, 201, 191, 182),
    15: (734, 401, 350, 323, 312, 300),
}
SINGLE = {
    5: (467, 158, 117, 101, 94, 86),
    10: (1832, 442, 296, 246, 218, 206),
    15: (4097, 808, 512, 416, 368, 332),
}
PRINTED = {"CM": CROSS_MODAL, "SNN": SIAMESE, "RNN": SINGLE}
LEAST = {"CM": 5, "SNN": 7, "RNN": 3}
# (slots, branch length of three) -> EQUIV-CHAIN, optimum; the paper counts lengths from 1.
GROUPED = {
    (9, 10): (169, 91),
    (9, 20): (634, 211),
    (9, 30): (1399, 350),
    (9, 40): (2464, 499),
    (12, 10): (94, 82),
    (12, 20): (259, 182),
    (12, 30): (472, 300),
    (12, 40): (724, 422),
    (15, 10): (79, 79),
    (15, 20): (199, 169),
    (15, 30): (349, 264),
    (15, 40): (514, 382),
}
TOY = {7: 88, 8: 81, 9: 74, 10: 72, 11: 71, 29: 53}


def _lengths(shape: str, size: int) -> tuple[int, ...]:
    return {"CM": (size, 5 * size), "SNN": (2 * size,) * 3, "RNN": (6 * size,)}[shape]


def _join(*lengths: int) -> HomogeneousJoin:
    return JoinProfile.homogeneous(lengths, forward_time=1, backward_time=1, turn_time=1)


@pytest.mark.parametrize(("slots", "makespan"), TOY.items())
def test_toy(slots: int, makespan: int) -> None:
    solution = solve_join(_join(4, 10, 12), slots, method="dp", keep=(False,) * 3)
    assert solution.makespan == makespan
    assert solution.is_optimal
    assert solution.peak_bytes <= slots


def test_toy_does_not_fit_in_six_slots() -> None:
    with pytest.raises(InfeasibleBudgetError, match="least feasible budget is 7 slots") as caught:
        solve_join(_join(4, 10, 12), 6)
    assert caught.value.required == 7


def test_the_printed_first_cut_of_the_toy_is_not_optimal() -> None:
    found = {i: _with_first_cut((4, 10, 12), 2, i, 9) for i in range(1, 13)}
    assert min(found.values()) == 74
    assert found[9] == 75
    assert found[8] == found[7] == 74
    assert _with_first_cut((4, 10, 12), 1, 8, 9) >= 74


def _with_first_cut(lengths: tuple[int, ...], branch: int, steps: int, slots: int) -> int:
    """Least makespan of schedules that cut `branch` after `steps` first."""
    left = tuple(n - steps * (j == branch) for j, n in enumerate(lengths))
    keep = tuple(j == branch for j in range(len(lengths)))
    rest = join_curve(_join(*left), keep=keep).makespan(slots - 1)
    return steps + rest + least_reversal_forwards(steps, slots) + steps


@pytest.mark.parametrize("shape", PRINTED)
@pytest.mark.parametrize("size", [5, 10, 15])
def test_figure_8(shape: str, size: int) -> None:
    lengths, least = _lengths(shape, size), LEAST[shape]
    curve = join_curve(_join(*lengths))
    assert curve.slots[0] == least
    assert curve.makespans[:6] == PRINTED[shape][size]
    assert curve.slots[-1] == 6 * size + len(lengths)
    assert curve.makespans[-1] == 12 * size + 1 < curve.makespans[-2]
    golden = golden_joins.figures()["fig8"][f"{shape}{size}"]
    assert dict(zip(map(str, curve.slots), curve.makespans, strict=True)) == golden["makespan"]
    for slots in (least, least + 1, least + 5, curve.slots[-1]):
        replay = simulate_join(_join(*lengths), curve.schedule(slots))
        assert replay.makespan == curve.makespan(slots)
        assert replay.peak_bytes <= slots


@pytest.mark.parametrize("shape", PRINTED)
def test_figure_9(shape: str) -> None:
    golden = golden_joins.figures()["fig9"]
    cases = [key for key in golden if key.startswith(shape) and int(key.split("-L")[1]) <= 15]
    assert cases
    for key in cases:
        slots, size = (int(part[1:]) for part in key.split("-")[1:])
        assert solve_join(_join(*_lengths(shape, size)), slots).makespan == golden[key], key


@pytest.mark.parametrize("case", GROUPED)
def test_figure_10(case: tuple[int, int]) -> None:
    slots, length = case
    join, (grouped, optimum) = _join(length, length, length), GROUPED[case]
    replay = simulate_join(join, equivalent_chain(join, slots))
    assert (replay.makespan, solve_join(join, slots).makespan) == (grouped, optimum)
    assert replay.peak_bytes <= slots


@pytest.mark.parametrize("slots", range(2, 9))
def test_closed_form_of_opt_0(slots: int) -> None:
    """Against its recursion, Equation (2): l steps cost min_i i + Opt_0(l-i, c-1) + Opt_0(i-1, c).

    The closed form counts steps, so that ``Opt_0(l, c)`` is that of l + 1.
    """
    table = {(0, c): 0 for c in range(2, slots + 1)}
    for c in range(2, slots + 1):
        for steps in range(1, 41):
            cuts = [
                i + table.get((steps - i, c - 1), IMPOSSIBLE) + table[i - 1, c]
                for i in range(1, steps + 1)
            ]
            table[steps, c] = min(*cuts, IMPOSSIBLE) if c > 2 else IMPOSSIBLE
    for steps in range(41):
        assert least_reversal_forwards(steps + 1, slots) == table[steps, slots]


def test_increments_of_opt_0() -> None:
    """The r-th repeat is used binom(c - 3 + r, r) times ([BHPS20], after [GW00])."""
    values = [least_reversal_forwards(n, 5) for n in range(1, 60)]
    increments = [later - earlier for earlier, later in pairwise(values)]
    assert [increments.count(r) for r in (1, 2, 3)] == [comb(2 + r, r) for r in (1, 2, 3)]


@pytest.mark.parametrize("lengths", [(4, 10, 12), (10, 50), (20, 20, 20), (3, 9, 20)])
def test_waterfilling_is_a_bound_and_mostly_tight(lengths: tuple[int, ...]) -> None:
    curve = join_curve(_join(*lengths))
    bounds = [waterfilling_bound(_join(*lengths), slots) for slots in curve.slots]
    pairs = [(b, m) for b, m in zip(bounds, curve.makespans, strict=True) if b is not None]
    assert len(pairs) == len(bounds)
    assert all(bound <= makespan for bound, makespan in pairs)
    assert sum(bound == makespan for bound, makespan in pairs) > len(pairs) / 3


def test_waterfilling_is_exact_for_a_single_chain() -> None:
    curve = join_curve(_join(30))
    assert tuple(waterfilling_bound(_join(30), slots) for slots in curve.slots) == curve.makespans


def test_rerunning_the_turn_would_pay() -> None:
    """k_T = 1 is an assumption: (8, 8) with 5 slots takes 65, and 62 with a second turn.

    The referee refuses a second turn; the solution says "single-turn".
    """
    solution = solve_join(_join(8, 8), 5)
    assert solution.makespan == 65
    assert "single-turn" in solution.describe()
    assert Schedule.parse(str(solution.schedule)) == solution.schedule
