"""Calls of other sizes: smaller ones are planned by the costs of a larger one, none is refused."""

from __future__ import annotations

import copy
import gc
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.fitting import blocks, planner, solved_plans
from chainstay.runtime.capture import dynamo, tracing
from chainstay.runtime.measures.measured import measure_subject
from chainstay.runtime.measures.rehearsal import Rehearsal, rehearse_graph
from chainstay.runtime.stage.staged_graph import PlannedGraph
from models import Perceptron
from option_families import FAMILIES, Language
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from twins import peak_of
from zoo import loss_of

pytestmark = pytest.mark.usefixtures("equal_times")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Gets an item whenever a graph is measured."""
    found: list[object] = []

    def noted(subject: Any, *args: Any, **kwargs: Any) -> object:
        found.append(subject)
        return measure_subject(subject, *args, **kwargs)

    monkeypatch.setattr(solved_plans, "measure_subject", noted)
    return found


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_smaller_calls_are_not_measured_and_train_equally_within_the_budget(
    family: str, measured: list[object]
) -> None:
    make, largest = FAMILIES[family]
    torch.manual_seed(0)
    plain = make().train()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (largest,), budget="60%", loss=loss_of, repeats=1)
    budget = shown(planned).solution.budget
    assert isinstance(budget, int)
    is_join = not measured
    for rows in (len(largest) - 1, len(largest) // 2):
        smaller = largest[:rows].clone()
        if smaller.dim() == 2:
            smaller = smaller[:, : 2 * smaller.shape[1] // 3].clone()
        sample = Sample((smaller,))
        planned.load_state_dict(plain.state_dict())  # its peak was measured by steps
        assert differences(trained(planned, sample), trained(plain, sample)) == []
        promised = shown(planned).solution.peak_bytes
        assert peak_of(planned, smaller) + smaller.nbytes <= promised <= budget
        assert "in proportion" in shown(planned).latest.planned.origin
    assert len(measured) == 1 or is_join


@pytest.fixture(scope="module")
def language() -> tuple[nn.Module, torch.Tensor]:
    """A model that is planned for long sentences, and such."""
    torch.manual_seed(0)
    model, tokens = Language(dropout=0.1).train(), torch.randint(32, (4, 96))
    chainstay.fit(model, (tokens,), budget="55%", repeats=1)
    return model, tokens


@pytest.mark.long
def test_options_serve_smaller_calls(language: tuple[nn.Module, torch.Tensor]) -> None:
    model, tokens = language
    assert keeps_in_part(model)
    sample = Sample((tokens[:, :90],))
    plain = chainstay.unfit(copy.deepcopy(model))
    assert differences(trained(model, sample), trained(plain, sample)) == []
    assert "those for (4, 96)" in str(model.chainstay)
    assert keeps_in_part(model)


def test_a_prediction_that_is_too_low_is_corrected(
    language: tuple[nn.Module, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = language
    found: list[int] = []

    def more_at_first(planned: Any, *args: Any) -> Rehearsal:
        rehearsal = rehearse_graph(planned, *args)
        found.append(rehearsal.peak_bytes)
        told = rehearsal.peak_bytes if found[1:] else planned.solution.peak_bytes + 10_000
        return replace(rehearsal, peak_bytes=told)

    monkeypatch.setattr(solved_plans, "rehearse_graph", more_at_first)
    shorter = tokens[:, :93]
    model(shorter)
    promised = shown(model).solution.peak_bytes
    assert len(found) > 1
    assert "in proportion" in str(model.chainstay)
    assert peak_of(model, shorter) + shorter.nbytes <= promised


@pytest.mark.long
def test_a_larger_call_is_measured_and_lends_to_those_below_it(measured: list[object]) -> None:
    torch.manual_seed(0)
    model = Language().train()
    for length, count in ((48, 1), (64, 2), (56, 2), (40, 2), (64, 2), (80, 3), (72, 3)):
        chainstay.fit(model, budget=1_800_000, repeats=1) if length == 48 else None
        loss_of(model(torch.randint(32, (4, length)))).backward()
        assert len(measured) == count
    assert "those for (4, 80)" in str(model.chainstay)
    assert recomputes(model)


@pytest.mark.long
def test_a_smaller_call_that_fits_nowhere_is_refused_by_what_it_needs_itself() -> None:
    torch.manual_seed(0)
    model = Language().train()
    tokens = torch.randint(32, (4, 64))
    chainstay.fit(model, (tokens,), budget="100%", repeats=1)
    shown(model).planner.maker.budget_bytes = 1000  # type: ignore[misc]  # as if given in bytes
    with pytest.raises(chainstay.InfeasibleBudgetError, match="least feasible budget") as refusal:
        model(tokens[:, :32])
    assert refusal.value.required > 1000


@pytest.mark.long
def test_any_number_of_shapes_is_planned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """TorchDynamo's limit is on graphs for tensors of the same sizes."""
    settings = {**tracing._SETTINGS, "cache_size_limit": 3}  # or it takes hundreds
    monkeypatch.setattr(tracing, "_SETTINGS", settings)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    chainstay.fit(model, budget="100%", repeats=1, by="graph")
    for rows in range(40, 0, -1):
        x = torch.randn(rows, 4)
        assert torch.equal(model(x), chainstay.unfit(copy.deepcopy(model))(x))
    assert len(shown(model).plans) == 40
    told = capsys.readouterr().err
    assert told.count("32 plans are kept") == 1


@pytest.mark.parametrize("budgets", [("70%",), ("70%", "60%")])
def test_smaller_calls_are_planned_where_the_loss_holds_targets(budgets: tuple[str, ...]) -> None:
    """Those of the first batch; a model that is fitted again has what the loss cost there."""
    x, targets = torch.randn(32, 16), torch.randn(32, 16)
    layers = [(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(6)]
    model = nn.Sequential(*(module for layer in layers for module in layer))
    plain = copy.deepcopy(model)

    def loss(output: torch.Tensor) -> torch.Tensor:
        return (output - targets).square().mean()

    for budget in budgets:
        chainstay.fit(model, (x,), budget=budget, loss=loss, repeats=1, progress=False)
    for one in (plain, model):
        one(x[:16]).sum().backward()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=0)


@pytest.mark.long
def test_the_oldest_plans_by_blocks_are_let_go(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (blocks, planner):
        monkeypatch.setattr(module, "MOST_SHAPES", 3)
    model = nn.Sequential(*(Perceptron(16, 0.1) for _ in range(3)))
    chainstay.fit(model, budget="100%", repeats=1, by="blocks")
    for rows in (8, 7, 6, 5, 8, 5):
        model(torch.randn(rows, 16)).sum().backward()
    told = capsys.readouterr().err
    assert [told.count(f"planned for ({rows}, 16)") for rows in (8, 7, 6, 5)] == [2, 1, 1, 1]
    assert len(shown(model).plans) == 3


@pytest.mark.long
def test_the_oldest_plans_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (dynamo, planner):
        monkeypatch.setattr(module, "MOST_SHAPES", 3)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    plain = copy.deepcopy(model)
    chainstay.fit(model, budget="100%", repeats=1, by="graph", progress=False)
    made = []
    for rows in (*range(8, 0, -1), 8, 2):
        x = torch.randn(rows, 4)
        assert torch.equal(model(x), plain(x))
        planned = shown(model).latest.planned
        assert isinstance(planned, PlannedGraph)
        made.append(weakref.ref(planned.graph.stages[0].body))
    del planned
    gc.collect()  # the first was measured, and serves smaller ones
    assert [noted() is not None for noted in made] == [True] + [False] * 5 + [True] * 4
    assert len(shown(model).plans) == 3
