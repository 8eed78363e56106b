"""Joins train bit for bit as plain autograd does, within the peak that was promised."""

from __future__ import annotations

import copy
import random
import re
import runpy
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import chainstay
from chainstay.baselines.join import keep_all_join
from chainstay.errors import InfeasibleBudgetError, PlanMismatchError
from chainstay.fitting.solved_plans import SolvedPlans
from chainstay.fitting.strategies import fastest, joins
from chainstay.planning.join import peak_of_join, runnable_orders
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.joins.executor import JoinExecutor
from chainstay.runtime.joins.measured_join import measure_join
from chainstay.schedule import Schedule
from chainstay.solve import solve_join
from interrupting import Interrupting
from join_models import JOINS, JoinCase, Perceptrons, Siamese, case_of, three_steps_of
from sgd_steps import differences
from training_conditions import shown
from zoo import loss_of


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        pytest.param("tail", (0.4,), id="tail at 40 %"),
        *(pytest.param(name, (1.0, 0.7, 0.4, 0.0), marks=pytest.mark.long) for name in JOINS),
    ],
)
def test_three_steps_are_equal_and_within_the_promised_peak(
    name: str, shares: tuple[float, ...]
) -> None:
    case = case_of(name)
    expected = three_steps_of(case)
    for share in shares:
        plan = case.solved(share)
        with case.planned(plan):
            assert differences(three_steps_of(case), expected) == [], share
            measured = case.peak()
        assert measured <= plan.peak_bytes <= plan.budget, share
        assert plan.peak_bytes <= 1.1 * measured, share


LEAST = {"Siamese ResNet-18": 0.41, "triplet ResNet-18": 0.33, "CLIP": 0.225}
"""More than what the smallest plan without options needs, as a share of plain training's memory."""


@pytest.fixture
def _no_onednn() -> Iterator[None]:
    """Let convolutions need the same memory on every processor."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch sets it with the other flags
@pytest.mark.usefixtures("_no_onednn")
@pytest.mark.parametrize("name", LEAST)
def test_half_summed_gradients_and_turns_leave_room_for_small_plans(name: str) -> None:
    """Counted at their worst, the sums alone take a fifth of a triplet network's memory."""
    case = case_of.__wrapped__(name)
    account = case.measured.account.without_options()
    chain = replace(case.measured.chain, options={})
    case = replace(case, measured=replace(case.measured, account=account, chain=chain))
    assert case.least <= LEAST[name] * case.keep_all_peak
    plan = case.solved(0.7)
    if "ResNet" in name:  # what towers that share weights sum is in the bound
        assert plan.makespan <= 1.03 * plan.lower_bound
    expected = three_steps_of(case)
    for solution in (plan, case.solved(0.0)):
        with case.planned(solution):
            assert differences(three_steps_of(case), expected) == []
            assert case.peak() <= solution.peak_bytes <= solution.budget


@pytest.mark.long
def test_schedules_of_any_kind_are_run_bit_for_bit() -> None:
    """The solver's answers for random times, at all budgets, and branches that take turns."""
    case = case_of("tail")
    expected = three_steps_of(case)
    generator = random.Random(4)
    orders = set()
    for _ in range(5):
        profile = case.measured.account.by_kind()
        branches = tuple(_retimed(branch, generator) for branch in profile.branches)
        profile = replace(profile, branches=branches, tail=_retimed(profile.closing, generator))
        budget = int(generator.uniform(0.2, 0.9) * case.keep_all_peak)
        solved = next(runnable_orders(case.measured, solve_join(profile, budget).schedule))
        for schedule in (solved, _with_random_turns(solved, generator)):
            with case.planned(schedule):
                assert differences(three_steps_of(case), expected) == [], schedule
                assert case.peak() <= peak_of_join(case.measured, schedule), schedule
            orders.add(JoinExecutor(case.measured, schedule).plan.backward)
    assert len(orders) > 5, "backwards in several orders"


