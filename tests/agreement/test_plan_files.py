"""Plans saved by one process and applied by another: the same training, nothing measured again."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay import (
    HybridSolution,
    InvalidPlanError,
    Link,
    PlanMismatchError,
    Solution,
    UnsupportedModelError,
    apply_plan,
    fit,
    load_plan,
    save_plan,
    unfit,
)
from chainstay.fitting.strategies.fastest import Strategies
from chainstay.report.timeline import build_timeline
from chainstay.runtime.measures import clock
from sgd_steps import two_plain_steps

WIDTH = 24


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Dropout(0.2), nn.Linear(3 * width, width)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = hidden + self.body(hidden)
        return total


class Tower(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(5))
        self.last = nn.Linear(width, 3)

    def forward(self, sample: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.first(sample))
        for block in self.blocks:
            hidden = block(hidden)
        scores = self.last(hidden) * scale
        return {"scores": scores, "loss": scores.square().mean()}


class Body(Tower):
    """Gives one tensor, and no loss."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        scores: torch.Tensor = super().forward(sample)["scores"]
        return scores


def sequential() -> nn.Sequential:
    layers = OrderedDict[str, nn.Module]((f"block{i}", Residual(WIDTH)) for i in range(5))
    return nn.Sequential(layers)


def solution_of(model: Any) -> Solution:
    solution: Solution = model.chainstay.solution
    return solution


def loss_of(output: Any) -> torch.Tensor:
    loss: torch.Tensor = output["loss"] if isinstance(output, Mapping) else output.square().mean()
    return loss


SAMPLE = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))
LINK = Link(bandwidth=Fraction(2))
WAYS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any]]] = {
    "sequential": (sequential, {}, {"loss": loss_of, "budget": "60%"}),
    "graph": (Tower, {"scale": 2.0}, {"budget": "75%"}),
    "graph without loss": (Body, {}, {"budget": "75%"}),
    "coarse": (Tower, {}, {"granularity": 8, "budget": "85%"}),
    "blocks": (Tower, {}, {"by": "blocks", "budget": "75%"}),
    "offload": (
        Tower,
        {},
        {"offload": True, "recompute": False, "link": LINK, "budget": "75%"},
    ),
    "combined": (Tower, {}, {"offload": True, "link": LINK, "budget": "70%"}),
}


