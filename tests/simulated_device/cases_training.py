"""Fitted models train as plain ones: equal bits, within the budget, and the host never waits."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from simulated_device.networks import NETWORKS, Case, build, chain_of, differences, record, step
from simulated_device.place import KIND, first
from simulated_device.sim import Extension
from torch import nn

import chainstay
from chainstay.runtime import PlannedChain, measure, trace_memory
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.options import generator
from chainstay.runtime.options.generator import groups_of
from chainstay.runtime.options.option import OptionPart, option_of
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.transfer import PlannedTransfers, engine_for
from chainstay.validation.simulate import simulate
from combined_support import kept_in_part, least_plan_in_part
from runtime_support import some_schedules
from stage_options_support import TwoReaders, traced

MEANS: Final[dict[str, dict[str, Any]]] = {
    "recompute": {"offload": False, "stage_options": False},
    "options": {"offload": False},
    "offload": {"offload": True, "recompute": False},
    "hybrid": {"offload": True},
    "by blocks": {"offload": False, "by": "blocks"},
}
LINK: Final = chainstay.Link(bandwidth=1, latency=10_000)
"""Bytes per ns; as slow as that, plans for small networks have something to decide."""


def fit(case: Case, share: float, **means: Any) -> None:
    """Fit to a share of plain training, or to the least budget that there is."""
    if means.get("offload"):
        means["link"] = LINK
    options = {"loss": case.loss, "repeats": 1, "progress": False, **means}
    try:
        chainstay.fit(case.model, (case.batch,), budget=share, **options)
    except chainstay.InfeasibleBudgetError as error:
        chainstay.fit(case.model, (case.batch,), budget=error.required, **options)


@pytest.mark.parametrize(
    ("network", "means"),
    [
        (network, means)
        for network in NETWORKS
        for means in MEANS
        if network == "blocks" or means != "by blocks"
    ],
)
def test_a_fitted_model_trains_as_a_plain_one(network: str, means: str, device: Extension) -> None:
    case = build(network)
    expected = record(case)
    assert differences(record(case), expected) == [], "plain training repeats itself"
    granularity = "blocks" if network == "ResNet-50" else "fine"  # else solving takes a minute
    fit(case, 0.6, granularity=granularity, **MEANS[means])
    for link, kernel_us in ((0.0, 0.0), (2e7, 0.0), (0.0, 50.0)):
        device.set_link(link)
        device.set_kernel_us(kernel_us)
        assert differences(record(case, steps=2), expected) == [], (link, kernel_us)
    device.set_kernel_us(0.0)
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(2):
        step(case)
    torch.accelerator.synchronize()
    device.host_waits()
    step(case)
    assert device.host_waits() == {}
    trace = trace_memory(lambda: step(case), case.batch.device)
    solution: chainstay.Solution = case.model.chainstay.solution  # type: ignore[union-attr,assignment]
    assert trace.peak_bytes + case.batch.nbytes <= solution.budget


@pytest.mark.parametrize("schedule", ["5 segments", "random 0", "drop everything", "inputs gone"])
@pytest.mark.parametrize("network", ["GPT-2", "ResNet-50"])
def test_a_schedule_of_any_form_trains_as_plainly(network: str, schedule: str) -> None:
    case = build(network)
    expected = record(case)
    measured = measure(chain_of(case), case.batch, loss=case.loss, repeats=1, progress=False)
    ops = some_schedules(len(measured.profile))[schedule]
    planned = measured.planned(ops)
    assert differences(record(case, planned), expected) == []
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step(case, planned)
    trace = trace_memory(lambda: step(case, planned), case.batch.device)
    predicted = simulate(measured.profile, ops, discards="free").peak_bytes
    assert trace.peak_bytes + case.batch.nbytes <= predicted


@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_in_part_is_away_too(seed: int, device: Extension) -> None:
    """What replays start from comes back from the host before them."""
    case = build("GPT-2")
    expected = record(case)
    measured = measure(chain_of(case), case.batch, loss=case.loss, repeats=1, progress=False)
    schedule = kept_in_part(measured, seed)
    assert any(op.option for op in schedule)
    budget, plan = least_plan_in_part(measured, schedule)
    engine = engine_for(case.batch.device)
    planned = PlannedChain(measured, schedule, PlannedTransfers(schedule, plan, engine))
    for link in (0.0, 1e6):
        device.set_link(link)
        assert differences(record(case, planned), expected) == [], link
    assert device.races() == []
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step(case, planned)
    trace = trace_memory(lambda: step(case, planned), case.batch.device)
    assert trace.peak_bytes + case.batch.nbytes <= budget
    planned.close()


def test_replays_that_hand_on_what_others_read_are_ordered(
    monkeypatch: pytest.MonkeyPatch, device: Extension
) -> None:
    """On a device that is late."""
    monkeypatch.setattr(generator, "_LEAST_SPARED", 1)
    torch.manual_seed(0)
    x = torch.randn(64, 64).to(first()).requires_grad_()
    _, _, ((graph, given),) = traced(TwoReaders(rows=512).to(first()), x)
    assert graph is not None
    names = ("linear", "getitem", "tanh", "exp")
    again = frozenset(n for n, step in enumerate(graph.steps) if step.name in names)
    choice = Selection(kept_bytes=0, replay_time=0, replayed=again)
    assert len(groups_of(graph, choice)) == 2
    device.set_kernel_us(50.0)
    leaves = [x, *(leaf for leaf in given[1] if isinstance(leaf, nn.Parameter))]
    with measuring(first()):
        part = OptionPart(option_of(graph, choice))
        outcomes = []
        for run in (graph.stage, part, part):
            with torch.enable_grad():
                (output,) = run((x,), given[1])
            outcomes.append(torch.autograd.grad(output.sum(), leaves))
    assert all(
        torch.equal(*pair) for end in outcomes for pair in zip(end, outcomes[0], strict=True)
    )


@pytest.mark.parametrize("share", ["100%", "60%"])
def test_a_peak_under_autocast_is_the_predicted_one(share: str) -> None:
    """Copies stand through the step, of the weights that autocast casts: not of an embedding's."""
    case = build("GPT-2")

    def one_step() -> None:
        with torch.autocast(KIND, torch.bfloat16):
            step(case, planned)

    with torch.autocast(KIND, torch.bfloat16):
        measured = measure(chain_of(case), case.batch, loss=case.loss, repeats=1, progress=False)
    solution = chainstay.solve_measured(measured, share, method="dp")
    planned = measured.planned(solution)
    for parameter in case.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    one_step()
    trace = trace_memory(one_step, case.batch.device)
    scalars = 16
    needed = trace.peak_bytes + case.batch.nbytes
    assert needed - scalars <= solution.peak_bytes <= needed + scalars


@pytest.mark.parametrize("share", [0.9, 0.8])
def test_under_autocast_the_first_plan_is_within_the_budget(
    share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gradients of weights and of their copies are there beside what is kept, or kept in part."""
    case = build("U-Net")
    with torch.autocast(KIND, torch.bfloat16):
        chainstay.fit(
            case.model,
            (case.batch,),
            budget=share,
            loss=case.loss,
            offload=False,
            method="dp",
            repeats=1,
            progress=True,
        )
    said = capsys.readouterr().err
    assert "planned for" in said
    assert "were predicted" not in said
