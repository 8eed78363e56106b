"""Stages of joins kept in part: bits and peaks of plans, and the files that hold them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from chainstay import PlanMismatchError, Schedule, Solution, apply_plan, fit, load_plan, save_plan
from chainstay.baselines.join import keep_all_join
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.planning.join import peak_of_join, solve_measured_join
from chainstay.profiles import JoinProfile
from chainstay.runtime.joins.account import JoinAccount, JoinedChain
from chainstay.solve.join import solve_join
from join_models import JoinCase, Siamese, three_steps_of
from sgd_steps import differences, peak_of_step, two_plain_steps
from training_conditions import shown
from zoo import loss_of

WIDTH = 32
PAIR = tuple(torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(2))


class Block(nn.Sequential):
    """Much of what it saves is cheap to make again."""

    def __init__(self, *, dropout: float = 0.2) -> None:
        super().__init__(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.LayerNorm(4 * WIDTH),
            nn.Dropout(dropout),
            nn.Sigmoid(),
            nn.Linear(4 * WIDTH, WIDTH),
        )


class Meeting(nn.Module):
    """Two towers of their own, one weight that both use, and a tail behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, WIDTH)
        self.tail = nn.Sequential(Block(), Block())

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        met = self.head(self.left(left)) * self.head(self.right(right))
        result: torch.Tensor = self.tail(met)
        return result


@cache
def case() -> JoinCase:
    torch.manual_seed(0)
    model = Meeting().train()
    settings = PlannerSettings(loss=loss_of, granularity=9, repeats=1, progress=False)
    captured = measure_model(model, PAIR, {}, settings)
    assert captured.attempt is not None
    measured = captured.attempt.measured()
    initial = {key: value.clone() for key, value in model.state_dict().items()}
    return JoinCase(model, (PAIR, {}), captured, measured, initial)


def words() -> list[str]:
    return str(keep_all_join(case().measured.account.by_kind())).split()


def with_options(options: dict[str, int]) -> Schedule:
    """Plain training, but that the named stages are kept under an option."""
    return Schedule.parse(
        " ".join(f"{word}.{options[word]}" if word in options else word for word in words())
    )


def options_of() -> dict[str, int]:
    """Every stage's last option, by the word of its recording."""
    account = case().measured.account
    found = {}
    for branch, chain in (*enumerate(account.branches), (None, account.tail)):
        for index, stage in enumerate(chain.stages):
            if stage.cost.options:
                word = f"Fa{index}" if branch is None else f"{branch}:Fa{index}"
                found[word] = len(stage.cost.options)
    return found


def checked(schedule: Schedule) -> int:
    """Train by it: equal bits, and a peak as promised, which is returned."""
    own = case()
    expected = three_steps_of(own)
    with own.planned(schedule):
        assert differences(three_steps_of(own), expected) == [], schedule
        measured = own.peak()
    promised = peak_of_join(own.measured, schedule)
    assert measured <= promised <= 1.03 * measured, schedule
    return promised


@pytest.mark.parametrize("where", ["0:", "1:", "Fa", ":", ""])
def test_options_in_branches_and_tail_train_bit_for_bit_as_promised(where: str) -> None:
    chosen = {
        word: number
        for word, number in options_of().items()
        if (word.startswith(where) if where != ":" else ":" in word)
    }
    assert chosen, "there are options"
    promised = checked(with_options(chosen))
    assert promised < case().keep_all_peak, "they save something"


def test_a_stage_that_runs_again_is_kept_in_part_then() -> None:
    """Branch 1 keeps its input alone, and goes back first; its stages have options again."""
    own, ops = options_of(), words()
    again = [word for word in ops if word.startswith("1:Fa")]
    ahead = [f"1:F{'n' if index else 'c'}{index}" for index in range(len(again))]
    first, turn = ops.index(again[0]), next(i for i, op in enumerate(ops) if op.startswith("1:B"))
    between = ops[first + len(again) : turn]
    under = [f"{word}.{own[word]}" if word in own else word for word in again]
    assert under != again
    checked(Schedule.parse(" ".join([*ops[:first], *ahead, *between, *under, *ops[turn:]])))