def made(kind: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return WAYS[kind][0]()


def trained(model: nn.Module, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Losses, gradients, buffers and random state of two steps."""
    return two_plain_steps(model, lambda: loss_of(model(SAMPLE, **kwargs)))


@pytest.fixture
def unmeasurable(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, nothing can be timed."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("something is measured")

    def forbid() -> None:
        for name in ("StageTimes", "TimedStage", "stage_times", "time_chain"):
            monkeypatch.setattr(clock, name, refused)

    return forbid


@pytest.mark.parametrize("kind", WAYS)
def test_a_saved_plan_trains_another_copy_bit_for_bit(
    kind: str, tmp_path: Path, unmeasurable: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, kwargs, settings = WAYS[kind]
    if kind == "combined":  # whether or not it is the fastest
        monkeypatch.setattr(Strategies, "best", "combined")
    first = fit(made(kind, 0), (SAMPLE,), kwargs, progress=False, **settings)
    save_plan(first, tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert plan.solution == solution_of(first)
    assert isinstance(plan.solution, HybridSolution) == (kind == "combined")
    assert plan.replay().peak_bytes <= plan.solution.peak_bytes <= plan.solution.budget
    is_again = len(plan.solution.schedule) > 2 * len(plan.stages)
    assert is_again or plan.choices, "there is something to do again"

    unmeasurable()
    expected = trained(made(kind, 1), kwargs)
    second = apply_plan(made(kind, 1), (SAMPLE,), kwargs, plan=tmp_path / "plan.json")
    assert solution_of(second) == plan.solution
    found = trained(second, kwargs)
    assert len(found) == len(expected)
    assert all(map(torch.equal, found, expected))
    save_plan(second, tmp_path / "again.json")
    assert load_plan(tmp_path / "again.json") == plan
    unfit(second)
    assert "forward" not in vars(second)


class Convolutions(nn.Module):
    """The first run of a stage needs other memory besides than its backward and further runs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GroupNorm(4, 16),
                nn.Conv2d(16, 48, 1), nn.GELU(), nn.Dropout(0.1), nn.Conv2d(48, 16, 1),
            )
            for _ in range(4)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.mean((2, 3))


def mean_square(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(images)
    return output.square().mean()


@pytest.mark.long
@pytest.mark.parametrize("budget", ["60%", "40%"])
def test_plans_that_fit_by_the_overheads_of_each_operation_are_files(
    budget: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the largest of each stage they would not, and would wait for memory for ever."""
    monkeypatch.setattr(Strategies, "best", "combined")
    images = torch.randn(4, 16, 24, 24)
    torch.manual_seed(0)
    plain = Convolutions()
    first = fit(copy.deepcopy(plain), (images,), budget=budget, offload=True, link=LINK)
    save_plan(first, tmp_path / "plan.json")
    plan = load_plan(tmp_path / "plan.json")
    assert isinstance(plan.solution, HybridSolution)
    timeline = build_timeline(plan.solution, plan.profile, overheads=plan.overheads)
    assert timeline is not None
    assert max(level.total for level in timeline.levels) <= plan.solution.peak_bytes
    second = apply_plan(copy.deepcopy(plain), (images,), plan=tmp_path / "plan.json")
    expected, *found = (
        two_plain_steps(model, partial(mean_square, model, images))
        for model in (plain, first, second)
    )
    assert all(map(torch.equal, found[0], expected))
    assert all(map(torch.equal, found[1], expected))


class Perceptron(nn.Module):
    """What is between its linear layers is cheap, and takes most of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(256, 256), nn.Linear(256, 256)
        self.noise = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(self.wide(x).sigmoid().tanh())
        total: torch.Tensor = self.narrow(self.noise(inner))
        return total


def perceptrons() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(*(Perceptron() for _ in range(4)))


@pytest.fixture(scope="module", params=["graph", "blocks"])
def path_with_options(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("plans") / "options.json"
    sample = (torch.randn(1024, 256),)
    by = request.param
    fitted = fit(perceptrons(), sample, budget="70%", loss=loss_of, by=by, progress=False)
    assert fitted.chainstay.kept_in_part  # type: ignore[union-attr]
    save_plan(fitted, path)
    return path


@pytest.mark.long
def test_a_plan_that_keeps_stages_in_part_trains_another_copy_bit_for_bit(
    path_with_options: Path,
) -> None:
    plan, sample = load_plan(path_with_options), torch.randn(1024, 256)
    used = {(op.stage, op.option) for op in plan.solution.schedule if op.option}
    assert used == {(choice.stage, choice.option) for choice in plan.choices}
    plain, planned = perceptrons(), apply_plan(perceptrons(), (sample,), plan=path_with_options)
    assert all(
        map(
            torch.equal,
            two_plain_steps(planned, lambda: loss_of(planned(sample))),
            two_plain_steps(plain, lambda: loss_of(plain(sample))),
        )
    )


def test_a_sample_that_is_no_tuple_is_refused() -> None:
    sample: Any = torch.randn(1024, 256)
    with pytest.raises(UnsupportedModelError, match=r"for one argument write \(x,\)"):
        apply_plan(perceptrons(), sample, plan="plan.json")


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"replayed": [999]}, "has no option"),
        ({"replayed": [-1]}, "has no option"),
        ({"redrawn": [0]}, "has no option"),
        ({"option": 99}, "has option 99 of stage"),
        ({"stage": -1}, "of stage -1"),
    ],
)
def test_an_option_that_a_stage_does_not_have_is_refused(
    path_with_options: Path, tmp_path: Path, changed: dict[str, Any], text: str
) -> None:
    document = json.loads(path_with_options.read_text())
    document["choices"][0].update(changed)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises((PlanMismatchError, InvalidPlanError), match=text):
        apply_plan(perceptrons(), (torch.randn(1024, 256),), plan=tmp_path / "plan.json")


