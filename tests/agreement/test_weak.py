"""Weak persistence against the shared optima, exhaustive search and a dense table of its own."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, Claim, Family, InfeasibleBudgetError, simulate
from chainstay.dp import least_budget
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain.recursion_arrays import recursion_arrays
from chainstay.dp.recursion import Recursion
from chainstay.dp.weak.move_bound import move_bound
from chainstay.errors import UnknownMethodError
from chainstay.schedule import Discards
from chainstay.validation import search
from chainstay.verify.option_instances import OPTION_FAMILIES
from golden_chains import GOLDEN, GoldenChain
from golden_options import ALL, GoldenOptions
from strategies import FAMILIES_WITHOUT_SKIPS, chains

WEAK = DP(persistence="weak")
MANY = settings(max_examples=300, deadline=None)
NEVER = float("inf")
by_name = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)

State = tuple[int, int, int, int]
"""s, t, l, m: the sub-chain of W(s, t, l, m)."""


def drawn(max_stages: int = 8) -> st.SearchStrategy[ChainProfile]:
    """Chains without skips, some of them with options and costs by kind of run."""
    plain = chains(max_stages=max_stages, families=FAMILIES_WITHOUT_SKIPS)
    options = chains(max_stages=max_stages, families=OPTION_FAMILIES)
    return st.one_of(plain, options.map(lambda profile: replace(profile, skips=())))


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


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
def test_weak_optimum_of_golden_chains_with_options(golden: GoldenOptions) -> None:
    expected = golden.dp["weak"]
    if expected is None:
        with pytest.raises(InfeasibleBudgetError, match="weakly persistent"):
            WEAK(golden.profile, golden.budget)
        return
    claim = solve(golden.profile, golden.budget)
    assert claim.makespan == expected
    facts = golden.facts
    for name, rules in (("domain_A_options", "tape"), ("domain_B_options", "table1")):
        if facts.get(name) and facts.get("all_need_input"):
            assert claim.family is Family.ALL
            assert claim.makespan == golden.optimum[rules]
    if claim.family is Family.ALL:
        assert claim.makespan == golden.optimum[claim.discards]


@MANY
@given(drawn(), st.integers(0, 150))
@pytest.mark.long
def test_weak_is_never_above_persistent(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    assert solve(profile, budget).makespan <= DP()(profile, budget).makespan


@pytest.mark.long
@MANY
@given(drawn(7), st.integers(0, 60))
def test_weak_equals_a_dense_table(profile: ChainProfile, extra: int) -> None:
    least = least_budget(profile, persistence="weak")
    assert least <= least_budget(profile)
    assert _dense(profile, least - 1) is None
    assert solve(profile, least + extra).makespan == _dense(profile, least + extra)


@MANY
@given(
    st.one_of(chains(max_stages=5, families=FAMILIES_WITHOUT_SKIPS), drawn(3)), st.integers(0, 60)
)
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
@given(drawn(6), st.integers(0, 60))
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    profile: ChainProfile, extra: int
) -> None:
    memory = least_budget(profile, persistence="weak") - profile.input_bytes + extra
    recursion = Recursion.from_profile(profile)
    by_kind, n = recursion_arrays(recursion), len(profile)
    elapsed, activation = by_kind.again.elapsed, recursion.activation
    nothing = np.zeros((n, n), dtype=np.int64)
    bound = LagrangianBound(by_kind, memory, nothing, moves_checkpoints=True)
    moves = move_bound(by_kind, bound.outside, bound.restarted)
    multipliers = bound.step * np.arange(bound.outside.shape[2])
    base = _base_times(profile)
    assert base((0, 0, n - 1, 0)) == recursion.base_time
    for state, time in _least_spent_around(profile, memory).items():
        s, t, end, m = state
        if s == t:
            lines = bound.outside[t, end]
        else:
            rerun = elapsed[end + 1] - elapsed[s]
            lines = np.minimum(moves.as_later[t, end], rerun + moves.as_earlier[t, end])
            lines = lines + multipliers * activation[s]
        spent = time - recursion.base_time + base(state)
        assert (lines + multipliers * m).max() <= spent + 1e-6
    optimum = WEAK(profile, memory + profile.input_bytes).makespan - recursion.base_time
    assert bound.root <= optimum + 1e-6


@settings(max_examples=15, deadline=None)
@given(drawn(25), st.floats(0.0, 1.0))
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


def _dense(profile: ChainProfile, budget: int) -> int | None:
    """The corrected recursion as it stands in the derivation: unfactored, with times."""
    optimum = _least_times(profile)((0, 0, len(profile) - 1, budget - profile.input_bytes))
    return None if optimum == float("inf") else int(optimum)


def _least_times(profile: ChainProfile) -> Callable[[State], float]:
    """The least time of any state."""

    @cache
    def least(state: State) -> float:
        decisions = _decisions(profile, state) if state[3] >= 0 else ()
        return min((time + sum(map(least, parts)) for time, parts in decisions), default=NEVER)

    return least


def _least_spent_around(profile: ChainProfile, memory: int) -> dict[State, float]:
    """For each state of any schedule: the least time outside of it, over all schedules."""
    least = _least_times(profile)
    spent: dict[State, float] = defaultdict(lambda: NEVER)
    spent[0, 0, len(profile) - 1, memory] = 0.0
    pending = list(spent)
    while pending:
        state = pending.pop()
        for time, parts in _decisions(profile, state):
            total = spent[state] + time + sum(map(least, parts))
            for part in parts:
                if total - least(part) < spent[part]:
                    spent[part] = total - least(part)
                    pending.append(part)
    return spent


def _decisions(profile: ChainProfile, state: State) -> Iterator[tuple[int, list[State]]]:
    """Time and parts of each decision as the derivation has them, unfactored."""
    s, t, end, m = state
    is_first, gradient = end == len(profile) - 1, profile.gradient_bytes(end + 1)
    a = [profile.activation_bytes(i) for i in range(len(profile) + 1)]
    dropped = [stage.dropped(first=is_first) for stage in profile.stages]
    first = gradient + a[s + 1] + dropped[s].overhead_bytes
    if s == t:
        for option in profile.stages[s].all_options:
            after, run = s + option.stages, option.run(first=is_first)
            backward = profile.gradient_bytes(s) + option.backward_overhead_bytes
            backward += profile.gradient_bytes(min(after, len(profile)))
            need = option.saved_bytes + max(gradient + run.overhead_bytes, backward)
            if after <= end + 1 and m >= need:
                rest = [(after, after, end, m - option.saved_bytes)] if after <= end else []
                yield run.time + run.backward_time, rest
    elif m >= first:
        yield dropped[s].time, [(s + 1, t, end, m + a[s] - a[s + 1])]
    time, need = dropped[s].time, first
    for j in range(s + 1, end + 1):
        if m >= need:
            for k in range(max(j, t + 1), end + 1):
                yield time, [(j, k, end, m - a[j]), (s, t, k - 1, m)]
        time += dropped[j].time
        need = max(need, gradient + a[j] + a[j + 1] + dropped[j].overhead_bytes)


def _base_times(profile: ChainProfile) -> Callable[[State], int]:
    """What overheads of states are counted above, as the derivation of options has it."""
    n = len(profile)
    first, again = [0] * (n + 1), [0] * (n + 1)

    def kept(s: int, base: list[int], *, is_first: bool) -> int:
        options = profile.stages[s].all_options
        runs = ((option.run(first=is_first), base[s + option.stages]) for option in options)
        return min(run.time + run.backward_time + rest for run, rest in runs)

    for s in reversed(range(n)):
        again[s] = kept(s, again, is_first=False)
        rerun = profile.stages[s].dropped(first=True).time + again[s] - again[s + 1]
        first[s] = min(kept(s, first, is_first=True), rerun + first[s + 1])

    def base(state: State) -> int:
        s, t, end, _ = state
        is_first = end == n - 1
        times = first if is_first else again
        moved = sum(stage.dropped(first=is_first).time for stage in profile.stages[s:t])
        return moved + times[t] - times[end + 1]

    return base
