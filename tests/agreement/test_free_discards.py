"""Detached saved data against the shared optima, exhaustive search and the bare recursion."""

from __future__ import annotations

from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import (
    DP,
    ChainProfile,
    Claim,
    Family,
    InfeasibleBudgetError,
    RunCost,
    Skip,
    Stage,
    StageOption,
    simulate,
)
from chainstay.dp import least_budget
from chainstay.dp.bounds.unrestricted_bound import unrestricted_bound
from chainstay.errors import InvalidProfileError, UnknownMethodError
from chainstay.schedule import Discards
from chainstay.validation import search
from golden_chains import GOLDEN, GoldenChain
from golden_options import OPTIONS, GoldenOptions
from strategies import FAMILIES_WITHOUT_SKIPS, chains, with_options_of_one_stage
from tensors import Tensors

FREE = DP(discards="free")
MANY = settings(max_examples=400, deadline=None)
SKIPPING = chains(max_stages=6, families=("skips",))
by_name = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
feasible = pytest.mark.parametrize(
    "golden",
    [golden for golden in GOLDEN if golden.optimum["free"] is not None],
    ids=lambda golden: golden.name,
)

MISSED = {"table2@8525": 4902, "pub_weak_gap_0@37": 104, "pub_lemma44_0@21": 70}
"""The golden chains whose optimum moves a checkpoint on, and what the program finds."""


def solve(profile: ChainProfile, budget: int) -> Claim:
    """The claim, after a replay under the rules it claims."""
    claim = FREE(profile, budget)
    assert claim.discards is Discards.FREE
    replay = simulate(profile, claim.schedule, discards="free")
    assert replay.makespan == claim.makespan == claim.lower_bound
    assert replay.peak_bytes <= budget
    assert unrestricted_bound(profile, budget) <= claim.makespan
    return claim


def least(profile: ChainProfile) -> int:
    return least_budget(profile, discards="free")


@feasible
def test_golden_optima(golden: GoldenChain) -> None:
    free = golden.optimum["free"]
    assert free is not None
    makespan = solve(golden.profile, golden.budget).makespan
    assert makespan == MISSED.get(golden.name, free)
    persistent = golden.optimum["persistent"]
    assert persistent is None or makespan <= persistent


@by_name
def test_least_budget_of_golden_chains(golden: GoldenChain) -> None:
    required = least(golden.profile)
    assert golden.min_budget["free"] <= required <= golden.min_budget["persistent"]
    solve(golden.profile, required)
    with pytest.raises(InfeasibleBudgetError) as caught:
        FREE(golden.profile, required - 1)
    assert caught.value.required == required


def test_table_2_at_90_mb() -> None:
    table2 = GOLDEN[0]
    assert (table2.name, table2.budget) == ("table2@9000", 9000)
    claim = solve(table2.profile, table2.budget)
    assert claim.makespan == 4278
    assert DP()(table2.profile, table2.budget).makespan == 4742


@pytest.mark.long
@MANY
@given(with_options_of_one_stage(), st.integers(0, 150))
def test_never_above_the_program_it_contains(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    assert solve(profile, budget).makespan <= DP()(profile, budget).makespan


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.one_of(with_options_of_one_stage(6), SKIPPING), st.integers(0, 60))
def test_it_equals_the_recursion_on_sets_of_tensors(profile: ChainProfile, extra: int) -> None:
    required = least(profile)
    assert _on_sets(profile, required - 1) == float("inf")
    claim = solve(profile, required + extra)
    assert claim.makespan == _on_sets(profile, required + extra)
    tape = least_budget(profile, discards="tape")
    assert _on_sets(profile, tape - 1, Discards.TAPE) == float("inf")
    on_tape = DP(discards="tape")(profile, tape + extra)
    assert on_tape.makespan == _on_sets(profile, tape + extra, Discards.TAPE)
    replay = simulate(profile, on_tape.schedule, discards="tape")
    assert (replay.makespan, replay.peak_bytes <= tape + extra) == (on_tape.makespan, True)
    assert required <= tape <= least_budget(profile)


@pytest.mark.parametrize("golden", OPTIONS, ids=lambda golden: golden.name)
def test_golden_chains_with_options(golden: GoldenOptions) -> None:
    profile, budget = golden.profile, golden.budget
    if golden.optimum["persistent_drop"] is None:
        with pytest.raises(InfeasibleBudgetError):
            DP(discards="tape")(profile, budget)
    else:
        assert DP(discards="tape")(profile, budget).makespan == golden.optimum["persistent_drop"]
    optimum, attained = golden.optimum["free"], golden.dp["free"]
    if budget < least(profile):
        with pytest.raises(InfeasibleBudgetError):
            FREE(profile, budget)
        return
    assert optimum is not None  # what moves checkpoints, too, is not above
    assert optimum <= attained <= solve(profile, budget).makespan


@settings(max_examples=150, deadline=None)
@given(with_options_of_one_stage(3), st.integers(0, 60))
def test_claims_with_options_hold_in_exhaustive_search(profile: ChainProfile, extra: int) -> None:
    for rules in (Discards.FREE, Discards.TAPE):
        budget = least_budget(profile, discards=rules) + extra
        claim = DP(discards=rules)(profile, budget)
        optimum = search.optimum(profile, budget, discards=claim.discards).makespan
        assert unrestricted_bound(profile, budget) <= optimum <= claim.makespan
        assert claim.family is not Family.ALL or claim.lower_bound <= optimum


