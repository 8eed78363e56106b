"""Baselines: what they are, that they are valid, and that the dynamic program is never slower."""

from __future__ import annotations

from functools import partial
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, InfeasibleBudgetError, Schedule, Stage, simulate
from chainstay.baselines import (
    BASELINES,
    checkpoint_sequential,
    fastest_within,
    knapsack_by_block,
    revolve,
    single_pass,
    square_root,
)
from chainstay.baselines.greedy import keep_stages
from chainstay.baselines.revolve import equal_slots
from chainstay.baselines.schedule_pieces import kept, nest, recomputed
from chainstay.errors import UnknownMethodError
from strategies import chains

STAGE = Stage(forward_time=3, backward_time=5, output_bytes=10, saved_bytes=35, gradient_bytes=10)
CHAIN = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(STAGE,) * 9)
by_name = pytest.mark.parametrize("name", BASELINES)


@by_name
@settings(max_examples=60)
@given(profile=chains(), share=st.integers(0, 120))
def test_valid_and_never_faster_than_the_dynamic_program_in_the_same_memory(
    name: str, profile: ChainProfile, share: int
) -> None:
    budget = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes * share // 100
    candidates = list(BASELINES[name](profile, budget))
    assert candidates
    for schedule in candidates:
        replay = simulate(profile, schedule)
        assert DP()(profile, replay.peak_bytes).makespan <= replay.makespan


@by_name
def test_candidates_of_a_single_stage(name: str) -> None:
    chain = ChainProfile(input_bytes=1, input_gradient_bytes=1, stages=(STAGE,))
    assert {str(schedule) for schedule in BASELINES[name](chain, 100)} == {"Fa0 B0"}


def test_checkpoint_sequential_cuts_as_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    seen: list[list[int]] = []

    def checkpoint(run: object, value: list[int], **_: object) -> list[int]:
        assert callable(run)
        result: list[int] = run(value)
        seen.append(result[len(value) :])
        return result

    monkeypatch.setattr(torch.utils.checkpoint, "checkpoint", checkpoint)
    for count in range(1, 12):
        for segments in range(1, count + 1):
            seen.clear()
            functions = [partial(lambda i, value: [*value, i], i) for i in range(count)]
            torch.utils.checkpoint.checkpoint_sequential(
                functions, segments, [], use_reentrant=False
            )
            pieces = [recomputed(run[0], run[-1] + 1) for run in seen]
            rest = kept(sum(map(len, seen)), count + 1)
            assert checkpoint_sequential(count + 1, segments) == nest([*pieces, rest])


@pytest.mark.parametrize(("stages", "segments"), [(5, 0), (5, 5), (1, 2)])
def test_segment_counts_that_torch_cannot_cut(stages: int, segments: int) -> None:
    with pytest.raises(UnknownMethodError, match=f"segments is {segments}"):
        checkpoint_sequential(stages, segments)


def test_square_root_of_ten_stages() -> None:
    assert square_root(10) == checkpoint_sequential(10, 3)


@pytest.mark.long
@settings(max_examples=300)
@given(chains(), st.integers(0, 600))
def test_revolve_fits_where_a_slot_is_left(profile: ChainProfile, budget: int) -> None:
    slots = equal_slots(profile, budget)
    peak_bytes = simulate(profile, revolve(len(profile), slots)).peak_bytes
    if slots > 1:
        assert peak_bytes <= budget


def test_revolve_counts_the_output_where_nothing_is_saved() -> None:
    stage = Stage(forward_time=1, output_bytes=10)
    chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 7)
    assert [equal_slots(chain, budget) for budget in (39, 40)] == [1, 2]
    assert simulate(chain, revolve(7, 2)).peak_bytes == 40


def every_single_pass(stages: int) -> list[Schedule]:
    """All ways to cut, with every choice of which single stages stay."""
    schedules = []
    for count in range(stages):
        for cuts in combinations(range(1, stages), count):
            edges = list(zip((0, *cuts), (*cuts, stages), strict=True))
            single = [edge for edge in edges[:-1] if edge[1] - edge[0] == 1]
            for size in range(len(single) + 1):
                for stay in combinations(single, size):
                    pieces = [(kept if e in stay else recomputed)(*e) for e in edges[:-1]]
                    schedules.append(nest([*pieces, kept(*edges[-1])]))
    return schedules