def test_a_schedule_whose_options_are_not_in_the_file_is_refused(
    path_with_options: Path, tmp_path: Path
) -> None:
    document = json.loads(path_with_options.read_text())
    del document["choices"]
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(PlanMismatchError, match="this chain has no such option"):
        apply_plan(perceptrons(), (torch.randn(1024, 256),), plan=tmp_path / "plan.json")


@pytest.mark.long
def test_another_process_knows_the_plan_by_its_fingerprint(tmp_path: Path) -> None:
    """Addresses, hashes and the order of sets differ there."""
    save_plan(fit(made("graph", 0), (SAMPLE,), budget="75%", progress=False), tmp_path / "p.json")
    code = f"""
from test_plan_files import SAMPLE, apply_plan, made
print(apply_plan(made("graph", 5), (SAMPLE,), plan={str(tmp_path / "p.json")!r}).chainstay)
"""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert "Tower in " in result.stdout, result.stderr


@pytest.fixture(scope="module")
def plan_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(fit(made("graph", 0), (SAMPLE,), budget="75%", progress=False), path)
    return path


def switched(model: nn.Module) -> None:
    model.blocks[2].body[2].eval()  # type: ignore[index, union-attr]


def frozen(model: nn.Module) -> None:
    model.first.weight.requires_grad = False  # type: ignore[union-attr]


def tied(model: nn.Module) -> None:
    model.blocks[1].body[0].weight = model.blocks[0].body[0].weight  # type: ignore[index, union-attr]


def another_class(model: nn.Module) -> None:
    model.blocks[0].body[1] = nn.ReLU()  # type: ignore[index, union-attr]


def another_setting(model: nn.Module) -> None:
    model.blocks[0].body[2].p = 0.0  # type: ignore[index, union-attr]


def wider(model: nn.Module) -> None:
    model.last = nn.Linear(WIDTH, 4)


def without_statistics(model: nn.Module) -> None:
    model.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)


def doubled(model: nn.Module) -> None:
    model.double()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (switched, "mode of blocks.2.body.2: is evaluation, the plan has none"),
        (nn.Module.eval, "mode of the model itself: is evaluation, in the plan training"),
        (frozen, r"parameter first.weight: is \(24, 24\) .*cpu, in the plan .*, trained"),
        (tied, "parameter blocks.1.body.0.weight: is the same as blocks.0.body.0.weight"),
        (another_class, r"module blocks.0.body.1: is .*ReLU\(\), in the plan .*GELU"),
        (another_setting, r"module blocks.0.body.2: is .*p=0.0.*, in the plan .*p=0.2"),
        (wider, r"parameter last.weight: is \(4, 24\) .*, in the plan \(3, 24\)"),
        (without_statistics, "buffer norm.running_mean: is not there, in the plan it is"),
        (doubled, r"parameter first.weight: is \(24, 24\) torch.float64"),
    ],
)
def test_another_model_is_refused_naming_what_differs(
    plan_path: Path, change: Callable[[nn.Module], None], message: str
) -> None:
    model = made("graph", 0)
    change(model)
    sample = SAMPLE.double() if change is doubled else SAMPLE
    with pytest.raises(PlanMismatchError, match=message) as caught:
        apply_plan(model, (sample,), plan=plan_path)
    assert caught.value.differences
    assert not hasattr(model, "chainstay")
    assert "forward" not in vars(model)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((SAMPLE[:8],), {}, r"argument args\[0\]: is \(8, 24\) .*, in the plan \(16, 24\)"),
        (
            (SAMPLE.clone().requires_grad_(),),
            {},
            r"args\[0\]: is .* wanting a gradient, in",
        ),
        ((SAMPLE,), {"scale": 3.0}, r"argument kwargs\['scale'\]: is 3.0, the plan has none"),
    ],
)
def test_another_call_is_refused_naming_what_differs(
    plan_path: Path, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanMismatchError, match=message):
        apply_plan(made("graph", 0), args, kwargs, plan=plan_path)


