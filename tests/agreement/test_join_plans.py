"""Plans of joins as files, caches of what was measured, and the join beside the other ways."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner, Result

import chainstay.cli
from chainstay import (
    InvalidPlanError,
    JoinProfile,
    PlanMismatchError,
    Schedule,
    Solution,
    apply_plan,
    fit,
    load_plan,
    save_plan,
    unfit,
)
from chainstay.baselines.join import keep_all_join
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.fitting.strategies.joins import planned_join
from chainstay.planning.join import solve_measured_join
from chainstay.runtime.measures import clock
from join_models import Siamese
from sgd_steps import peak_of_step, two_plain_steps
from training_conditions import shown
from zoo import loss_of

WIDTH = 24
IMAGES = tuple(torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(3))
PAIR = IMAGES[:2]


def towers(seed: int = 0, width: int = WIDTH) -> Siamese:
    """As one chain it cannot be cut: the buffers of normalization change twice."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.1)]
    return Siamese(nn.Sequential(*layers))


def trained(model: nn.Module) -> list[torch.Tensor]:
    """Losses, gradients, buffers and random state of two steps."""
    return two_plain_steps(model, lambda: loss_of(model(*PAIR)))


def peak_bytes(model: nn.Module) -> int:
    def step() -> None:
        output = model(*PAIR)  # held until the step ends
        loss_of(output).backward()

    return peak_of_step(model, step, PAIR)


@pytest.fixture
def unmeasurable(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, nothing can be timed."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("something is measured or solved")

    def forbid(*, solving: bool = True) -> None:
        for name in ("StageTimes", "TimedStage", "stage_times", "time_chain"):
            monkeypatch.setattr(clock, name, refused)
        monkeypatch.setattr("chainstay.runtime.measures.costs.time_chain", refused)
        if solving:
            monkeypatch.setattr("chainstay.planning.join.solve_join", refused)

    return forbid


@cache
def plan_text() -> str:
    """The plan of the towers in three quarters of their memory."""
    model = fit(
        towers(), PAIR, budget="75%", loss=loss_of, stage_options=False, progress=False, repeats=1
    )
    from_fit = shown(model)
    plan = chainstay.applying.plan_of(model)
    assert plan.solution == from_fit.solution
    chosen = {alternative.name: alternative for alternative in from_fit.alternatives}
    assert list(chosen) == ["keep all", "recompute", "join", "offload", "combined"]
    assert chosen["join"].is_chosen
    assert chosen["join"].makespan == plan.solution.makespan
    assert chosen["join"].remark == "the fastest that fits"
    assert "*  join" in str(from_fit)
    assert "planned apart (as one chain it needs" in str(from_fit)
    return plan.to_json()


@pytest.fixture
def plan_path(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_text(plan_text())
    return path


def test_a_saved_plan_of_a_join_trains_another_copy_bit_for_bit(
    plan_path: Path, unmeasurable: Callable[[], None]
) -> None:
    plan = load_plan(plan_path)
    assert isinstance(plan.profile, JoinProfile)
    assert plan.cut is not None
    assert plan.cut.by == "join"
    assert plan.replay().peak_bytes <= plan.solution.peak_bytes <= plan.solution.budget
    assert len(plan.solution.schedule) > 2 * plan.profile.stages, "there is something to do again"
    expected = trained(towers(1))
    unmeasurable()
    model = apply_plan(towers(1), PAIR, plan=plan_path)
    found = trained(model)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    assert peak_bytes(model) <= plan.solution.peak_bytes
    again = plan_path.with_name("again.json")
    save_plan(model, again)
    assert load_plan(again) == plan
    unfit(model)
    assert "forward" not in vars(model)


def _wider() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    return towers(width=16), tuple(tensor[:, :16] for tensor in PAIR)


def _switched() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    model = towers()
    model.tower[3].eval()  # type: ignore[index]
    return model, PAIR


def _otherwise() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    class Other(Siamese):
        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            return super().forward(inputs[0], inputs[1].exp())

    Other.__qualname__ = Siamese.__qualname__
    model = towers()
    model.__class__ = Other
    return model, PAIR


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (_wider, r"parameter tower.0.weight: is \(16, 16\) .*, in the plan \(24, 24\)"),
        (_switched, "mode of tower.3: is evaluation, the plan has none"),
        (
            lambda: (towers(), tuple(tensor[:8] for tensor in PAIR)),
            r"argument args\[0\]: is \(8, 24\)",
        ),
        (lambda: (towers(), IMAGES), r"argument args\[2\]: is .*, the plan has none"),
        (_otherwise, r"stage \d+ \(.*\): is .*in the plan"),
    ],
)
def test_another_join_is_refused_naming_what_differs(
    plan_path: Path,
    made: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]],
    message: str,
) -> None:
    model, args = made()
    with pytest.raises(PlanMismatchError, match=message) as caught:
        apply_plan(model, args, plan=plan_path)
    assert caught.value.differences
    assert "forward" not in vars(model)


def test_files_that_mix_chains_and_joins_are_refused(plan_path: Path) -> None:
    document = json.loads(plan_path.read_text())
    document["cut"]["by"] = "graph"
    plan_path.write_text(json.dumps(document))
    with pytest.raises(InvalidPlanError, match="is of a JoinProfile, not of a chain"):
        apply_plan(towers(), PAIR, plan=plan_path)
    chain = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    fit(chain, (PAIR[0],), budget="100%", loss=loss_of, progress=False, repeats=1)
    save_plan(chain, plan_path)
    unfit(chain)
    document = json.loads(plan_path.read_text())
    document["cut"]["by"] = "join"
    plan_path.write_text(json.dumps(document))
    with pytest.raises(InvalidPlanError, match="branches and a tail, and is of a ChainProfile"):
        apply_plan(chain, (PAIR[0],), plan=plan_path)