@settings(max_examples=100)
@given(chains(max_stages=5), st.integers(0, 100))
def test_single_pass_is_the_best_of_its_class(profile: ChainProfile, share: int) -> None:
    everything = [simulate(profile, s) for s in every_single_pass(len(profile))]
    peaks = [replay.peak_bytes for replay in everything]
    budget = min(peaks) + (max(peaks) - min(peaks)) * share // 100
    best = min(replay.makespan for replay in everything if replay.peak_bytes <= budget)
    replay = simulate(profile, single_pass(profile, budget))
    assert (replay.makespan, replay.peak_bytes <= budget) == (best, True)
    frugal = simulate(profile, single_pass(profile, min(peaks) - 1))
    assert frugal.peak_bytes == min(peaks)


def test_single_pass_counts_the_gradient_while_it_recomputes() -> None:
    stages = (
        Stage(
            forward_time=1,
            output_bytes=1,
            saved_bytes=5,
            gradient_bytes=4,
            forward_overhead_bytes=10,
        ),
        Stage(saved_bytes=10),
    )
    chain = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=stages)
    assert simulate(chain, checkpoint_sequential(2, 1)).peak_bytes == 19
    assert simulate(chain, nest([recomputed(0, 1), kept(1, 2)])).peak_bytes == 19
    assert single_pass(chain, 18) == Schedule.keep_all(2)


@settings(max_examples=100)
@given(chains(max_stages=7), st.integers(0, 200))
def test_knapsack_is_the_best_choice_within_its_capacity(
    profile: ChainProfile, capacity: int
) -> None:
    stages = profile.stages[:-1]
    choices = [c for k in range(len(stages) + 1) for c in combinations(stages, k)]
    best = max(
        sum(stage.forward_time for stage in choice)
        for choice in choices
        if sum(max(0, s.saved_bytes - s.output_bytes) for s in choice) <= capacity
    )
    again = simulate(profile, knapsack_by_block(profile, capacity)).makespan - profile.least_time
    assert again == sum(stage.forward_time for stage in stages) - best


def test_knapsack_rounds_up_and_never_overspends() -> None:
    stages = (Stage(forward_time=1, saved_bytes=5_001),) * 2
    chain = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(*stages, Stage()))
    again = [
        simulate(chain, knapsack_by_block(chain, capacity)).makespan - chain.least_time
        for capacity in (10_000, 10_020)
    ]
    assert again == [1, 0]


def test_greedy_keeps_time_per_byte_first() -> None:
    stages = [Stage(forward_time=t, saved_bytes=s) for t, s in ((1, 9), (5, 0), (8, 1), (0, 0))]
    chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=tuple(stages))
    orders = [set(), {1}, {1, 2}, {0, 1, 2}]
    assert list(BASELINES["greedy"](chain, 0)) == [keep_stages(4, order) for order in orders]


def test_the_fastest_that_fits() -> None:
    judge = partial(simulate, CHAIN)
    candidates = [Schedule.keep_all(9), *BASELINES["checkpoint-sequential"](CHAIN, 0)]
    peaks = {judge(schedule).peak_bytes for schedule in candidates}
    assert fastest_within(candidates, judge, max(peaks)) == Schedule.keep_all(9)
    with pytest.raises(InfeasibleBudgetError, match="no baseline schedule of this 9") as caught:
        fastest_within(candidates, judge, min(peaks) - 1)
    assert caught.value.required == min(peaks)


def test_no_baseline_beats_the_optimum_at_half_the_memory() -> None:
    judge = partial(simulate, CHAIN)
    budget = judge(Schedule.keep_all(9)).peak_bytes // 2
    optimum = DP()(CHAIN, budget).makespan
    for name in ("checkpoint-sequential", "revolve", "single-pass", "greedy", "knapsack"):
        schedule = fastest_within(BASELINES[name](CHAIN, budget), judge, budget)
        assert judge(schedule).makespan >= optimum
    for name in ("keep-all", "sqrt"):
        with pytest.raises(InfeasibleBudgetError):
            fastest_within(BASELINES[name](CHAIN, budget), judge, budget)
