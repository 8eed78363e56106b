"""Calls that nobody has announced: what becomes of the budget, and what people are told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import InfeasibleBudgetError, PlanMismatchError, UnsupportedModelError
from chainstay.runtime.measures import option_costs
from chainstay.runtime.options.graph import StageGraph
from chainstay.runtime.options.option import Option, stage_options
from twins import (
    SAMPLE,
    Call,
    Stack,
    backward_step,
    batch,
    fit_to_least,
    fitted_twins,
    peak_of,
    recomputes,
    require_equal_steps,
    require_refused,
    seed,
    shown,
)
from zoo import loss_of

X = SAMPLE.args[0]


class Wide(Stack):
    """Has something to recompute."""

    def __init__(self) -> None:
        super().__init__(wide_layer)


def wide_layer() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))


def fit(model: nn.Module, **settings: Any) -> nn.Module:
    return chainstay.fit(model, **{"loss": loss_of, "repeats": 1, "method": "dp", **settings})


def epoch(model: nn.Module, sizes: tuple[int, ...] = (64, 64, 40)) -> torch.Tensor:
    """The last batch is smaller."""
    losses = []
    for size in sizes:
        losses.append(loss_of(model(batch(size, 16))))
        losses[-1].backward()
    return torch.stack(losses).detach()


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_epochs_with_a_smaller_last_batch(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A share is one of what the first call needs, once and for all; each shape is told once."""
    plain, model = fitted_twins(Wide, SAMPLE, budget="60%", by=by)
    fit(chainstay.unfit(model), budget="60%", by=by)
    capsys.readouterr()
    require_equal_steps(plain, model, lambda module, _: epoch(module))
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in told] == ["chainstay"] * 4
    size = r"[\d.]+ KiB"
    speed = r"(as fast as plain|[\d.]+% slower than plain)"
    expected = [
        r"chainstay: planning for \(64, 16\) \.\.\.",
        rf"chainstay: planned for \(64, 16\): {size} of ({size}), {speed}",
        r"chainstay: planning for a new shape \(40, 16\) \.\.\.",
        rf"chainstay: planned for \(40, 16\): {size} of ({size}), {speed}",
    ]
    matches = [re.fullmatch(*pair) for pair in zip(expected, told, strict=True)]
    assert all(matches), told
    budgets = {match[1] for match in matches if match is not None and match.re.groups == 2}
    assert len(budgets) == 1, "the share has become other bytes"
    assert len(shown(model).plans) == 2
    budget = shown(model).plans[0].solution.budget
    assert peak_of(model, X) + X.nbytes <= budget < peak_of(plain, X) + X.nbytes


