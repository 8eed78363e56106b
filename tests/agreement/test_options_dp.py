"""The persistent program with options, kinds of runs and super-stages: all codes, one number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Final

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chains_with_environments import CHAINS_AND_LEAST_BUDGETS
from chainstay import DP, Revolve, least_budget, unrestricted_bound
from chainstay.dp.bounds.bound_pruning import MultiplierBound
from chainstay.dp.bounds.knapsack_bound import KnapsackBound
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain import fronts as chain_fronts
from chainstay.dp.chain.fronts import ChainFronts
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.chain.recursion_arrays import ArraysByKind, recursion_arrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.recursion import Recursion, assemble
from chainstay.dp.table import Table
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family
from chainstay.validation import search
from chainstay.validation.persistent_search import persistent_least_budget, persistent_optimum
from chainstay.validation.simulate import simulate
from chainstay.verify.option_instances import ENVIRONMENTS, OPTION_FAMILIES
from golden_options import ALL, SUPER_STAGES, GoldenOptions
from strategies import chains
from tensors import Tensors

ONE_BYTE_SLOTS: Final = DP(slots=10**6)
ALL_FAMILIES: Final = (*OPTION_FAMILIES, ENVIRONMENTS)
by_name = pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)

Part = tuple[int, int, int]
"""First and last stage of a sub-chain, and its bytes."""


@by_name
@pytest.mark.parametrize("method", [DP(), ONE_BYTE_SLOTS], ids=str)
def test_optimum_of_golden_chains(golden: GoldenOptions, method: DP) -> None:
    if golden.family_optimum is None:
        with pytest.raises(InfeasibleBudgetError) as caught:
            method(golden.profile, golden.budget)
        assert caught.value.required == golden.family_min_budget
        return
    claim = method(golden.profile, golden.budget)
    assert claim.makespan == claim.lower_bound == golden.family_optimum
    assert_replays(golden.profile, golden.budget, claim)
    if claim.family is Family.ALL:
        assert claim.makespan == golden.optimum["table1"]


@by_name
def test_least_budget_and_curve_of_golden_chains(golden: GoldenOptions) -> None:
    assert least_budget(golden.profile) == golden.family_min_budget
    curve = DP().curve(golden.profile)
    assert curve.budgets[0] == golden.family_min_budget
    if golden.family_optimum is not None:
        assert curve.makespan(golden.budget) == golden.family_optimum
        replay = simulate(golden.profile, curve.schedule(golden.budget))
        assert replay.makespan == golden.family_optimum


def test_bound_for_every_schedule_of_golden_chains() -> None:
    for golden in ALL:
        bound = unrestricted_bound(golden.profile, golden.budget)
        assert all(bound <= value for value in golden.optimum.values() if value is not None)
        expected = golden.facts.get("unrestricted_bound")
        assert expected is None or golden in SUPER_STAGES or bound == expected, golden.name


@settings(max_examples=100, deadline=None)
@given(chains(max_stages=4, families=ALL_FAMILIES), st.integers(0, 60))
def test_optimum_equals_exhaustive_search(profile: ChainProfile, extra: int) -> None:
    least = least_budget(profile)
    assert least == persistent_least_budget(profile)
    claim = DP()(profile, least + extra)
    assert (
        claim.makespan == claim.lower_bound == persistent_optimum(profile, least + extra).makespan
    )
    assert_replays(profile, least + extra, claim)
    if claim.family is Family.ALL and not profile.has_environments:
        assert claim.makespan == search.optimum(profile, least + extra).makespan


def test_least_budgets_count_the_environments_that_are_there() -> None:
    for chain, least in CHAINS_AND_LEAST_BUDGETS:
        assert least_budget(chain) == persistent_least_budget(chain) == least


def test_buffers_count_in_later_runs_that_cost_what_first_ones_do() -> None:
    """They are saved once more; without that, 27 bytes would do."""
    stages = (
        Stage(output_bytes=1, saved_bytes=6, gradient_bytes=2, environment_bytes=6),
        Stage(output_bytes=3, saved_bytes=3, gradient_bytes=6),
        Stage(output_bytes=4, saved_bytes=9, gradient_bytes=1, environment_bytes=1),
        Stage(output_bytes=4, saved_bytes=5, gradient_bytes=3, environment_bytes=6),
    )
    chain = ChainProfile(input_bytes=2, input_gradient_bytes=0, stages=stages)
    assert least_budget(chain) == persistent_least_budget(chain) == 28


@pytest.mark.long
@settings(max_examples=80, deadline=None)
@given(chains(max_stages=4, families=OPTION_FAMILIES), st.integers(0, 60))
def test_no_schedule_at_all_is_below_the_bound(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    bound = unrestricted_bound(profile, budget)
    assert bound >= profile.least_time
    for rules in Discards:
        assert bound <= search.optimum(profile, budget, discards=rules).makespan


@pytest.mark.long
@settings(max_examples=120, deadline=None)
@given(chains(max_stages=8, families=ALL_FAMILIES))
def test_curve_equals_the_dense_table(profile: ChainProfile) -> None:
    recursion = Recursion.from_profile(profile)
    curve, table = DP().curve(profile), Table.fill(recursion, recursion.keep_all_need)
    assert (curve.budgets - profile.input_bytes).tolist() == table.root.memory.tolist()
    assert (curve.makespans - recursion.base_time).tolist() == table.root.overhead.tolist()
    more = Table.fill(recursion, recursion.keep_all_need + 50)
    assert more.root.overhead[-1] == table.root.overhead[-1], "more memory would be of use"


@settings(max_examples=60, deadline=None)
@given(chains(max_stages=8, families=ALL_FAMILIES), st.floats(0.0, 1.0))
def test_compiled_code_equals_numpy(profile: ChainProfile, share: float) -> None:
    pytest.importorskip("numba")
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    assert (LeastMemory(recursion, compiled=True).table == least.table).all()
    memory = least.root + int(share * (recursion.keep_all_need - least.root))
    compiled, plain = (
        ChainFronts.solve(recursion, memory, least, compiled=is_jitted)
        for is_jitted in (True, False)
    )
    assert compiled.best == plain.best
    schedule = assemble(recursion, memory, compiled.decisions(memory))
    assert schedule == assemble(recursion, memory, compiled.decide)
    replay = simulate(profile, schedule)
    assert replay.makespan == recursion.base_time + compiled.best
    assert replay.peak_bytes <= memory + profile.input_bytes
    one, other = (
        ChainFronts.all(recursion, recursion.keep_all_need, compiled=is_jitted).root
        for is_jitted in (True, False)
    )
    assert one.memory.tolist() == other.memory.tolist()
    assert one.overhead.tolist() == other.overhead.tolist()


@settings(max_examples=30, deadline=None)
@given(chains(max_stages=30, families=ALL_FAMILIES), st.floats(0.0, 1.0))
def test_narrower_thin_passes_change_nothing(profile: ChainProfile, share: float) -> None:
    pytest.importorskip("numba")
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion, compiled=True)
    memory = least.root + int(share * (recursion.keep_all_need - least.root))
    plain = ChainFronts.solve(recursion, memory, least, compiled=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_fronts, "_THIN", (2.0**-4, 2.0**-6))
        patch.setattr(chain_fronts, "_VERY_LONG", 0)
        assert ChainFronts.solve(recursion, memory, least, compiled=True).best == plain.best


@settings(max_examples=60, deadline=None)
@given(chains(max_stages=5, families=ALL_FAMILIES), st.integers(0, 60))
@pytest.mark.parametrize("kind", [KnapsackBound, LagrangianBound])
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    kind: Callable[[ArraysByKind, int, Array], MultiplierBound], profile: ChainProfile, extra: int
) -> None:
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    memory = least.root + extra
    bound = kind(recursion_arrays(recursion), memory, least.table)
    table = Table.fill(recursion, memory)
    multipliers = np.arange(bound.outside.shape[2])
    for (s, t, m), time in _least_times_through(profile, memory).items():
        if s <= t:
            spent = time - recursion.base_time - table.overhead(s, t, m)
            assert (bound.outside[s, t] + multipliers * bound.step * m).max() <= spent + 1e-6
    assert bound.root <= table.overhead(0, len(profile) - 1, memory) + 1e-6


@pytest.mark.parametrize("method", [DP(), DP(persistence="weak")], ids=str)
def test_as_many_options_fit_as_there_are_stages_but_not_one_of_each(method: DP) -> None:
    """The bound once took them for one of each; `chainstay verify` found it (seed 23)."""
    dear_at_first = Stage(forward_overhead_bytes=1, first=RunCost(time=0, overhead_bytes=2))
    smaller = StageOption(
        name="", saved_bytes=0, backward_overhead_bytes=0, first=RunCost(time=0, backward_time=1)
    )
    profile = ChainProfile(
        input_bytes=0,
        input_gradient_bytes=0,
        stages=(dear_at_first, Stage(saved_bytes=1, options=(smaller,))),
    )
    by_kind = recursion_arrays(Recursion.from_profile(profile))
    nothing = np.zeros((2, 2), dtype=np.int64)
    for kind in (KnapsackBound, LagrangianBound):
        assert kind(by_kind, 1, nothing).root <= 0
    claim = method(profile, 1)
    assert claim.makespan == 0
    assert_replays(profile, 1, claim)


def test_the_number_of_an_option_is_that_of_the_profile() -> None:
    run = RunCost(time=1)
    options = tuple(StageOption(saved_bytes=size, first=run) for size in (9, 3, 5))
    stage = Stage(saved_bytes=9, forward_time=2, options=options)
    chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(stage, Stage()))
    assert str(DP()(chain, 4).schedule) == "Fa0.2 Fa1 B1 B0"
    with pytest.raises(InfeasibleBudgetError, match="least feasible budget is 4 bytes"):
        DP()(chain, 3)


def test_revolve_refuses_options() -> None:
    option = StageOption(saved_bytes=1, first=RunCost())
    chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(options=(option,)),))
    text = r"stage 0 of this chain has options, which Revolve\(\) does not take"
    with pytest.raises(InvalidProfileError, match=text):
        Revolve()(chain, 100)


def test_only_programs_that_drop_inputs_claim_to_be_best_on_a_tape() -> None:
    stages = (
        Stage(forward_time=1, output_bytes=10, saved_bytes=20),
        Stage(forward_time=1, output_bytes=10, saved_bytes=10),
        Stage(forward_time=1, saved_bytes=3, forward_overhead_bytes=10),
    )
    plain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=stages)
    free_of_input = replace(stages[1], needs_input=False)
    chain = replace(plain, stages=(stages[0], free_of_input, stages[2]))
    pair = StageOption(saved_bytes=50, first=RunCost(time=2), stages=2)
    joined = replace(chain, stages=(replace(stages[0], options=(pair,)), *chain.stages[1:]))
    assert str(DP(discards="tape")(chain, 24).schedule) == "Fc0 Fa1 Da1 Fa2 B2 B1 Fa0 B0"
    assert DP(discards="tape")(chain, 24).makespan < DP()(chain, 24).makespan
    for profile, method, rules in (
        (chain, DP(discards="tape"), Discards.TAPE),
        (chain, DP(discards="tape", persistence="weak"), Discards.TABLE1),
        (chain, DP(discards="tape", slots=100), Discards.TABLE1),
        (joined, DP(discards="tape"), Discards.TABLE1),
        (plain, DP(discards="tape"), Discards.TAPE),
    ):
        claim = method(profile, 24)
        assert claim.discards is rules
        simulate(profile, claim.schedule, discards="tape")


def assert_replays(profile: ChainProfile, budget: int, claim: Claim) -> None:
    replay = simulate(profile, claim.schedule)
    assert replay.makespan == claim.makespan
    assert replay.peak_bytes <= budget


def _least_times_through(profile: ChainProfile, memory: int) -> dict[Part, float]:
    """For each (s, t, m) of any schedule: the least time of all schedules that it is part of."""
    decisions = cache(lambda part: list(_decisions(profile, *part)))

    @cache
    def least(part: Part) -> float:
        if part[0] > part[1]:
            return 0
        totals = (time + sum(map(least, parts)) for time, parts in decisions(part))
        return min(totals, default=float("inf"))

    whole = (0, len(profile) - 1, memory)
    through = defaultdict(lambda: float("inf"), {whole: least(whole)})
    for length in range(len(profile) - 1, -1, -1):
        for part, total in [item for item in through.items() if item[0][1] - item[0][0] == length]:
            outside = total - least(part)
            for time, parts in decisions(part):
                here = time + sum(map(least, parts))
                for smaller in parts if here < float("inf") else ():
                    through[smaller] = min(through[smaller], outside + here)
    return through


def _decisions(profile: ChainProfile, s: int, t: int, m: int) -> Iterator[tuple[int, list[Part]]]:
    """Yield time and parts of each decision for (s, t, m)."""
    is_first, tensors = t == len(profile) - 1, Tensors(profile)
    environments = [stage.environment_bytes for stage in profile.stages]
    held = 0 if is_first else sum(environments[s : t + 1])  # from the sweep before
    beside = profile.gradient_bytes(t + 1) + held
    for option in profile.stages[s].all_options:
        end, run = s + option.stages, option.run(first=is_first)
        both = profile.gradient_bytes(s) + profile.gradient_bytes(end)
        both -= sum(k.gradient_bytes for k in profile.skips if {s, end} <= set(k.states))
        random_bytes = sum(stage.random_bytes for stage in profile.stages[s:end])
        saved = option.saved_bytes
        kept = saved if is_first else saved + sum(environments[s:end]) - random_bytes
        if m < max(
            saved + beside + run.overhead_bytes, kept + both + option.backward_overhead_bytes
        ):
            continue
        if end <= t + 1:
            yield run.time + run.backward_time, [(end, t, m - kept)]
    time, floor = 0, 0
    for k in range(s + 1, t + 1):
        run, new = profile.stages[k - 1].dropped(first=is_first), sum(environments[s:k])
        running = tensors.added(k - 1, [s]) + tensors.added(k, [s, k - 1]) + new * is_first
        time, floor = time + run.time, max(floor, running + run.overhead_bytes)
        if m >= beside + floor:
            yield time, [(k, t, m - tensors.added(k, [s]) - new), (s, k - 1, m)]


def test_a_record_of_several_stages_can_be_the_first_run_of_each() -> None:
    pair = StageOption(saved_bytes=0, first=RunCost(), stages=2)
    slow = Stage(first=RunCost(time=5), again=RunCost(), dropped_first=RunCost(time=5))
    chain = ChainProfile(
        input_bytes=0, input_gradient_bytes=0, stages=(Stage(options=(pair,)), slow, Stage())
    )
    best = search.optimum(chain, 0, discards=Discards.TAPE)
    assert chain.least_time == unrestricted_bound(chain, 0) == best.makespan == 0