def test_another_setting_is_refused_naming_what_differs(plan_path: Path) -> None:
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(PlanMismatchError, match=r"autocast: is autocast to torch.bfloat16 with its"),
    ):
        apply_plan(made("graph", 0), (SAMPLE,), plan=plan_path)
    document = json.loads(plan_path.read_text())
    document["fingerprint"]["setting"]["torch"] = "1.0"
    elsewhere = plan_path.with_name("elsewhere.json")
    elsewhere.write_text(json.dumps(document))
    with pytest.raises(PlanMismatchError, match=r"torch: is 2\..*, in the plan 1\.0"):
        apply_plan(made("graph", 0), (SAMPLE,), plan=elsewhere)


def test_the_same_modules_doing_something_else_are_refused(plan_path: Path) -> None:
    class Other(Tower):
        def forward(self, sample: torch.Tensor, *, scale: float = 1.0) -> dict[str, torch.Tensor]:
            return super().forward(sample.tanh(), scale=scale)

    Other.__qualname__, Other.__module__ = Tower.__qualname__, Tower.__module__
    with pytest.raises(PlanMismatchError, match=r"stage 0 \(first"):
        apply_plan(Other(), (SAMPLE,), plan=plan_path)


@pytest.mark.long
def test_a_model_that_cannot_be_cut_like_the_plans_is_told_what_differs(tmp_path: Path) -> None:
    settings = WAYS["sequential"][2]
    save_plan(fit(sequential(), (SAMPLE,), progress=False, **settings), tmp_path / "plan.json")
    with pytest.raises(PlanMismatchError, match=r"module the model itself: is Tower\(\), in the"):
        apply_plan(Tower(), (SAMPLE,), plan=tmp_path / "plan.json")


def test_a_new_shape_is_refused_or_runs_plainly(plan_path: Path) -> None:
    refusing = apply_plan(made("graph", 0), (SAMPLE,), plan=plan_path)
    with pytest.raises(PlanMismatchError, match=r"no plan of .* a call with \(8, 24\)"):
        refusing(SAMPLE[:8])
    plain = apply_plan(
        made("graph", 0), (SAMPLE,), plan=load_plan(plan_path), on_new_shape="run plainly"
    )
    plain(SAMPLE[:8])["loss"].backward()
    with pytest.raises(ValueError, match="on_new_shape is 'plan', must be 'refuse' or 'run pl"):
        apply_plan(made("graph", 0), (SAMPLE,), plan=plan_path, on_new_shape="plan")  # type: ignore[arg-type]


def test_what_is_no_plan_of_a_model_is_refused(plan_path: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"this Tower is not fitted; call chainstay.fit"
    ):
        save_plan(Tower(), tmp_path / "plan.json")
    with pytest.raises(InvalidPlanError, match="No such file"):
        apply_plan(Tower(), (SAMPLE,), plan=tmp_path / "plan.json")
    document = json.loads(plan_path.read_text())
    document["fingerprint"] = {}
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document))
    with pytest.raises(PlanMismatchError, match="for a profile and not for a model"):
        apply_plan(Tower(), (SAMPLE,), plan=bare)


def test_a_plan_takes_the_place_of_the_one_before(plan_path: Path) -> None:
    model: Any = fit(made("graph", 0), (SAMPLE,), progress=False, **WAYS["offload"][2])
    first = model.chainstay
    assert apply_plan(model, (SAMPLE,), plan=plan_path) is model
    assert model.chainstay is not first
    assert model.chainstay.solution == load_plan(plan_path).solution
    with pytest.raises(PlanMismatchError, match="this plan was closed"):
        loss_of(first(model, (SAMPLE,), {})).backward()
    unfit(model)
    assert "forward" not in vars(model)


def test_where_there_is_no_plan_yet_none_is_saved(tmp_path: Path) -> None:
    fitted = fit(Tower(), budget="75%", progress=False)
    with pytest.raises(PlanMismatchError, match="has no plan yet; it is planned by its first"):
        save_plan(fitted, tmp_path / "plan.json")
    assert not (tmp_path / "plan.json").exists()


def test_the_public_names_are_these() -> None:
    for name in ("Plan", "apply_plan", "load_plan", "save_plan", "InvalidPlanError"):
        assert name in chainstay.__all__
        assert getattr(chainstay, name) is not None