class Mixing(nn.Module):
    """A convolution on channels that lie last, and a linear layer that reads them so."""

    def __init__(self) -> None:
        super().__init__()
        self.across = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.along = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.along(self.across(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ChannelsLast(nn.Module):
    """Which kernels run where channels lie last is told by the strides, that of the batch too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.Sequential(*(Mixing() for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(self.first(x).permute(0, 3, 1, 2))


@pytest.mark.long
@pytest.mark.parametrize("stage_options", [False, True])
def test_a_last_batch_of_one_runs_again_by_the_same_kernels(*, stage_options: bool) -> None:
    two, one = Call((batch(2, 12, 12, 8),)), Call((batch(1, 12, 12, 8),))
    plain, model = fitted_twins(ChannelsLast, two, budget="60%", stage_options=stage_options)
    require_equal_steps(
        plain, model, lambda module, at: backward_step((two, one)[at])(module, at), 2
    )
    fit_to_least(chainstay.unfit(model), one, stage_options=stage_options)
    require_equal_steps(plain, model, backward_step(one))
    assert recomputes(model)


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_larger_batch_that_does_not_fit_is_refused_by_its_shape(by: str) -> None:
    model = fit_to_least(Wide(), SAMPLE, by=by)
    for _ in range(2):
        with pytest.raises(InfeasibleBudgetError, match=r"^for a call with \(256, 16\): no ") as no:
            model(batch(256, 16))
    fit(model, budget=no.value.required, by=by, progress=False)
    loss_of(model(batch(256, 16))).backward()
    assert recomputes(model)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_new_shapes_refused(by: str) -> None:
    plain, model = fitted_twins(Wide, SAMPLE, budget="60%", on_new_shape="refuse", by=by)
    random.seed(1)
    state = random.getstate()
    with pytest.raises(
        PlanMismatchError,
        match=r"no plan of this Wide is for a call with \(40, 16\); call it like the sample, fit "
        r"with on_new_shape='plan', or run it under torch\.no_grad\(\)",
    ):
        model(batch(40, 16))
    assert random.getstate() == state
    with torch.no_grad():
        assert torch.equal(model(batch(40, 16)), plain(batch(40, 16)))
    require_equal_steps(plain, model, lambda module, _: epoch(module, (64, 64)))


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_new_shapes_run_plainly(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    plain, model = fitted_twins(Wide, SAMPLE, budget="60%", on_new_shape="run plainly", by=by)
    require_equal_steps(plain, model, lambda module, _: epoch(module))
    assert len(shown(model).plans) == 1
    assert peak_of(model, batch(256, 16)) == peak_of(plain, batch(256, 16))
    assert capsys.readouterr().err == ""


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_fit_again_with_another_budget(by: str) -> None:
    plain, model = fitted_twins(Wide, SAMPLE, budget="100%", by=by)
    step = lambda module, _: epoch(module, (64, 40))  # noqa: E731  # three times
    require_equal_steps(plain, model, step, 1)
    assert not recomputes(model)
    fit_to_least(model, SAMPLE, by=by)
    require_equal_steps(plain, model, lambda module, _: epoch(module, (64, 40)), 1)
    assert recomputes(model)
    assert peak_of(model, X) + X.nbytes <= shown(model).plans[0].solution.budget
    fit(model, sample_args=SAMPLE.args, budget="100%", by=by, progress=False)
    require_equal_steps(plain, model, step, 1)
    assert not recomputes(model)


def test_a_graph_that_differs_in_numbers_needs_no_plan(capsys: pytest.CaptureFixture[str]) -> None:
    class Scaled(Wide):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = nn.functional.dropout(super().forward(x), self.scale, training=True)
            return y

    model = fit(Scaled(), budget="60%")
    for scale in (0.1, 0.2, 0.3):
        model.scale = scale  # type: ignore[assignment]
        loss_of(SAMPLE(model)).backward()
    assert len(shown(model).plans) == 1
    told = capsys.readouterr().err
    assert (told.count("planning for"), told.count("planned for")) == (1, 1)


@pytest.mark.long
def test_what_losses_in_a_list_hold_of_the_graph_is_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody goes back through these; a budget that is named as enough is enough for them, too."""
    losses: list[torch.Tensor] = []

    class Auxiliary(Stack):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = torch.tanh(layer(x))
                losses.append(x.square().mean())
            return x

    with pytest.raises(InfeasibleBudgetError) as refusal:
        fit(Auxiliary(), sample_args=SAMPLE.args, budget=1, progress=False)
    required = refusal.value.required
    tight = required - X.nbytes
    with pytest.raises(InfeasibleBudgetError) as second:
        fit(Auxiliary(), sample_args=SAMPLE.args, budget=tight)
    assert second.value.budget == tight < second.value.required
    assert "planning again" not in capsys.readouterr().err, "no plan was tried that needs more"
    for budget in (required, "95%", "100%"):
        model = fit(Auxiliary(), sample_args=SAMPLE.args, budget=budget)
        told = capsys.readouterr().err.splitlines()
        assert [line.partition(" for ")[0] for line in told] == [
            "chainstay: planning",
            "chainstay: planned",
        ]
        assert not losses
        predicted = shown(model).solution.peak_bytes
        measured = peak_of(model, X) + X.nbytes
        assert measured <= predicted <= 1.1 * measured
        losses.clear()


@pytest.mark.parametrize("share", ["60%", 0.6])
def test_without_a_sample_the_first_call_plans(share: object) -> None:
    model, other = Wide(), Wide()
    fit(model, budget=share, progress=False)
    assert "not planned yet: its first training call does that" in str(shown(model))
    with torch.no_grad():
        SAMPLE(model)
    assert not shown(model).plans
    loss_of(SAMPLE(model)).backward()
    fit(other, sample_args=SAMPLE.args, budget=share, progress=False)
    budgets = [shown(module).plans[0].solution.budget for module in (model, other)]
    assert budgets[0] == budgets[1]


def test_half_of_the_calls_have_another_keyword() -> None:
    """Shapes alone do not tell calls apart."""

    class Masked(Wide):
        def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
            y: torch.Tensor = super().forward(x if mask is None else x * mask)
            return y

    def step(model: nn.Module, number: int) -> torch.Tensor:
        loss = loss_of(model(X) if number % 2 else model(X, mask=torch.ones(16)))
        loss.backward()
        return loss

    plain, model = fitted_twins(Masked, Call((X,)), budget="70%")
    require_equal_steps(plain, model, step, 4)
    assert len(shown(model).plans) == 2


def appended(model: Wide) -> None:
    model.layers.extend(wide_layer() for _ in range(2))


def replaced(model: Wide) -> None:
    for position in range(len(model.layers)):
        model.layers[position] = wide_layer()


def deleted(model: Wide) -> None:
    del model.layers[1]


def another_list(model: Wide) -> None:
    model.layers = nn.ModuleList(wide_layer() for _ in range(4))


@pytest.mark.parametrize("edit", [appended, replaced, deleted, another_list])
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_blocks_that_come_and_go(by: str, edit: Callable[[Any], None]) -> None:
    """The first call afterwards is planned anew: new blocks never run without a plan."""
    plain, model = fitted_twins(Wide, SAMPLE, budget="70%", by=by)
    model(X)
    for module in (plain, model):
        seed(1)
        edit(module)
    require_equal_steps(plain, model, lambda module, _: epoch(module, (64,)), steps=2)
    assert peak_of(model, X) <= shown(model).solution.peak_bytes < peak_of(plain, X)


@pytest.mark.long
def test_blocks_that_do_not_fit_are_refused_again_and_again() -> None:
    """The old plan does not come back for the second call."""
    model = Wide()
    fit_to_least(model, SAMPLE, by="blocks")
    model(X)
    model.layers.append(nn.Sequential(nn.Linear(16, 512), nn.GELU(), nn.Linear(512, 16)))
    for _ in range(2):
        with pytest.raises(InfeasibleBudgetError):
            model(X)


@pytest.mark.parametrize("is_block", [True, False])
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_class_that_is_another_later(by: str, *, is_block: bool) -> None:
    """As libraries do that exchange forwards; evaluation goes by the new one, too."""
    plain, model = fitted_twins(Wide, SAMPLE, budget="70%", by=by)
    model(X)
    for module in (plain, model):
        changed: Any = module.layers[1] if is_block else module  # type: ignore[index]  # a ModuleList
        forward = type(changed).forward
        body = {"forward": lambda self, x, forward=forward: 2 * forward(self, x)}
        changed.__class__ = type("Doubled", (type(changed),), body)
    with torch.no_grad():
        assert torch.equal(plain(X), model(X))
    require_equal_steps(plain, model, lambda module, _: epoch(module, (64,)), steps=2)


class Nesting(Stack):
    """Puts rows of several lengths together."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.nested_tensor([x[:3], x[3:8]], layout=torch.jagged)
        output = super().forward(rows)
        return torch.stack([row.mean(0) for row in output.unbind()])


@pytest.mark.parametrize("by", ["auto", "blocks"])
def test_nested_tensors_inside(by: str) -> None:
    require_refused(Nesting, SAMPLE, "nested tensor", step=backward_step(SAMPLE), by=by)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_as_arguments(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([X[:3], X[3:8]], layout=layout)
    model = chainstay.fit(Stack(), budget="80%", progress=False)
    with pytest.raises(UnsupportedModelError, match="Stack is called with a nested tensor"):
        model(nested)
    with torch.no_grad():
        assert model(nested).is_nested


class Heads(Wide):
    """Each call goes through one of several heads, of two layers each."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(16, width), nn.Linear(width, 16)) for width in widths
        )
        self.task = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.heads[self.task](x)


@pytest.mark.parametrize(("widths", "kinds"), [((32,) * 4, 1), ((32, 48, 64, 32), 3)])
def test_heads_that_the_sample_left_out_are_told_and_planned_once_each(
    widths: tuple[int, ...], kinds: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However often calls go to and fro between them."""

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        model.task = (0, 1, 2, 3, 1, 1, 2, 2, 0, 0, 3, 2, 1, 0, 1, 2)[number]  # type: ignore[assignment]
        return backward_step(SAMPLE)(model, number)

    plain, model = fitted_twins(
        lambda: Heads(widths), SAMPLE, budget="100%", by="blocks", progress=True
    )
    capsys.readouterr()
    require_equal_steps(plain, model, step, 16)
    told = capsys.readouterr().err
    assert told.count("blocks that its plan does not have") <= kinds
    assert told.count("planned for") == len(shown(model).plans) - 1 < kinds
    assert kinds == 1 or told.count("its plan does not have") == kinds


@pytest.mark.usefixtures("equal_times")
def test_options_of_stages_that_were_measured_are_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a graph, another head is another plan; the layers in front of it are as before."""
    looks: list[str] = []

    def look(graph: StageGraph, *args: Any, **kwargs: Any) -> list[Option]:
        looks.append(graph.stage.name)
        return stage_options(graph, *args, **kwargs)

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        model.task = number  # type: ignore[assignment]
        return backward_step(SAMPLE)(model, number)

    monkeypatch.setattr(option_costs, "stage_options", look)
    plain, model = fitted_twins(lambda: Heads((32, 48, 64)), SAMPLE, budget="85%", by="graph")
    first = len(looks)
    require_equal_steps(plain, model, step, 3)
    assert len(shown(model).plans) == 3
    assert all(any(op.option for op in plan.solution.schedule) for plan in shown(model).plans)
    assert first > 1
    assert all("heads" in name for name in looks[first:]), looks


@pytest.mark.long
def test_a_refusal_of_another_kind_of_call_with_known_shapes_says_so() -> None:
    layers = (nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6))
    model = nn.Sequential(*layers, nn.Linear(64, 1))
    model[:6].requires_grad_(requires_grad=False)
    x = torch.randn(256, 64)
    chainstay.fit(model, (x,), budget="100%", progress=False)
    model.requires_grad_()
    text = (
        r"for a call with \(256, 64\), but as something else that its forward reads now is \(train"
    )
    with pytest.raises(InfeasibleBudgetError, match=text):
        model(x)
    with pytest.raises(InfeasibleBudgetError, match=r"for a call with \(512, 64\): no known sch"):
        model(torch.randn(512, 64))
