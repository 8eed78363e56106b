"""Detached saved data against the shared optima, exhaustive search and the bare recursion."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, Claim, Family, InfeasibleBudgetError, Skip, Stage, simulate
from chainstay.dp import least_budget
from chainstay.dp.bounds.unrestricted_bound import unrestricted_bound
from chainstay.errors import UnknownMethodError
from chainstay.schedule import Discards
from chainstay.validation import search
from golden_chains import GOLDEN, GoldenChain
from strategies import FAMILIES_WITHOUT_SKIPS, chains
from tensors import Tensors

RESTING = DP(discards="free")
FLOATING = DP(persistence="weak", discards="free")
MANY = settings(max_examples=400, deadline=None)
SKIPPING = chains(max_stages=6, families=("skips",))
by_name = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
both = pytest.mark.parametrize("method", [RESTING, FLOATING], ids=str)
feasible = pytest.mark.parametrize(
    "golden",
    [golden for golden in GOLDEN if golden.optimum["free"] is not None],
    ids=lambda golden: golden.name,
)

MISSED = {"pub_lemma44_0@21": 70}
"""The one golden chain whose optimum is no such schedule: a gradient exceeds its activation."""


def solve(method: DP, profile: ChainProfile, budget: int) -> Claim:
    """The claim, after a replay under the rules it claims."""
    claim = method(profile, budget)
    assert claim.discards is Discards.FREE
    replay = simulate(profile, claim.schedule, discards="free")
    assert replay.makespan == claim.makespan == claim.lower_bound
    assert replay.peak_bytes <= budget
    assert unrestricted_bound(profile, budget) <= claim.makespan
    return claim


def least(method: DP, profile: ChainProfile) -> int:
    return least_budget(profile, persistence=method.persistence, discards=method.discards)


@feasible
def test_golden_optima(golden: GoldenChain) -> None:
    free = golden.optimum["free"]
    assert free is not None
    floating = solve(FLOATING, golden.profile, golden.budget).makespan
    resting = solve(RESTING, golden.profile, golden.budget).makespan
    assert floating == MISSED.get(golden.name, free)
    assert floating <= resting
    for name, method in (("persistent", resting), ("weak", floating), ("tape", floating)):
        other = golden.optimum[name]
        assert other is None or method <= other or golden.name in MISSED


@by_name
@both
def test_least_budget_of_golden_chains(golden: GoldenChain, method: DP) -> None:
    required = least(method, golden.profile)
    assert golden.min_budget["free"] <= required <= golden.min_budget["persistent"]
    solve(method, golden.profile, required)
    with pytest.raises(InfeasibleBudgetError) as caught:
        method(golden.profile, required - 1)
    assert caught.value.required == required


def test_table_2_at_90_mb() -> None:
    table2 = GOLDEN[0]
    assert (table2.name, table2.budget) == ("table2@9000", 9000)
    claim = solve(RESTING, table2.profile, table2.budget)
    assert claim.makespan == 4278
    assert DP()(table2.profile, table2.budget).makespan == 4742


@MANY
@given(chains(), st.integers(0, 150))
def test_never_above_the_programs_it_contains(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    resting = solve(RESTING, profile, budget).makespan
    assert resting <= DP()(profile, budget).makespan
    if not profile.skips:
        weak = DP(persistence="weak")(profile, budget).makespan
        assert solve(FLOATING, profile, budget).makespan <= min(resting, weak)


@MANY
@given(chains(max_stages=6, families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 60))
def test_floating_equals_the_bare_recursion(profile: ChainProfile, extra: int) -> None:
    required = least(FLOATING, profile)
    assert _bare(profile, required - 1) is None
    claim = solve(FLOATING, profile, required + extra)
    assert claim.makespan == _bare(profile, required + extra)


@settings(max_examples=400, deadline=None)
@given(st.one_of(chains(max_stages=6), SKIPPING), st.integers(0, 60))
def test_resting_equals_the_recursion_on_sets_of_tensors(profile: ChainProfile, extra: int) -> None:
    required = least(RESTING, profile)
    assert _on_sets(profile, required - 1) == float("inf")
    claim = solve(RESTING, profile, required + extra)
    assert claim.makespan == _on_sets(profile, required + extra)


def test_what_held_saved_data_pass_on_takes_memory() -> None:
    """One chain in thousands where counting it too low at the start of a sweep changes anything."""
    sizes = [  # forward and backward time; output, saved, gradient; overheads
        (3, 49, 8, 18, 3, 9, 5),
        (2, 0, 15, 9, 5, 2, 7),
        (2, 1, 18, 18, 13, 6, 0),
        (91, 0, 10, 13, 10, 6, 2),
        (0, 2, 2, 11, 2, 3, 0),
    ]
    profile = ChainProfile(
        input_bytes=1,
        input_gradient_bytes=1,
        stages=tuple(
            Stage(
                forward_time=forward,
                backward_time=backward,
                output_bytes=output,
                saved_bytes=saved,
                gradient_bytes=gradient,
                forward_overhead_bytes=forward_more,
                backward_overhead_bytes=backward_more,
            )
            for forward, backward, output, saved, gradient, forward_more, backward_more in sizes
        ),
        skips=(
            Skip(first=1, last=2, bytes=5),
            Skip(first=1, last=3, bytes=2, gradient_bytes=2),
            Skip(first=2, last=3, bytes=5),
            Skip(first=3, last=4, bytes=3, gradient_bytes=3),
        ),
    )
    assert solve(RESTING, profile, 62).makespan == _on_sets(profile, 62) == 157


@settings(max_examples=150, deadline=None)
@given(chains(max_stages=5, families=("skips",)), st.integers(0, 60))
def test_with_skips_not_below_exhaustive_search(profile: ChainProfile, extra: int) -> None:
    budget = least(RESTING, profile) + extra
    claim = solve(RESTING, profile, budget)
    optimum = search.optimum(profile, budget, discards="free").makespan
    assert optimum <= claim.makespan
    if claim.family is Family.ALL:
        assert claim.makespan == optimum


@settings(max_examples=400, deadline=None)
@given(chains(max_stages=5, families=FAMILIES_WITHOUT_SKIPS), st.integers(0, 60))
@pytest.mark.long
def test_not_below_exhaustive_search_and_the_bound_not_above(
    profile: ChainProfile, extra: int
) -> None:
    budget = least(FLOATING, profile) + extra
    claim = solve(FLOATING, profile, budget)
    optimum = search.optimum(profile, budget, discards="free").makespan
    assert unrestricted_bound(profile, budget) <= optimum <= claim.makespan
    if claim.family is Family.ALL:
        assert claim.makespan == optimum


@pytest.mark.parametrize("stages", [40, 90])
def test_long_chains_gain_and_come_close_to_the_bound(stages: int) -> None:
    blocks = [(170, 7), (6, 1), (220, 9), (6, 1)]  # attention, its sum, MLP, its sum
    profile = ChainProfile(
        input_bytes=24,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=time + i % 3,
                backward_time=2 * time,
                output_bytes=24,
                saved_bytes=24 * size,
                backward_overhead_bytes=time // 10,
            )
            for i in range(stages)
            for time, size in [blocks[i % 4]]
        ),
    )
    budget = sum(stage.saved_bytes for stage in profile.stages) * 2 // 5
    attached = DP()(profile, budget).makespan - profile.least_time
    detached = solve(RESTING, profile, budget).makespan - profile.least_time
    bound = unrestricted_bound(profile, budget) - profile.least_time
    assert detached < attached * 0.99
    assert bound <= detached <= bound * 1.10


def test_settings_that_there_are_not() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'none', must be one of 'table1'"):
        DP(discards="none")
    with pytest.raises(UnknownMethodError, match="slots is 9, but discards='free'"):
        DP(discards="free", slots=9)
    with pytest.raises(UnknownMethodError, match="no curve for discards='free'"):
        RESTING.curve(GOLDEN[0].profile)
    assert str(FLOATING) == "dp, weakly persistent, free discards"


@pytest.mark.parametrize("persistence", ["strong", "weak"])
def test_tape_rules_change_nothing_but_the_claim(persistence: str) -> None:
    golden = GOLDEN[0]
    tape = DP(persistence=persistence, discards="tape")(golden.profile, golden.budget)
    table1 = DP(persistence=persistence)(golden.profile, golden.budget)
    assert (tape.schedule, tape.makespan, tape.family) == (
        table1.schedule,
        table1.makespan,
        table1.family,
    )
    assert tape.discards is Discards.TAPE


def _on_sets(profile: ChainProfile, budget: int) -> float:  # noqa: C901  # one case each
    """The recursion of `chainstay.dp.free_discards.solver` with every stored tensor by name."""
    tensors = Tensors(profile)
    never = float("inf")

    def fits(stored: frozenset[str], besides: int) -> bool:
        return tensors.stored(stored) + besides <= budget

    @cache
    def least(s: int, end: int, held: int, left: int, stored: frozenset[str]) -> float:
        stage, gradient = profile.stages[s], profile.gradient_bytes(end + 1)
        recorded = stored | {f"saved {s}"}
        after = recorded - {f"saved {end}"} if s < end else recorded
        backward = tensors.gradients(s) + stage.backward_overhead_bytes
        options = [never]
        if held and s == end:
            return stage.backward_time if fits(stored, backward) else never
        if fits(recorded, gradient + stage.forward_overhead_bytes):
            inner = recorded - {f"a {s}"} if left else recorded
            total: float = stage.forward_time
            total += least(s + 1, end, held, 0, inner) if s < end else 0
            if left:
                options.append(total)
            elif fits(after, backward):
                options.append(total + stage.backward_time)
        spent = 0
        for j in range(s + 1, end + 1):
            running = stored | {f"a {j}"} | ({f"a {j - 1}"} if j - 1 > s else set())
            if not fits(running, gradient + profile.stages[j - 1].forward_overhead_bytes):
                break
            spent += profile.stages[j - 1].forward_time
            rest = stored - {f"saved {end}"}
            for detached in range(1 if held and j == end else 2):
                later = least(j, end, held, detached, stored | {f"a {j}"})
                if later < never:
                    again = rest | {f"saved {j}"} if detached else rest
                    options.append(
                        spent + later + least(s, j - 1 + detached, detached, left, again)
                    )
        return min(options)

    return least(0, len(profile) - 1, 0, 0, frozenset({"a 0"}))


def _bare(profile: ChainProfile, budget: int) -> int | None:
    """The recursion as `dp.weak_free_discards.solver` states it, with times, unfactored."""
    p = profile.arrays()
    time, back, a = p.forward_time.tolist(), p.backward_time.tolist(), p.activation.tolist()
    saved, gradient = p.saved.tolist(), p.gradient.tolist()
    forward_extra, backward_extra = p.forward_overhead.tolist(), p.backward_overhead.tolist()
    never = float("inf")

    @cache
    def least(  # noqa: PLR0917  # the recursion's own indices
        s: int, t: int, end: int, held: int, left: int, m: int
    ) -> float:
        """`m` includes the saved data held."""
        if m < 0:
            return never
        around = gradient[end + 1] + (saved[end] if held else 0)
        record = around + saved[s] + forward_extra[s]
        backward = saved[s] + gradient[s] + gradient[s + 1] + backward_extra[s]
        run_once = around + a[s + 1] + forward_extra[s]
        if s == end and held:
            return back[s] if m >= backward else never
        options = [never]
        if s == t and m >= max(record, backward):
            inner = least(s + 1, s + 1, end, held, 0, m - saved[s]) if s < end else 0
            options.append(time[s] + inner + back[s])
        if left and t == s + 1 and m >= record:
            more = a[s] - saved[s]
            inner = least(s + 1, s + 1, end, held, 0, m + more) if s < end else 0
            options.append(time[s] + inner)
        if s < t - left and m >= run_once:
            more = a[s] - a[s + 1]
            options.append(time[s] + least(s + 1, t, end, held, left, m + more))
        run, need = time[s], run_once
        for j in range(s + 1, end + 1):
            for detached in (0, 1):
                last = end + 1 if detached and not held else end
                options += [
                    run
                    + least(j, k, end, held, detached, m - a[j])
                    + least(s, t, k - 1, detached, left, m)
                    for k in range(max(j + detached, t + 1), last + 1)
                    if m >= need
                ]
            run += time[j]
            need = max(need, around + a[j] + a[j + 1] + forward_extra[j])
        return min(options)

    optimum = least(0, 0, len(profile) - 1, 0, 0, budget - profile.input_bytes)
    return None if optimum == never else int(optimum)
