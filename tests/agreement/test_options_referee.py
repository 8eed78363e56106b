"""Stage options, kinds of runs and super-stages: simulator and searches against golden chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from itertools import product
from random import Random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.errors import InfeasibleBudgetError
from chainstay.profiles import ChainProfile, RunCost, Skip, Stage, StageOption
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim
from chainstay.validation import search
from chainstay.validation.chain_memory import ChainMemory, InvalidOperationError
from chainstay.validation.persistent_search import persistent_least_budget, persistent_optimum
from chainstay.validation.simulate import simulate
from chainstay.verify.option_instances import OPTION_FAMILIES
from golden_options import ALL, GoldenOptions
from strategies import chains

RULES: Final = list(Discards)
WITNESS_RULES: Final = {
    **{str(rules): rules for rules in RULES},
    "persistent": Discards.TABLE1,
    "persistent_sweeps": Discards.TABLE1,
    "persistent_drop": Discards.TAPE,
}
SHORT: Final = [golden for golden in ALL if len(golden.profile) <= 3]
by_name = pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)


def test_every_witness_replays_to_its_optimum() -> None:
    for golden in ALL:
        for name, schedule in golden.schedules.items():
            if schedule is not None:
                rules = WITNESS_RULES[name]
                replay = simulate(golden.profile, schedule, discards=rules)
                assert replay.makespan == golden.optimum[name], (golden.name, name)
                assert replay.peak_bytes <= golden.budget, (golden.name, name)


def test_schedules_of_the_recursion_replay_to_its_value() -> None:
    for golden in ALL:
        if schedule := golden.recursion_schedule:
            replay = simulate(golden.profile, schedule)
            assert replay.makespan == golden.dp["persistent"], golden.name
            assert replay.peak_bytes <= golden.budget, golden.name


def test_optima_of_short_golden_chains() -> None:
    for golden in SHORT:
        assert_found(golden)


@by_name
@pytest.mark.long
def test_optima_of_golden_chains(golden: GoldenOptions) -> None:
    assert_found(golden)


def assert_found(golden: GoldenOptions) -> None:
    """Every search finds the golden optimum and least budget, and its schedule replays."""
    for rules in RULES:
        found = optimum_of(search.optimum, golden.profile, golden.budget, discards=rules)
        assert found == golden.optimum[rules], (golden.name, rules)
        required = search.least_budget(golden.profile, discards=rules)
        assert required == golden.min_budget[rules], (golden.name, rules)
    for whole, value, least in (
        (False, golden.optimum["persistent"], golden.min_budget["persistent"]),
        (True, golden.family_optimum, golden.family_min_budget),
    ):
        found = optimum_of(persistent_optimum, golden.profile, golden.budget, whole_sweeps=whole)
        assert found == value, (golden.name, whole)
        required = persistent_least_budget(golden.profile, whole_sweeps=whole)
        assert required == least, (golden.name, whole)


def optimum_of(
    method: Callable[..., Claim], profile: ChainProfile, budget: int, **settings: object
) -> int | None:
    try:
        claim = method(profile, budget, **settings)
    except InfeasibleBudgetError:
        return None
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.makespan == claim.makespan
    assert replay.peak_bytes <= budget
    return claim.makespan


# THEORY_FIRST_AGAIN_SUPER, section 1: one option, numbers of no digit's own.
TWO_SWEEPS: Final = ChainProfile(
    input_bytes=0,
    input_gradient_bytes=0,
    stages=tuple(
        Stage(
            forward_time=1,
            output_bytes=output,
            gradient_bytes=gradient,
            forward_overhead_bytes=overhead,
            saved_bytes=saved,
            backward_overhead_bytes=backward_overhead,
        )
        for output, gradient, overhead, saved, backward_overhead in zip(
            (7, 1, 2, 3, 0),
            (1, 1, 1, 3, 0),
            (4, 6, 10, 8, 0),
            (9, 1, 3, 3, 0),
            (2, 4, 5, 3, 9),
            strict=True,
        )
    ),
)


def test_a_second_sweep_can_need_less_than_the_family_of_the_theorem() -> None:
    text = "Fc0 Fn1 Fn2 Fc0 Fn1 Fn3 Fa4 B4 Fn2 Fa3 B3 Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0"
    assert simulate(TWO_SWEEPS, Schedule.parse(text)).peak_bytes == 16
    assert persistent_least_budget(TWO_SWEEPS, whole_sweeps=False) == 16
    assert persistent_least_budget(TWO_SWEEPS) == 17
    with pytest.raises(
        InfeasibleBudgetError, match=r"no persistent schedule .* 17 bytes"
    ) as caught:
        persistent_optimum(TWO_SWEEPS, 16)
    assert caught.value.required == 17
    assert simulate(TWO_SWEEPS, persistent_optimum(TWO_SWEEPS, 17).schedule).peak_bytes == 17


def _with_everything(i: int) -> Stage:
    """Stage i of four, with an option of several stages and costs of every kind of run."""
    several = StageOption(
        saved_bytes=60 + i,
        backward_overhead_bytes=i,
        first=RunCost(time=3, overhead_bytes=5, backward_time=7),
        again=RunCost(time=11, overhead_bytes=13, backward_time=17),
        stages=3 if i == 0 else 2,
    )
    one = StageOption(saved_bytes=41 + i, first=RunCost(time=23), needs_input=False)
    return Stage(
        forward_time=1,
        backward_time=2,
        output_bytes=30 + i,
        saved_bytes=50 + i,
        gradient_bytes=20 + i,
        options=(several, one) if i < 3 else (one,),
        dropped_first=RunCost(time=29, overhead_bytes=31),
        again=RunCost(time=37, overhead_bytes=41, backward_time=43),
    )


EVERYTHING: Final = ChainProfile(
    input_bytes=19,
    input_gradient_bytes=47,
    stages=tuple(map(_with_everything, range(4))),
    skips=tuple(
        Skip(first=first, last=last, bytes=size, gradient_bytes=size)
        for first, last, size in ((0, 2, 2), (1, 3, 3), (2, 3, 5), (1, 2, 7))
    ),
)


@given(
    profile=chains(max_stages=4, families=OPTION_FAMILIES),
    draw=st.randoms(use_true_random=False),
    rules=st.sampled_from(RULES),
)
@settings(max_examples=100)
def test_search_and_simulator_accept_the_same(
    profile: ChainProfile, draw: Random, rules: Discards
) -> None:
    assert_same_along_a_walk(profile, draw, rules)


def test_search_and_simulator_accept_the_same_of_a_chain_with_everything() -> None:
    for seed in range(90):
        assert_same_along_a_walk(EVERYTHING, Random(seed), RULES[seed % 3])


def assert_same_along_a_walk(profile: ChainProfile, draw: Random, rules: Discards) -> None:
    """Along random operations, the same ones are accepted, at the same times and bytes."""
    searched = search.ChainTransitions(profile, rules)
    state, memory = searched.start, ChainMemory(profile, rules)
    for _ in range(12):
        steps = {step.ops[0]: step for step in searched.steps(state)}
        found = {(op, step.time, step.bytes) for op, step in steps.items()}
        assert found == set(accepted_by_simulator(memory))
        if not steps or state.gradient == 0:
            return
        op = draw.choice(sorted(steps, key=str))
        memory.apply(op)
        state = steps[op].after


def accepted_by_simulator(memory: ChainMemory) -> Iterator[tuple[Op, int, int]]:
    """Yield all operations that the simulator accepts, but ``Fc`` of what is stored already."""
    kinds = [kind for kind in OpKind if kind is not OpKind.TURN]
    for kind, stage in product(kinds, range(len(memory.profile) + 1)):
        for option in range(3 if kind is OpKind.FORWARD_KEEP_ALL else 1):
            op = Op(kind, stage, option=option)
            if kind is OpKind.FORWARD_KEEP_INPUT and stage + 1 in memory.activations:
                continue
            with suppress(InvalidOperationError):
                cost = _copy(memory).apply(op)
                yield op, cost.time, cost.during_bytes


def _copy(memory: ChainMemory) -> ChainMemory:
    other = copy(memory)
    other.activations = set(memory.activations)
    other.records = dict(memory.records)
    other.has_run = set(memory.has_run)
    return other


@pytest.mark.long
@given(profile=chains(max_stages=4, families=OPTION_FAMILIES), slack=st.integers(0, 20))
@settings(max_examples=60)
def test_narrower_families_are_never_better(profile: ChainProfile, slack: int) -> None:
    budget = persistent_least_budget(profile) + slack
    makespans = [
        optimum_of(method, profile, budget, **settings)
        for method, settings in (
            (persistent_optimum, {}),
            (persistent_optimum, {"whole_sweeps": False}),
            (search.optimum, {}),
            (search.optimum, {"discards": "free"}),
        )
    ]
    assert makespans == sorted((span for span in makespans if span is not None), reverse=True)