def _with_random_turns(schedule: Schedule, generator: random.Random) -> Schedule:
    """Each branch does the same behind the tail, in turns with the other."""
    end = 1 + max(index for index, op in enumerate(schedule) if op.branch is None)
    turns = [op.branch for op in schedule[end:]]
    generator.shuffle(turns)
    rest = {j: iter([op for op in schedule[end:] if op.branch == j]) for j in set(turns)}
    return Schedule((*schedule[:end], *(next(rest[j]) for j in turns)))


def _retimed(chain: ChainProfile, generator: random.Random) -> ChainProfile:
    plain = (
        replace(stage, first=None, again=None, dropped_first=None, dropped_again=None)
        for stage in chain.stages
    )
    stages = (replace(stage, forward_time=generator.randint(1, 99)) for stage in plain)
    return replace(chain, stages=tuple(stages))


def test_backwards_come_in_the_order_of_the_plan() -> None:
    case = case_of("tail")
    schedule = _with_turns(case)
    seen: list[str] = []
    hooks = [
        parameter.register_hook(lambda _, name=name: seen.append(name.split(".")[0]))
        for name, parameter in case.model.named_parameters()
        if name.endswith("weight")
    ]
    with case.planned(schedule):
        loss_of(case()).backward()
    for hook in hooks:
        hook.remove()
    towers = [name for name in seen if name in ("left", "right")]
    assert towers[:8] != ["right"] * 8
    assert towers == ["right", "left"] * 8


def _with_turns(case: JoinCase) -> Schedule:
    """Everything kept; on the way back the branches take turns, two stages of weights each."""
    words = str(keep_all_join(case.measured.account.by_kind())).split()
    first, second = ([w for w in words if w.startswith(f"{j}:B")] for j in range(2))
    head = [word for word in words if ":B" not in word]
    turns = [word for pair in zip(second, first, strict=True) for word in pair]
    ordered = sorted(turns, key=lambda word: -_block_of(case, word))
    return Schedule.parse(" ".join([*head, *ordered]))


def _block_of(case: JoinCase, word: str) -> int:
    """Stages are ordered by the number of weights up to them."""
    branch, stage = word.split(":B")
    start = int(branch) * case.measured.lengths[0]
    stages = case.measured.chain.stages[start : start + int(stage) + 1]
    names = case.measured.chain.names
    return sum(
        names[position].endswith("weight")
        for earlier in stages
        for position in earlier.effects.reads
    )