def test_one_question_is_asked_of_a_join_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a refusal names is enough all the same."""
    own, asked = case(), []

    def asking(*args: Any, **kwargs: Any) -> Solution:
        asked.append(args)
        return solve_join(*args, **kwargs)

    monkeypatch.setattr("chainstay.planning.join.solve_join", asking)
    monkeypatch.setattr("chainstay.planning.join._PATIENCE_S", 0)
    with pytest.raises(InfeasibleBudgetError) as refusal:
        solve_measured_join(own.measured, own.keep_all_peak // 20)
    assert len(asked) == 1
    plan = solve_measured_join(own.measured, refusal.value.required)
    assert len(asked) == 2
    assert plan.peak_bytes <= plan.budget


@pytest.mark.long
def test_plans_with_options_are_within_every_budget_and_no_slower() -> None:
    own = case()
    plain = own.measured.account.by_kind().least_time
    faster = 0
    for share in (0.85, 0.7, 0.55, 0.4):
        budget = int(share * own.keep_all_peak)
        plan = solve_measured_join(own.measured, budget)
        assert plan.peak_bytes <= budget
        assert peak_of_join(own.measured, plan.schedule) == plan.peak_bytes
        assert plain <= plan.lower_bound <= plan.makespan
        checked(plan.schedule)
        account = own.measured.account.without_options()
        chain = replace(own.measured.chain, options={})
        whole = replace(own.measured, account=account, chain=chain)
        try:
            faster += plan.makespan < 0.99 * solve_measured_join(whole, budget).makespan
        except InfeasibleBudgetError:
            faster += 1
    assert faster >= 3


@pytest.mark.long
def test_a_budget_that_an_error_names_is_enough_whatever_the_times() -> None:
    """Options other than the one that no times decide do not count for it."""
    measured = case().measured
    required = case().least
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        slow = replace(measured, account=_retimed(measured.account, draw))
        assert solve_measured_join(slow, required).peak_bytes <= required


def _retimed(account: JoinAccount, draw: torch.Generator) -> JoinAccount:
    def drawn() -> int:
        return int(torch.randint(1, 10**6, (), generator=draw))

    def retimed(chain: JoinedChain) -> JoinedChain:
        stages = (
            replace(stage, cost=replace(stage.cost, forward_time=drawn(), backward_time=drawn()))
            for stage in chain.stages
        )
        return replace(chain, stages=tuple(stages))

    tail = retimed(account.tail)
    return replace(account, branches=tuple(map(retimed, account.branches)), tail=tail)


def twins(seed: int = 0) -> Siamese:
    """As one chain it cannot be cut: the buffers of normalization change twice."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Sigmoid(), nn.Dropout(0.1)]
        layers += [nn.Linear(4 * WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)]
    return Siamese(nn.Sequential(*layers))


INPUTS = tuple(torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(n)) for n in (1, 2))


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for _ in range(8):  # in networks this small, noise may decide between a join and one chain
        folder = tmp_path_factory.mktemp("plans")
        model = fit(
            twins(),
            INPUTS,
            budget="33%",
            granularity=8,
            loss=loss_of,
            progress=False,
            repeats=1,
            cache=folder / "costs",
        )
        if isinstance(shown(model).plans[-1].profile, JoinProfile):
            break
    assert isinstance(shown(model).plans[-1].profile, JoinProfile)
    parts = shown(model).kept_in_part
    assert {part.branch for part in parts} <= {0, 1}
    assert parts
    assert "keeps in part: " in str(shown(model))
    save_plan(model, folder / "plan.json")
    return folder / "plan.json"


@pytest.mark.long
def test_a_plan_file_of_a_join_in_part_trains_another_copy_bit_for_bit(plan_path: Path) -> None:
    plan = load_plan(plan_path)
    lengths = [len(branch) for branch in plan.profile.branches]  # type: ignore[union-attr]
    used = {
        (sum(lengths[: op.branch]) + op.stage if op.branch is not None else op.stage, op.option)
        for op in plan.solution.schedule
        if op.option
    }
    assert used == {(choice.stage, choice.option) for choice in plan.choices}
    plain, planned = twins(1), apply_plan(twins(1), INPUTS, plan=plan_path)
    expected = two_plain_steps(plain, lambda: loss_of(plain(*INPUTS)))
    found = two_plain_steps(planned, lambda: loss_of(planned(*INPUTS)))
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))

    def step() -> None:
        output = planned(*INPUTS)
        loss_of(output).backward()

    assert peak_of_step(planned, step, INPUTS) <= plan.solution.peak_bytes
    again = plan_path.with_name("again.json")
    save_plan(planned, again)
    assert load_plan(again) == plan


@pytest.mark.long
@pytest.mark.parametrize(
    ("changed", "text"),
    [({"replayed": [999]}, "has no option"), ({"stage": 99}, "of stage 99")],
)
def test_an_option_that_a_stage_of_a_join_does_not_have_is_refused(
    plan_path: Path, tmp_path: Path, changed: dict[str, object], text: str
) -> None:
    document = json.loads(plan_path.read_text())
    document["choices"][0].update(changed)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises((PlanMismatchError, ValueError), match=text):
        apply_plan(twins(), INPUTS, plan=tmp_path / "plan.json")
    del document["choices"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanMismatchError, match="this join has no such option"):
        apply_plan(twins(), INPUTS, plan=tmp_path / "plan.json")


@pytest.mark.long
def test_options_are_found_again_in_the_file_of_costs(
    plan_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("options are looked for")

    monkeypatch.setattr("chainstay.runtime.joins.measured_join.observe_options", refused)
    monkeypatch.setattr("chainstay.runtime.measures.measured.observe_options", refused)
    model = fit(
        twins(),
        INPUTS,
        budget="33%",
        granularity=8,
        loss=loss_of,
        progress=False,
        repeats=1,
        cache=plan_path.with_name("costs"),
    )
    assert shown(model).solution.schedule == load_plan(plan_path).solution.schedule
