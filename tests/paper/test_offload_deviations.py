"""Where [BES20] is wrong as printed: each correction with an instance that tells them apart.

`algorithm1` is the program again, in fractions and without pruning, with a switch for each
correction: a second way to the numbers of `chainstay.dp.offload`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings

from chainstay.errors import InvalidScheduleError
from chainstay.formulations import MIP
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve.offload import solve_offload
from chainstay.validation.offload.simulate import simulate_offload
from golden_offloads import FEASIBLE, GOLDEN, GoldenOffload, require_solvers
from offload_strategies import OffloadCase, offload_cases

require_solvers()


@dataclass(frozen=True)
class Equations:
    """Which equations are the corrected ones."""

    backward_overhead_in_6: bool = True
    positive_parts: bool = True
    gradient_after_in_r: bool = True
    loss_gradient_not_in_10: bool = True
    not_back_before_free: bool = True


CORRECTED = Equations()


def algorithm1(p: OffloadProfile, budget: int, link: Link, eq: Equations) -> Fraction | None:
    """The makespan that Algorithm 1 finds with these equations, or None if it finds no plan."""
    beta, last, y = Fraction(link.bandwidth), len(p) - 1, p.gradients
    x = p.activations
    states = {(Fraction(x[0]), Fraction(0), Fraction(0)): Fraction(0)}
    for i in range(last + 1):
        following: dict[tuple[Fraction, Fraction, Fraction], Fraction] = {}
        for (mf, df, db), idle in states.items():
            wait_out, wait_back = max(Fraction(0), df), max(Fraction(0), db)
            mb = y[i] + wait_back + mf - wait_out
            less_f, less_b = (wait_out, wait_back) if eq.positive_parts else (df, db)
            over_f = mf + p.forward_overheads[i] + x[i + 1] - budget
            over_b = mb + p.backward_overheads[i] + x[i + 1] + y[i + 1] - budget
            if over_f > less_f or over_b > less_b:
                continue
            if not eq.backward_overhead_in_6:
                over_b += p.forward_overheads[i] - p.backward_overheads[i]
            wait_f, wait_b = max(Fraction(0), over_f / beta), max(Fraction(0), over_b / beta)
            cf, cb = (wait_f + p.forward_times[i]) * beta, (wait_b + p.backward_times[i]) * beta
            out = wait_out + x[i]
            left = max(Fraction(0), out - cf) if eq.not_back_before_free else out - cf
            for state in (
                (mf + x[i + 1] - min(out, cf), left, x[i] + max(Fraction(0), db - cb)),
                (mf + x[i + 1] - min(wait_out, cf), df - cf, db - cb),
            ):
                total = idle + wait_f + wait_b
                following[state] = min(total, following.get(state, total))
        states = following
    totals = [idle + _glue(p, budget, beta, state, eq) for state, idle in states.items()]
    return p.least_time + min(totals) if totals else None


def _glue(
    p: OffloadProfile,
    budget: int,
    beta: Fraction,
    state: tuple[Fraction, Fraction, Fraction],
    eq: Equations,
) -> Fraction:
    mf, df, db = state
    x, y, last = p.activations, p.gradients, len(p) - 1
    mb = y[last + 1] + max(Fraction(0), db) + mf - max(Fraction(0), df)
    if df <= 0 and db <= 0:
        return Fraction(0)
    if df > 0 and db > 0:
        return (df + db) / beta
    is_forward = df > 0
    idle = -min(df, db) / beta
    wait, passed = max(Fraction(0), max(df, db) / beta - idle), Fraction(0)
    for j in range(last, -1, -1):
        if passed < idle:
            older = sum(x[j + 2 : last + 2])
            if is_forward:
                neighbour = y[j + 1] if eq.gradient_after_in_r else y[j - 1] if j else 0
                need = p.backward_overheads[j] + y[j] + neighbour - older + mf
            else:
                need = p.forward_overheads[j] - older + mb
                need -= y[last + 1] if eq.loss_gradient_not_in_10 else 0
            wait = max(wait, (need - budget) / beta - passed)
        passed += p.backward_times[j] if is_forward else p.forward_times[j]
    return wait


@pytest.mark.parametrize("golden", FEASIBLE, ids=lambda golden: golden.name)
def test_the_corrected_program_agrees_with_ours(golden: GoldenOffload) -> None:
    found = algorithm1(golden.profile, golden.budget, golden.link, CORRECTED)
    assert found == golden.interruptible_ordered


@settings(max_examples=150)
@given(offload_cases(max_stages=6, simple_links=True))
def test_the_corrected_program_agrees_with_ours_on_random_chains(case: OffloadCase) -> None:
    found = algorithm1(case.profile, case.budget, case.link, CORRECTED)
    ours = solve_offload(
        case.profile, case.budget, link=case.link, method="dp", transfers="interruptible"
    )
    assert found == ours.makespan


@pytest.mark.parametrize(
    ("category", "equations"),
    [
        ("eq6", replace(CORRECTED, backward_overhead_in_6=False)),
        ("plus", replace(CORRECTED, positive_parts=False)),
        ("ry", replace(CORRECTED, gradient_after_in_r=False)),
        ("eq10y", replace(CORRECTED, loss_gradient_not_in_10=False)),
    ],
)
def test_each_printed_equation_is_wrong_somewhere(category: str, equations: Equations) -> None:
    (golden,) = [g for g in GOLDEN if g.category == f"printed-typo-{category}"]
    printed = algorithm1(golden.profile, golden.budget, golden.link, equations)
    assert printed != golden.interruptible_ordered
    certified = solve_offload(
        golden.profile, golden.budget, link=golden.link, method="dp", transfers="interruptible"
    )
    assert certified.makespan == golden.interruptible_ordered


def test_what_has_left_early_cannot_come_back_before_its_forward_ends() -> None:
    """Not among the four: found by `chainstay verify`.

    x_0 has left after 2 of the 3 that F_0 takes, and can come back from 3 on only: 5 in all.
    As printed it comes back from 2 on, and 4 are enough.
    """
    profile = OffloadProfile(
        activations=(2, 0, 0),
        gradients=(0, 0, 0),
        forward_overheads=(0, 0),
        backward_overheads=(0, 1),
        forward_times=(3, 0),
        backward_times=(0, 0),
    )
    link = Link(bandwidth=1)
    printed = algorithm1(profile, 2, link, replace(CORRECTED, not_back_before_free=False))
    assert printed == 4
    assert algorithm1(profile, 2, link, CORRECTED) == 5
    ours = solve_offload(profile, 2, link=link, method="dp", transfers="interruptible")
    assert ours.makespan == 5
    assert [(str(move.op), move.start, move.end) for move in ours.timetable.moves] == [
        ("Oa0", 0, 2),
        ("Pa0", 3, 5),
    ]
    exact = solve_offload(profile, 2, link=link, method=MIP(), transfers="interruptible")
    assert exact.makespan == 5
    assert exact.is_optimal


LEMMA3 = OffloadProfile(
    activations=(2, 3, 4, 2),
    gradients=(0, 0, 0, 0),
    forward_overheads=(0, 0, 5),
    backward_overheads=(0, 0, 0),
    forward_times=(1, 2, 2),
    backward_times=(1, 3, 2),
)


def test_lemma_3_is_false() -> None:
    """Interleaving a prefetch before a later offload wins: 11 against 12."""
    link = Link(bandwidth=1)
    ordered = solve_offload(LEMMA3, 13, link=link, method="dp", transfers="interruptible")
    assert (ordered.makespan, ordered.family) == (12, Family.OFFLOAD_FIRST)
    assert algorithm1(LEMMA3, 13, link, CORRECTED) == 12
    best = solve_offload(LEMMA3, 13, link=link, method="mip", transfers="interruptible")
    assert (best.makespan, best.lower_bound, best.family) == (11, 11, Family.ALL)
    kinds = [move.op.kind for move in best.timetable.moves]
    assert kinds != sorted(kinds)


def test_proposition_1_is_false() -> None:
    """Same sets, same orders of computations and of transfers: one plan runs, one deadlocks."""
    profile, link = LEMMA3, Link(bandwidth=1)
    late = Schedule.parse("Fa0 Oa0 Fa1 Oa1 Fa2 B2 Pa1 B1 Pa0 B0")
    early = Schedule.parse("Fa0 Oa0 Fa1 Oa1 Fa2 Pa1 Pa0 B2 B1 B0")
    assert simulate_offload(profile, late, budget=11, link=link).peak_bytes <= 11
    crowded = replace(profile, backward_overheads=(0, 0, 5))
    assert simulate_offload(crowded, late, budget=11, link=link).peak_bytes <= 11
    with pytest.raises(InvalidScheduleError, match="B2 waits for ever: it needs 5 bytes"):
        simulate_offload(crowded, early, budget=11, link=link)