def test_schedules_that_this_join_cannot_run_bit_for_bit_are_refused() -> None:
    """Three uses of each weight are summed in the order of their backwards."""
    model = towers()
    settings = PlannerSettings(loss=loss_of, granularity=9, repeats=1, progress=False)
    attempt = measure_model(model, IMAGES, {}, settings).attempt
    assert attempt is not None
    measured = attempt.measured()
    solution = solve_measured_join(measured, "100%")
    profile = measured.account.by_kind()
    planned_join(measured, solution, profile)
    end = 1 + max(i for i, op in enumerate(solution.schedule) if op.branch is None)
    ops = tuple(solution.schedule)
    turned = Schedule((*ops[:end], *sorted(ops[end:], key=lambda op: op.branch or 0)))
    assert turned != keep_all_join(profile)
    with pytest.raises(PlanMismatchError, match="summed in another order than in plain training"):
        planned_join(measured, replace(solution, schedule=turned), profile)
    with pytest.raises(PlanMismatchError, match=r"branches and a tail of .* the model has"):
        planned_join(measured, solution, JoinProfile(branches=profile.branches[:2]))


@pytest.mark.long
def test_what_was_measured_of_a_join_is_kept(
    tmp_path: Path, unmeasurable: Callable[..., None]
) -> None:
    def fitted(seed: int) -> Solution:
        model = towers(seed)
        settings = {"progress": False, "repeats": 1, "cache": tmp_path}
        fit(model, PAIR, budget="75%", loss=loss_of, **settings)  # type: ignore[arg-type]
        solution: Solution = shown(model).solution
        return replace(solution, solve_seconds=0.0)

    first = fitted(0)
    files = sorted(tmp_path.iterdir())
    kinds = [json.loads(file.read_text())["chainstay"] for file in files]
    assert sorted(kinds) == ["chain-account", "join-account"]
    unmeasurable(solving=False)
    assert fitted(1) == first
    assert sorted(tmp_path.iterdir()) == files
    joined = files[kinds.index("join-account")]
    joined.write_text(joined.read_text().replace('"passed_bytes": 0', '"passed_bytes": 1'))
    with (
        pytest.warns(UserWarning, match="its digest does not fit what it holds; the model is mea"),
        pytest.raises(AssertionError, match="something is measured"),
    ):
        fitted(1)


def test_towers_that_share_weights_have_another_file_than_towers_that_do_not(
    tmp_path: Path,
) -> None:
    class Two(nn.Module):
        def __init__(self, *, shared: bool) -> None:
            super().__init__()
            self.left, self.right = (
                nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)) for _ in range(2)
            )
            if shared:
                for one, other in ((0, 0), (2, 2)):
                    self.right[one].weight = self.left[other].weight

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return nn.functional.mse_loss(self.left(left), self.right(right))

    accounts = []
    for shared in (True, False):
        for _ in range(2):
            args = (torch.randn(4, 8), torch.randn(4, 8))
            settings = PlannerSettings(loss=loss_of, repeats=1, progress=False, cache=tmp_path)
            attempt = measure_model(Two(shared=shared), args, {}, settings).attempt
            assert attempt is not None
            accounts.append(attempt.measured().account)
    kinds = [json.loads(file.read_text())["chainstay"] for file in tmp_path.iterdir()]
    assert kinds.count("join-account") == 2
    assert accounts[0] == accounts[1] != accounts[2] == accounts[3]


MODELS = """
import torch
from torch import nn
from torch.nn import functional

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        layers = [(nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Tanh()) for _ in range(3)]
        self.tower = nn.Sequential(*(module for layer in layers for module in layer))

    def forward(self, left, right):
        return functional.mse_loss(self.tower(left), self.tower(right))
"""


def command(*arguments: str) -> Result:
    return CliRunner().invoke(chainstay.cli.app, arguments, env={"COLUMNS": "80"})


@pytest.mark.long
def test_the_command_line_plans_runs_and_shows_branches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pair.py").write_text(MODELS)
    model = ("pair.py:Pair", "-i", "16x24", "-i", "16x24")
    planned = command("plan", *model, "-b", "75%", "--repeats", "1", "--cache", "kept")
    assert planned.exit_code == 0, planned.output
    assert " >  branches apart " in planned.stdout
    assert "; plain " in planned.stdout
    assert max(map(len, planned.stdout.splitlines())) <= 80
    assert len(list(Path("kept").iterdir())) == 2
    plan = load_plan("plan.json")
    assert plan.cut is not None
    assert plan.cut.by == "join"
    run = command("run", *model, "-p", "plan.json", "--steps", "1")
    assert run.exit_code == 0, run.output
    assert "equal, bit for bit" in run.stdout
    assert isinstance(plan.profile, JoinProfile)
    assert f": kept; {plan.profile.stages} stages" in run.stdout
    profiled = command("profile", *model, "--repeats", "1", "--cache", "kept")
    told = "its branches meet: chainstay plan also tries to plan each branch apart"
    assert told in profiled.stderr
