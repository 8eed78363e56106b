"""Weak persistence against the shared optima, exhaustive search and a dense table of its own."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, Claim, Family, InfeasibleBudgetError, simulate
from chainstay.dp import least_budget
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain.recursion_arrays import plain_arrays, recursion_arrays
from chainstay.dp.recursion import Recursion
from chainstay.dp.weak.move_bound import move_bound
from chainstay.errors import UnknownMethodError
from chainstay.schedule import Discards
from chainstay.validation import search
from golden_chains import GOLDEN, GoldenChain
from strategies import FAMILIES_WITHOUT_SKIPS, chains

WEAK = DP(persistence="weak")
MANY = settings(max_examples=300, deadline=None)
by_name = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


def solve(profile: ChainProfile, budget: int) -> Claim:
    """The claim, after a replay under the rules of Table 1 and those it claims."""
    claim = WEAK(profile, budget)
    for rules in (Discards.TABLE1, claim.discards):
        replay = simulate(profile, claim.schedule, discards=rules)
        assert replay.makespan == claim.makespan == claim.lower_bound
        assert replay.peak_bytes <= budget
    return claim


@by_name
def test_weak_optimum_of_golden_chains(golden: GoldenChain) -> None:
    if golden.optimum["weak"] is None:
        with pytest.raises(InfeasibleBudgetError, match="weakly persistent") as caught:
            WEAK(golden.profile, golden.budget)
        assert caught.value.required == golden.min_budget["weak"]
        return
    assert solve(golden.profile, golden.budget).makespan == golden.optimum["weak"]


@by_name
def test_least_weak_budget_of_golden_chains(golden: GoldenChain) -> None:
    assert least_budget(golden.profile, persistence="weak") == golden.min_budget["weak"]


@MANY
@given(chains(families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 150))
@pytest.mark.long
def test_weak_is_never_above_persistent(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    assert solve(profile, budget).makespan <= DP()(profile, budget).makespan


@MANY
@given(chains(max_stages=7, families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 60))
def test_weak_equals_a_dense_table(profile: ChainProfile, extra: int) -> None:
    least = least_budget(profile, persistence="weak")
    assert least <= least_budget(profile)
    assert _dense(profile, least - 1) is None
    assert solve(profile, least + extra).makespan == _dense(profile, least + extra)


@MANY
@given(chains(max_stages=5, families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 60))
@pytest.mark.long
def test_claims_about_all_schedules_hold_in_exhaustive_search(
    profile: ChainProfile, extra: int
) -> None:
    budget = least_budget(profile, persistence="weak") + extra
    claim = solve(profile, budget)
    optimum = search.optimum(profile, budget, discards=claim.discards).makespan
    if claim.family is Family.ALL:
        assert claim.makespan == optimum
    else:
        assert claim.family is Family.WEAKLY_PERSISTENT
        assert claim.makespan >= optimum


@settings(max_examples=150, deadline=None)
@given(chains(max_stages=6, families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 60))
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    profile: ChainProfile, extra: int
) -> None:
    memory = least_budget(profile, persistence="weak") - profile.input_bytes + extra
    by_kind, n = recursion_arrays(Recursion.from_profile(profile)), len(profile)
    chain = plain_arrays(by_kind)
    nothing = np.zeros((n, n), dtype=np.int64)
    bound = LagrangianBound(by_kind, memory, nothing, moves_checkpoints=True)
    moves = move_bound(chain, bound.outside, bound.restarted)
    multipliers = bound.step * np.arange(bound.outside.shape[2])
    for (s, t, end, m), spent in _least_spent_around(profile, memory).items():
        if s == t:
            lines = bound.outside[t, end]
        else:
            rerun = chain.elapsed[end + 1] - chain.elapsed[s]
            lines = np.minimum(moves.as_later[t, end], rerun + moves.as_earlier[t, end])
            lines = lines + multipliers * chain.activation[s]
        assert (lines + multipliers * m).max() <= spent + 1e-6
    optimum = WEAK(profile, memory + profile.input_bytes).makespan - profile.least_time
    assert bound.root <= optimum + 1e-6


@settings(max_examples=15, deadline=None)
@given(chains(max_stages=25, families=FAMILIES_WITHOUT_SKIPS), st.floats(0.0, 1.0))
def test_longer_chains_replay_and_stay_below_persistent(
    profile: ChainProfile, share: float
) -> None:
    least = least_budget(profile, persistence="weak")
    budget = least + int(share * (least_budget(profile) * 2 - least))
    claim = solve(profile, budget)
    if budget >= least_budget(profile):
        assert claim.makespan <= DP()(profile, budget).makespan


@pytest.mark.parametrize("method", [DP(persistence="weak")], ids=str)
def test_the_least_weak_budget_is_exact(method: DP) -> None:
    # THEORY, Lemma 4.4's counter-example: feasible, but not for weakly persistent schedules
    for golden in GOLDEN:
        least = least_budget(golden.profile, persistence="weak")
        assert method(golden.profile, least).makespan >= golden.profile.least_time
        with pytest.raises(InfeasibleBudgetError):
            method(golden.profile, least - 1)


def test_weak_has_no_slots_and_no_curve() -> None:
    with pytest.raises(UnknownMethodError, match="slots is 9"):
        DP(persistence="weak", slots=9)
    with pytest.raises(UnknownMethodError, match="no curve for persistence='weak'"):
        WEAK.curve(GOLDEN[0].profile)
    with pytest.raises(UnknownMethodError, match="'feeble'"):
        least_budget(GOLDEN[0].profile, persistence="feeble")


def _dense(profile: ChainProfile, budget: int) -> int | None:
    """The corrected recursion as it stands in the derivation: unfactored, with times."""
    p = profile.arrays()
    time, back, a = p.forward_time.tolist(), p.backward_time.tolist(), p.activation.tolist()
    saved, gradient = p.saved.tolist(), p.gradient.tolist()
    forward_extra, backward_extra = p.forward_overhead.tolist(), p.backward_overhead.tolist()

    @cache
    def least(s: int, t: int, end: int, m: int) -> float:
        if m < 0:
            return float("inf")
        options = [float("inf")]
        keep = max(
            gradient[end + 1] + saved[s] + forward_extra[s],
            gradient[s + 1] + gradient[s] + saved[s] + backward_extra[s],
        )
        first = gradient[end + 1] + a[s + 1] + forward_extra[s]
        if s == t and m >= keep:
            inner = least(s + 1, s + 1, end, m - saved[s]) if s < end else 0
            options.append(time[s] + inner + back[s])
        if s < t and m >= first:
            options.append(time[s] + least(s + 1, t, end, m + a[s] - a[s + 1]))
        run, need = time[s], first
        for j in range(s + 1, end + 1):
            options += [
                run + least(j, k, end, m - a[j]) + least(s, t, k - 1, m)
                for k in range(max(j, t + 1), end + 1)
                if m >= need
            ]
            run += time[j]
            need = max(need, gradient[end + 1] + a[j] + a[j + 1] + forward_extra[j])
        return min(options)

    optimum = least(0, 0, len(profile) - 1, budget - profile.input_bytes)
    return None if optimum == float("inf") else int(optimum)


def test_without_numba_all_of_it_is_slower_but_the_same() -> None:
    golden = next(g for g in GOLDEN if g.optimum["weak"] is not None and g.stages <= 5)
    profile, budget = golden.profile, golden.budget
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from chainstay import DP, ChainProfile\n"
        "profile = ChainProfile.from_json(sys.stdin.read())\n"
        f"weak = DP(persistence='weak')(profile, {budget})\n"
        f"print(weak.schedule, DP()(profile, {budget}).schedule, sep='\\n')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=profile.to_json(),
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [WEAK(profile, budget).schedule, DP()(profile, budget).schedule]
    assert ran.stdout.splitlines() == [str(schedule) for schedule in expected]


State = tuple[int, int, int, int]
"""s, t, l, m: the sub-chain of W(s, t, l, m)."""


def _least_spent_around(profile: ChainProfile, memory: int) -> dict[State, float]:
    """For each state of any schedule: the least overhead outside of it, over all schedules."""

    @cache
    def overhead(state: State) -> float:
        return min(
            (rerun + sum(map(overhead, parts)) for rerun, parts in _decisions(profile, state)),
            default=float("inf"),
        )

    spent: dict[State, float] = defaultdict(lambda: float("inf"))
    spent[0, 0, len(profile) - 1, memory] = 0.0
    pending = list(spent)
    while pending:
        state = pending.pop()
        for rerun, parts in _decisions(profile, state):
            total = spent[state] + rerun + sum(map(overhead, parts))
            for part in parts:
                if total - overhead(part) < spent[part]:
                    spent[part] = total - overhead(part)
                    pending.append(part)
    return spent


def _decisions(profile: ChainProfile, state: State) -> Iterator[tuple[int, list[State]]]:
    """Time of the rerun, and parts, of each decision as the derivation has them, unfactored."""
    s, t, end, m = state
    p = profile.arrays()
    a, delta, extra = p.activation.tolist(), p.gradient.tolist(), p.forward_overhead.tolist()
    first = delta[end + 1] + a[s + 1] + extra[s]
    if s == t:
        backward = delta[s + 1] + delta[s] + int(p.backward_overhead[s])
        if m >= p.saved[s] + max(delta[end + 1] + extra[s], backward):
            yield 0, [(s + 1, s + 1, end, m - int(p.saved[s]))] if s < end else []
    elif m >= first:
        yield 0, [(s + 1, t, end, m + a[s] - a[s + 1])]
    need = first
    for j in range(s + 1, end + 1):
        if m >= need:
            for k in range(max(j, t + 1), end + 1):
                rerun = int(p.forward_time[s:k].sum())
                yield rerun, [(j, k, end, m - a[j]), (s, t, k - 1, m)]
        need = max(need, delta[end + 1] + a[j] + a[j + 1] + extra[j])