def test_options_of_several_stages_are_refused() -> None:
    pair = StageOption(saved_bytes=1, first=RunCost(), stages=2)
    chain = ChainProfile(
        input_bytes=1, input_gradient_bytes=0, stages=(Stage(options=(pair,)), Stage())
    )
    with pytest.raises(InvalidProfileError, match="keep several stages together, which DP"):
        FREE(chain, 100)


def test_what_held_saved_data_pass_on_takes_memory() -> None:
    """One chain in thousands where counting it too low at the start of a sweep changes anything."""
    numbers = [  # forward and backward time; output, saved, gradient; overheads
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
            for forward, backward, output, saved, gradient, forward_more, backward_more in numbers
        ),
        skips=(
            Skip(first=1, last=2, bytes=5),
            Skip(first=1, last=3, bytes=2, gradient_bytes=2),
            Skip(first=2, last=3, bytes=5),
            Skip(first=3, last=4, bytes=3, gradient_bytes=3),
        ),
    )
    assert solve(profile, 62).makespan == _on_sets(profile, 62) == 157


@settings(max_examples=150, deadline=None)
@given(chains(max_stages=5, families=("skips",)), st.integers(0, 60))
@pytest.mark.long
def test_with_skips_not_below_exhaustive_search(profile: ChainProfile, extra: int) -> None:
    budget = least(profile) + extra
    claim = solve(profile, budget)
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
    budget = least(profile) + extra
    claim = solve(profile, budget)
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
    detached = solve(profile, budget).makespan - profile.least_time
    bound = unrestricted_bound(profile, budget) - profile.least_time
    assert detached < attached * 0.99
    assert bound <= detached <= bound * 1.10


def test_settings_that_there_are_not() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'none', must be one of 'table1'"):
        DP(discards="none")
    with pytest.raises(UnknownMethodError, match="slots is 9, but discards='free'"):
        DP(discards="free", slots=9)
    with pytest.raises(UnknownMethodError, match="no curve for discards='free'"):
        FREE.curve(GOLDEN[0].profile)
    with pytest.raises(
        UnknownMethodError,
        match=r"no program solves both together; ask for DP\(persistence='weak'\) or for",
    ):
        DP(persistence="weak", discards="free")
    assert str(FREE) == "dp, free discards"


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


_Record = tuple[int, int]
"""Option of saved data, and ns of the backward by the run that made them."""

_Left = tuple[int, bool]
"""Option of saved data that are handed over, and whether a first run makes them."""


def _on_sets(  # noqa: C901  # one case each
    profile: ChainProfile, budget: int, rules: Discards = Discards.FREE
) -> float:
    """The recursion of `chainstay.dp.free_discards.solver` with every stored tensor by name."""
    tensors = Tensors(profile)
    never = float("inf")

    def fits(stored: frozenset[str], besides: int) -> bool:
        return tensors.stored(stored) + besides <= budget

    @cache
    def least(  # noqa: C901  # one case each
        s: int, end: int, held: _Record | None, left: _Left | None, stored: frozenset[str]
    ) -> float:
        gradient, is_first = profile.gradient_bytes(end + 1), not held and end == len(profile) - 1
        there = f"saved {end} {held[0]}" if held else ""

        def backward(k: int) -> int:
            option = profile.stages[s].all_options[k]
            return tensors.gradients(s) + option.backward_overhead_bytes

        if held and s == end:
            return held[1] if fits(stored, backward(held[0])) else never
        choices = [never]
        for k, option in enumerate(profile.stages[s].all_options):
            if left not in (None, (k, is_first)):
                continue
            run, recorded = option.run(first=is_first), stored | {f"saved {s} {k}"}
            if fits(recorded, gradient + run.overhead_bytes):
                inner = recorded - ({f"a {s}"} if left is not None else set())
                total: float = run.time
                total += least(s + 1, end, held, None, inner) if s < end else 0
                if left is not None:
                    choices.append(total)
                elif fits(recorded - {there}, backward(k)):
                    choices.append(total + run.backward_time)
        spent = 0
        for j in range(s + 1, end + 1):
            run = profile.stages[j - 1].dropped(first=is_first)
            running = stored | {f"a {j}"} | ({f"a {j - 1}"} if j - 1 > s else set())
            if not fits(running, gradient + run.overhead_bytes):
                break
            spent += run.time
            rest, further = stored - {there}, stored | {f"a {j}"}
            plain = least(j, end, held, None, further) + least(s, j - 1, None, left, rest)
            choices.append(spent + plain)
            options = enumerate(profile.stages[j].all_options)
            for (k, option), first in product(options, {is_first, False}):
                if (held and j == end) or (option.needs_input and rules is Discards.TAPE):
                    continue
                later = spent + least(j, end, held, (k, first), further)
                again, back = rest | {f"saved {j} {k}"}, option.run(first=first).backward_time
                if later < never and rules is Discards.FREE:
                    choices.append(later + least(s, j, (k, back), left, again))
                need = tensors.gradients(j) + option.backward_overhead_bytes
                if later < never and not option.needs_input and fits(again, need):
                    choices.append(later + back + least(s, j - 1, None, left, rest))
        return min(choices)

    return least(0, len(profile) - 1, None, None, frozenset({"a 0"}))