@pytest.mark.long
def test_three_summands_are_added_in_the_order_of_plain_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another order gives other bits, so it is neither offered nor taken."""
    case = case_of("triplet ResNet-18")
    expected = three_steps_of(case)
    words = str(keep_all_join(case.measured.account.by_kind())).split()
    head = [word for word in words if ":B" not in word]
    back = {j: [word for word in words if word.startswith(f"{j}:B")] for j in range(3)}

    def ordered(*branches: int) -> Schedule:
        return Schedule.parse(" ".join([*head, *(w for j in branches for w in back[j])]))

    for order, is_same in (((2, 1, 0), True), ((1, 2, 0), True), ((0, 1, 2), False)):
        schedule = ordered(*order)
        assert (schedule in runnable_orders(case.measured, schedule)) is is_same, order
        if not is_same:
            refused = pytest.raises(PlanMismatchError, match="summed in another order than in")
            with refused, case.planned(schedule):
                pass
            monkeypatch.setattr(joins, "can_run", lambda *_: True)
        with case.planned(schedule):
            assert (differences(three_steps_of(case), expected) == []) is is_same, order


def _accumulated(case: JoinCase) -> list[torch.Tensor]:
    for _ in range(2):
        loss_of(case()).backward()
    return _gradients(case)


def _retained(case: JoinCase) -> list[torch.Tensor]:
    loss = loss_of(case())
    loss.backward(retain_graph=True)
    loss.backward()
    return _gradients(case)


def _two_forwards(case: JoinCase) -> list[torch.Tensor]:
    first, second = loss_of(case()), loss_of(case())
    first.backward()
    second.backward()
    return _gradients(case)


def _by_grad(case: JoinCase) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss_of(case()), list(case.model.left.parameters())))  # type: ignore[union-attr]


def _twice_differentiated(case: JoinCase) -> list[torch.Tensor]:
    weight = case.model.left[0].weight  # type: ignore[index,union-attr]
    (slope,) = torch.autograd.grad(loss_of(case()), [weight], create_graph=True)
    slope.square().sum().backward()
    return _gradients(case)


def _gradients(case: JoinCase) -> list[torch.Tensor]:
    named = case.model.parameters()
    return [parameter.grad.clone() for parameter in named if parameter.grad is not None]


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [_accumulated, _retained, _two_forwards, _by_grad, _twice_differentiated],
    ids=lambda train: train.__name__.strip("_"),
)
def test_other_ways_to_train(train: Callable[[JoinCase], list[torch.Tensor]]) -> None:
    case = case_of("tail")
    found = []
    for share in (None, 0.6, 0.0):
        case.model.load_state_dict(case.initial)
        case.model.zero_grad()
        torch.manual_seed(3)
        if share is None:
            found.append(train(case))
            continue
        with case.planned(case.solved(share)):
            found.append(train(case))
    plain, *planned = found
    for gradients in planned:
        assert len(gradients) == len(plain) > 0
        assert all(map(torch.equal, plain, gradients))


@pytest.mark.long
def test_steps_that_break_off_anywhere_leave_the_model_as_it_was() -> None:
    case = case_of("tail")
    expected = three_steps_of(case)
    with case.planned(case.solved(0.5)):
        with Interrupting() as counting:
            loss_of(case()).backward()
        for place in range(7):
            torch.manual_seed(place)
            with (
                pytest.raises(KeyboardInterrupt),
                Interrupting(place * counting.count // 7, KeyboardInterrupt),
            ):
                loss_of(case()).backward()
        assert differences(three_steps_of(case), expected) == []


@pytest.mark.long
def test_fit_takes_the_join_where_the_chain_needs_more() -> None:
    """Towers that share normalization cannot be cut as one chain: its buffers change twice."""
    torch.manual_seed(0)
    layers = [nn.Linear(32, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.1)] * 3
    model, args = Siamese(nn.Sequential(*layers)), (torch.randn(64, 32), torch.randn(64, 32))
    plain = [tensor.clone() for tensor in _step(model, args)]
    settings = {"budget": "75%", "stage_options": False, "repeats": 1}
    chainstay.fit(model, args, loss=loss_of, progress=False, **settings)  # type: ignore[arg-type]
    assert isinstance(shown(model).plans[-1].profile, JoinProfile)
    assert re.search(r"branches of \d+ and \d+ stages that meet, planned", str(model.chainstay))
    assert all(map(torch.equal, plain, _step(model, args)))
    chainstay.unfit(model)
    assert all(map(torch.equal, plain, _step(model, args)))
    with pytest.raises(InfeasibleBudgetError) as error:
        chainstay.fit(model, args, budget=1, loss=loss_of, progress=False, repeats=1)
    required = error.value.required
    chainstay.fit(model, args, budget=required, loss=loss_of, progress=False, repeats=1)
    assert all(map(torch.equal, plain, _step(model, args)))


class Scaled(Perceptrons):
    """Is given a number, and has another."""

    temperature = 1.0

    def forward(self, left: torch.Tensor, right: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return super().forward(left * scale, right / scale) / self.temperature


@pytest.mark.long
@pytest.mark.parametrize("stage_options", [False, True])
def test_numbers_that_change_cost_no_planning(
    monkeypatch: pytest.MonkeyPatch, *, stage_options: bool
) -> None:
    monkeypatch.setattr(fastest, "_CLEARLY", Fraction(1, 100))  # however fast the chain is
    torch.manual_seed(0)
    model, args = Scaled(), (torch.randn(64, 32), torch.randn(64, 32))
    plain = copy.deepcopy(model)
    settings: Any = {"loss": loss_of, "stage_options": stage_options, "repeats": 1}
    chainstay.fit(model, (*args, 1.5), budget="60%", **settings)
    assert isinstance(shown(model).plans[-1].profile, JoinProfile)
    for number in range(4):
        model.temperature = plain.temperature = 1.0 + number
        found, expected = (_step(one, (*args, 1.5 + number)) for one in (model, plain))
        assert all(map(torch.equal, found, expected))
    assert len(shown(model).plans) == 1


@pytest.mark.long
def test_copies_keep_the_plan_and_are_planned_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastest, "_CLEARLY", Fraction(1, 100))  # however fast the chain is
    torch.manual_seed(0)
    model, args = Perceptrons(), (torch.randn(64, 32), torch.randn(64, 32))
    plain = copy.deepcopy(model)
    chainstay.fit(model, args, budget="60%", loss=loss_of, progress=False, repeats=1)
    assert isinstance(shown(model).plans[-1].profile, JoinProfile)
    planning = Mock()
    monkeypatch.setattr(SolvedPlans, "of_graph", planning)
    twin = copy.deepcopy(model)
    assert str(shown(twin)) == str(shown(model))
    for one in (twin, copy.deepcopy(twin), model):
        assert all(map(torch.equal, _step(one, args), _step(plain, args)))
        assert shown(one).solution == shown(model).solution
    assert shown(twin).plans == shown(model).plans
    planning.assert_not_called()


def test_branches_are_measured_once_where_a_budget_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The least budget that the error names is tried as well."""
    measure = Mock(wraps=measure_join)
    monkeypatch.setattr(joins, "measure_join", measure)
    model, args = Perceptrons(16, 1), (torch.randn(8, 16), torch.randn(8, 16))
    with pytest.raises(InfeasibleBudgetError):
        chainstay.fit(model, args, budget=1, progress=False, repeats=1, stage_options=False)
    assert measure.call_count == 1


