"""Which models are joins, and what their plans cost, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.baselines.join import keep_all_join
from chainstay.errors import (
    InvalidBudgetError,
    InvalidScheduleError,
    NotAJoinError,
    PlanMismatchError,
    UnsupportedModelError,
)
from chainstay.planning.join import solve_measured_join
from chainstay.profiles import JoinProfile, SharedGradient
from chainstay.runtime.capture.extract import extract, extract_join
from chainstay.runtime.execute.liveness import Shape, plan_execution
from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.joins.backward_order import now, reorder
from chainstay.runtime.joins.executor import JoinExecutor
from chainstay.runtime.joins.part_order import same_sum
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.schedule import Schedule
from chainstay.validation.join.simulate import simulate_join
from join_models import Perceptrons, Siamese, case_of
from zoo import build

_TWO = (torch.randn(4, 16), torch.randn(4, 16))


def _layers(depth: int = 2) -> nn.Sequential:
    return nn.Sequential(*(m for _ in range(depth) for m in (nn.Linear(16, 16), nn.Tanh())))


def test_towers_that_share_weights_are_found() -> None:
    join = extract_join(Siamese(_layers()), _TWO)
    assert [len(branch) for branch in join.branches] == [3, 3]
    assert (len(join.tail), join.graph.widths, join.graph.given) == (1, (1, 1), ((), ()))
    output = join(*_TWO)
    assert torch.equal(output, join.model(*_TWO))


def test_branches_may_meet_behind_the_model() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = _layers(), _layers()

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return self.left(left), self.right(right)

    join = extract_join(Apart(), _TWO)
    assert (len(join.branches), join.tail) == (2, ())
    assert all(map(torch.equal, join(*_TWO), join.model(*_TWO)))


def test_inputs_with_gradients_may_be_shared() -> None:
    shared = torch.randn(4, 16, requires_grad=True)
    join = extract_join(Siamese(_layers()), (shared, shared))
    assert [len(given) for given in join.graph.given] == [1, 1]
    other = torch.randn(4, 16, requires_grad=True)
    assert torch.equal(join(other, other), join.model(other, other))


def test_a_number_of_stages_is_divided_among_branches_and_tail() -> None:
    join = extract_join(Perceptrons(16, 6), _TWO, granularity=9)
    assert max(len(part) for part in (*join.branches, join.tail)) <= 3


@pytest.mark.parametrize("family", ["GPT-2", "ResNet-50", "U-Net"])
@pytest.mark.long
def test_one_chain_is_no_join(family: str) -> None:
    sample = build(family)
    with pytest.raises(NotAJoinError, match="one chain: no two independent parts meet"):
        extract_join(sample.model, sample.args, sample.kwargs)
    chain = extract(sample.model, sample.args, sample.kwargs)
    assert "one chain" in chain.not_a_join


def test_a_chain_knows_that_it_could_be_a_join() -> None:
    assert extract(Siamese(_layers()), _TWO).not_a_join == ""


class _Exchanging(nn.Module):
    """Two streams that look at each other in front of every layer."""

    def __init__(self, before: int) -> None:
        super().__init__()
        self.left, self.right = _layers(before), _layers(before)
        self.behind = _layers(60)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left, right = self.left(left), self.right(right)
        left, right = left + right, left * right
        result: torch.Tensor = self.behind(left + right)
        return result


@pytest.mark.long
def test_the_place_is_named_where_branches_exchange_values_too_early() -> None:
    with pytest.raises(NotAJoinError, match=r"the branches exchange values at \w+.* saved \d"):
        extract_join(_Exchanging(1), _TWO)
    assert len(extract_join(_Exchanging(8), _TWO).branches) == 2


class _Taking(nn.Module):
    """Two towers, layer by layer in turns."""

    def __init__(self, *, shares: bool, dropout: float, norm: bool = False) -> None:
        super().__init__()
        self.left = _layers(3)
        self.right = self.left if shares else _layers(3)
        self.norm: nn.Module = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = dropout

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        for mine, theirs in zip(self.left, self.right, strict=True):
            left, right = self.norm(mine(left)), self.norm(theirs(right))
            if self.dropout:
                left = functional.dropout(left, self.dropout)
                right = functional.dropout(right, self.dropout)
        return functional.mse_loss(left, right)


def test_towers_computed_in_turns_are_sorted_if_that_changes_nothing() -> None:
    for shares in (False, True):
        join = extract_join(_Taking(shares=shares, dropout=0.0), _TWO)
        assert [len(branch) for branch in join.branches] == [5, 5]
        assert torch.equal(join(*_TWO), join.model(*_TWO))


def test_towers_in_turns_are_refused_if_numbers_would_change() -> None:
    with pytest.raises(NotAJoinError, match="draw random numbers in turns"):
        extract_join(_Taking(shares=False, dropout=0.5), _TWO)
    with pytest.raises(NotAJoinError, match="change a buffer in turns"):
        extract_join(_Taking(shares=False, dropout=0.0, norm=True), _TWO)


def test_a_parameter_used_in_turns_is_refused() -> None:
    class Scaled(_Taking):
        def __init__(self) -> None:
            super().__init__(shares=False, dropout=0.0)
            self.norm = _Scale()

    with pytest.raises(NotAJoinError, match=r"use norm\.scale in turns, 12 times"):
        extract_join(Scaled(), _TWO)


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_tail_reads_nothing_but_branches() -> None:
    class Looking(Siamese):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(*inputs) + inputs[0].sum()

    sample = (torch.randn(4, 16, requires_grad=True), torch.randn(4, 16))
    with pytest.raises(NotAJoinError, match="the tail needs the gradient of the model's input"):
        extract_join(Looking(_layers()), sample)


def test_a_tail_changes_no_branch_in_place() -> None:
    class Changing(Siamese):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            left, right = map(self.tower, inputs)
            changed: torch.Tensor = left.sub_(right)
            return changed.sum()

    with pytest.raises(NotAJoinError, match="changes in place what several parts use"):
        extract_join(Changing(_layers()), _TWO)


@pytest.mark.parametrize(
    ("plain", "other", "is_same"),
    [
        ([1], [1], True),
        ([2, 1], [1, 2], True),
        ([3, 2, 1], [2, 3, 1], True),
        ([3, 2, 1], [3, 1, 2], False),
        ([3, 2, 1], [1, 2, 3], False),
        ([4, 3, 2, 1], [3, 4, 2, 1], True),
        ([4, 3, 2, 1], [4, 3, 1, 2], False),
    ],
)
def test_only_the_first_two_summands_may_change_places(
    plain: list[int], other: list[int], *, is_same: bool
) -> None:
    assert same_sum(plain, other) is is_same


def test_autograd_runs_nodes_by_their_numbers() -> None:
    seen: list[str] = []
    leaf = torch.ones(2, requires_grad=True)
    ends, ranges = [], []
    for name in ("first", "second", "third"):
        start = now()
        value = (leaf * 2).sin()
        value.register_hook(lambda _, name=name: seen.append(name))
        ends.append(value)
        ranges.append(range(start, now()))
    total = ends[0] + ends[1] + ends[2]
    total.sum().backward(retain_graph=True)
    assert seen == ["third", "second", "first"]
    seen.clear()
    reorder((total,), [ranges[1], ranges[0], ranges[2]])
    total.sum().backward()
    assert seen == ["second", "first", "third"]


def test_a_plan_of_two_branches_by_hand() -> None:
    """Branch 0 keeps only its input; the tail runs again from the outputs of both."""
    shape = Shape(1, (2, 1))
    schedule = Schedule.parse(
        "0:Fc0 0:Fn1 1:Fa0 Fc0 Fa1 B1 Fa0 B0 1:B0 0:Fc0 0:Fa1 0:B1 0:Fa0 0:B0"
    )
    plan = plan_execution(schedule, shape)
    assert plan.backward == (3, 2, 1, 0)
    assert plan.is_plain_order
    assert [step.stage for step in plan.forward] == [0, 1, 2, 3]
    tail = plan.forward[-1]
    assert tail.wanted == {shape.output(1), shape.output(2)}, (
        "both outputs are kept for the tail's second run"
    )
    assert [step.stage for step in plan.before_backward[3]] == [3]
    assert plan.before_backward[2] == ()
    first, second = plan.before_backward[1]
    assert (first.stage, first.captures, set(first.wanted)) == (0, False, {0})
    assert (second.stage, second.captures, second.is_last) == (1, True, True)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1:Fa0 0:Fa0 Fa0 B0 1:B0 0:B0", "another order than in plain training"),
        ("0:Fa0 1:Fa0 T 1:B0 0:B0", "the loss is the tail's last stage"),
    ],
)
def test_schedules_that_the_runtime_does_not_run_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        plan_execution(Schedule.parse(text), Shape(0, (1, 1)))


def test_recorded_data_whose_input_is_made_anew_is_refused() -> None:
    schedule = Schedule.parse("0:Fc0 0:Fa1 1:Fa0 Fa0 B0 1:B0 0:Fa0 0:B1 0:B0")
    with pytest.raises(InvalidScheduleError, match="makes anew what the saved data of stage 1"):
        plan_execution(schedule, Shape(0, (2, 1)))


def _stage(
    leaves: tuple[tuple[int, int], ...] = (), environment: int = 0, relief: int = 0, left: int = 0
) -> JoinedStage:
    return JoinedStage(
        cost=StageCost(
            name="",
            forward_time=1,
            backward_time=1,
            output_bytes=10,
            saved_bytes=10,
            gradient_bytes=10,
            recording_bytes=1,
            dropping_bytes=2,
            backward_bytes=3,
            environment_bytes=environment,
            random_bytes=environment // 2,
            rerun_time=5,
            hooks_time=3,
        ),
        forward_waiting=1000,
        backward_waiting=2000,
        relief=relief,
        left_bytes=left,
        leaves=tuple(number for number, _ in leaves),
        leaf_bytes=tuple(size for _, size in leaves),
    )


def _account(relief: int = 0) -> JoinAccount:
    """Two branches of one stage that share a weight of 100 bytes; the loss is the tail."""
    shared = ((7, 100),)
    branches = tuple(
        JoinedChain(input_bytes=0, input_gradient_bytes=0, stages=(_stage(shared, 40),))
        for _ in range(2)
    )
    tail = JoinedChain(input_bytes=20, input_gradient_bytes=20, stages=(_stage(relief=relief),))
    return JoinAccount(branches=branches, tail=tail, passed_bytes=0)


@pytest.mark.parametrize(
    ("text", "overheads"),
    [
        # What the caller has waits from the loss on.
        ("0:Fa0 1:Fa0 Fa0 B0 1:B0 0:B0", [1, 1, 1001, 2003, 2003, 2003]),
        # Branch 0 runs again: its environment (40, of which 20 random) stands from its first
        # run, and as much again while it runs again.
        ("0:Fc0 1:Fa0 Fa0 B0 1:B0 0:Fa0 0:B0", [42, 41, 1041, 2043, 2043, 1081, 2023]),
    ],
)
def test_overheads_by_hand(text: str, overheads: list[int]) -> None:
    assert _account().overheads(Schedule.parse(text)) == overheads


def test_what_a_backward_leaves_stands_until_the_end() -> None:
    account = _account()
    stage = _stage(((7, 100),), left=300)
    branches = (account.branches[0], replace(account.branches[1], stages=(stage,)))
    account = replace(account, branches=branches)
    assert account.overheads(Schedule.parse(_PLAIN)) == [1, 1, 1001, 2003, 2003, 2303]


def test_a_backward_that_frees_as_it_goes_needs_less() -> None:
    account, schedule = _account(relief=2010), Schedule.parse("0:Fa0 1:Fa0 Fa0 B0 1:B0 0:B0")
    overheads = account.overheads(schedule)
    assert overheads == [1, 1, 1001, -7, 2003, 2003]
    timeline = simulate_join(account.by_kind(), schedule, overheads=overheads).timeline
    stored = [
        snapshot.activation_bytes + snapshot.saved_bytes + snapshot.gradient_bytes
        for snapshot in timeline
    ]
    inputs, saved, given, gave = 20, 10, 10, 20
    assert stored[2:4] == [inputs + saved + given, inputs + gave]
    assert timeline[3].during_bytes == inputs + saved + given + gave - 7
    hasty = [*overheads[:3], -9999, *overheads[4:]]
    assert simulate_join(account.by_kind(), schedule, overheads=hasty).timeline[
        3
    ].during_bytes == max(stored[2:4])


_PLAIN = "0:Fa0 1:Fa0 Fa0 B0 1:B0 0:B0"
_AGAIN = "0:Fc0 1:Fa0 Fa0 B0 1:B0 0:Fa0 0:B0"


def _needs(profile: JoinProfile, text: str) -> list[int]:
    replay = simulate_join(profile, Schedule.parse(text))
    return [snapshot.overhead_bytes for snapshot in replay.timeline]


@pytest.mark.parametrize("text", [_PLAIN, _AGAIN])
def test_the_profile_by_kind_of_run_is_exact_for_its_own_schedule_and_bounds_all(text: str) -> None:
    schedule = Schedule.parse(text)
    for relief in (0, 2, 2010):
        account = _account(relief)
        own = account.overheads(schedule)
        assert _needs(account.by_kind(schedule), text) == [max(size, 0) for size in own]
        least = _needs(account.by_kind(), text)
        assert all(low <= max(size, 0) for low, size in zip(least, own, strict=True))
        assert account.relief == max(relief - 3, 0)


def test_what_stands_in_every_schedule_is_in_the_profile_of_none() -> None:
    """The output waits from the loss on."""
    assert _needs(_account().by_kind(), _AGAIN) == [2, 1, 1001, 2003, 2003, 1001, 2003]


def test_a_gradient_is_half_summed_from_its_first_backward_through_its_last() -> None:
    weights = ((7, 100), (8, 30))
    tied = replace(_account(), tail=replace(_account().tail, stages=(_stage(weights),)))
    profile = tied.by_kind()
    assert profile.shared == (SharedGradient(bytes=100, users=(0, 1, 2)),), "30 bytes are its own"
    assert tied.by_kind(Schedule.parse(_AGAIN)).shared == profile.shared
    for account, half in ((tied, [0, 0, 0, 100, 100, 100, 100]), (_account(), [0] * 4 + [100] * 3)):
        profile = account.by_kind()
        timelines = (
            simulate_join(join, Schedule.parse(_AGAIN)).timeline
            for join in (profile, replace(profile, shared=()))
        )
        during = ([snapshot.during_bytes for snapshot in timeline] for timeline in timelines)
        assert [one - other for one, other in zip(*during, strict=True)] == half


def test_runs_of_another_kind_have_what_would_stand_beside_them() -> None:
    """Plain training runs nothing again: 40 bytes of an environment would be saved, and copied."""
    profile = _account().by_kind(Schedule.parse(_PLAIN))
    assert _needs(profile, _AGAIN) == [42, 1, 1001, 2003, 2003, 1081, 2003]


def test_runs_again_count_in_the_time_by_kind_of_run() -> None:
    profile = _account().by_kind()
    plain, again = (simulate_join(profile, Schedule.parse(text)) for text in (_PLAIN, _AGAIN))
    assert plain.makespan == profile.least_time == 6
    assert again.makespan == 6 + 1 + 5 + 3, "forward, and what it takes beyond, and hooks"


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidBudgetError, match="budget is 0"):
        solve_measured_join(case_of("tail").measured, 0)


def test_a_schedule_under_an_option_that_a_stage_does_not_have_is_refused() -> None:
    measured = case_of("tail").measured
    text = str(keep_all_join(measured.account.by_kind())).replace("1:Fa0 ", "1:Fa0.1 ")
    with pytest.raises(PlanMismatchError, match=r"1:Fa0\.1 keeps stage 0 under option 1, and this"):
        JoinExecutor(measured, Schedule.parse(text))


def test_a_sample_of_one_tensor_twice_is_one_input() -> None:
    """Two tensors are another call; nobody reads one of them twice."""
    model, same = Siamese(_layers()), torch.randn(4, 16)
    for extracted in (extract(model, (same, same)), extract_join(model, (same, same))):
        assert torch.equal(extracted(_TWO[0], _TWO[0]), model(_TWO[0], _TWO[0]))
        with pytest.raises(UnsupportedModelError, match="makes another graph than the sample"):
            extracted(*_TWO)