class Towers(nn.Module):
    """One tower for each input."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(count)
        )

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        met = [tower(x) for tower, x in zip(self.towers, inputs, strict=True)]
        return torch.stack(met).prod(0)


@pytest.mark.parametrize("count", [4, 5])
def test_a_few_branches_are_planned_apart(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(wraps=measure_join)
    monkeypatch.setattr(joins, "measure_join", measure)
    model, args = Towers(count), tuple(torch.randn(count, 8, 16))
    with pytest.raises(InfeasibleBudgetError):
        chainstay.fit(model, args, budget=1, progress=False, repeats=1, stage_options=False)
    assert measure.call_count == (count == 4)


def _step(model: nn.Module, args: tuple[Any, ...]) -> list[torch.Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    loss_of(model(*args)).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.long
def test_autocast_shares_its_copies_of_weights_between_branches() -> None:
    torch.manual_seed(0)
    model = Siamese(Perceptrons(16, 2).left)
    args = (torch.randn(32, 16), torch.randn(32, 16))
    with torch.autocast("cpu", torch.bfloat16):
        plain = [tensor.clone() for tensor in _step(model, args)]
        chainstay.fit(model, args, budget="80%", loss=loss_of, progress=False, repeats=1)
        assert all(map(torch.equal, plain, _step(model, args)))


@pytest.mark.long
def test_the_example_prints_equal_steps_in_less_memory(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "two_towers.py"
    runpy.run_path(str(example), run_name="__main__")
    table, plan = capsys.readouterr().out.split("\n\n")
    heading, plain, *rows = (line.split() for line in table.splitlines())
    assert heading[:2] == ["budget", "peak"]
    peaks = [float(row[1]) for row in (plain, *rows)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks) == 3
    assert all(row[-1] == "yes" for row in rows)
    assert "stages that meet, planned apart" in plan
