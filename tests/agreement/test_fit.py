"""Fitted models train bit for bit as plain ones do, within the peak that was promised."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import InfeasibleBudgetError
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.solution import Solution
from chainstay.validation.simulate import simulate
from measured_models import measured_sample
from runtime_support import random_free, random_persistent
from sgd_steps import differences, peak_of_step, three_steps
from training_conditions import shown
from zoo import FAMILIES, Sample, build, loss_of


def peak(sample: Sample) -> int:
    """Of a whole step as the sample's model is now, inputs included."""

    def step() -> None:
        output = sample()  # held until the step ends, as in most training loops
        loss_of(output).backward()

    return peak_of_step(sample.model, step, (sample.args, sample.kwargs))


def steps_of(
    sample: Sample, initial: dict[str, torch.Tensor], seed: int = 7
) -> dict[str, torch.Tensor]:
    return three_steps(sample.model, lambda: loss_of(sample()), initial, seed)


def perceptron() -> Sample:
    """A plain chain, which `fit` cuts between its own stages."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1)) for _ in range(6))
    return Sample(nn.Sequential(*layers).train(), (torch.randn(32, 64),))


def fitted_at(sample: Sample, budget: int | str) -> Solution:
    """`fit` the sample's model, as users do; what the plan before it measured is not measured."""
    chainstay.fit(sample.model, sample.args, sample.kwargs, budget=budget, loss=loss_of, repeats=1)
    return shown(sample.model).solution


def budgets_of(sample: Sample) -> list[int]:
    """Plain training's, 70 % and 40 % of it, the least; where a share is too little, less of it."""
    plain = fitted_at(sample, "100%").budget
    with pytest.raises(InfeasibleBudgetError) as error:
        fitted_at(sample, 1)
    least = error.value.required
    shares = (int(0.7 * plain), int(0.4 * plain))
    if shares[1] <= least:
        shares = (least + (plain - least) * 2 // 3, least + (plain - least) // 3)
    budgets = [plain, *shares, least]
    assert budgets == sorted(set(budgets), reverse=True)
    return budgets


@pytest.mark.parametrize("family", [*FAMILIES, "perceptron"])
def test_three_steps_are_equal_and_within_the_promised_peak(family: str) -> None:
    sample = perceptron() if family == "perceptron" else build(family)
    initial = {name: value.clone() for name, value in sample.model.state_dict().items()}
    expected = steps_of(sample, initial)
    schedules = set()
    budgets = budgets_of(sample)
    for budget in budgets:
        plan = fitted_at(sample, budget)
        schedules.add(plan.schedule)
        assert plan.budget == budget
        assert differences(steps_of(sample, initial), expected) == [], budget
        measured = peak(sample)
        assert measured <= plan.peak_bytes <= budget
        assert plan.peak_bytes <= 1.1 * measured, budget
    assert len(schedules) == 4 or budgets[-1] > 0.9 * budgets[0], "there is nothing to choose"
    chainstay.unfit(sample.model)
    assert differences(steps_of(sample, initial), expected) == []


def test_the_comparison_is_sharp() -> None:
    """Other random numbers would be found out, so a plan that did not restore them would be."""
    sample = build("GPT-2")
    initial = {name: value.clone() for name, value in sample.model.state_dict().items()}
    expected = steps_of(sample, initial)
    assert differences(steps_of(sample, initial), expected) == []
    assert "loss 0" in differences(steps_of(sample, initial, seed=8), expected)


@pytest.mark.parametrize("family", ["U-Net", "DenseNet-121", "two towers", "T5"])
def test_any_schedule_gives_equal_bits_within_its_peak(family: str) -> None:
    """Also schedules that make again what they hold: what that takes is known beforehand."""
    sample = build(family)
    initial = {name: value.clone() for name, value in sample.model.state_dict().items()}
    expected = steps_of(sample, initial)
    measured = measured_sample(sample, granularity=14)
    profile = measured.costs.profile
    schedules = [random_free(len(profile), seed, stray=0.2 * (seed % 4)) for seed in range(8)]
    schedules += [random_persistent(len(profile), seed, keep=0.2) for seed in range(4)]
    remade = []
    for schedule in schedules:
        replay = simulate(profile, schedule, discards="free")
        remade.append(remade_bytes(profile, schedule))
        plan = Solution(
            schedule=schedule,
            makespan=replay.makespan,
            peak_bytes=replay.peak_bytes,
            budget=replay.peak_bytes,
            lower_bound=0,
            family=chainstay.Family.ALL,
            method="a walk",
            solve_seconds=0.0,
        )
        overheads = measured.costs.overheads_for(schedule)
        predicted = simulate(profile, schedule, discards="free", overheads=overheads).peak_bytes
        with measured.running(measured.planned(plan)):
            assert differences(steps_of(sample, initial), expected) == [], schedule
            assert peak(sample) <= predicted + remade[-1], schedule
        assert predicted <= replay.peak_bytes, schedule
    assert remade[-4:] == [0, 0, 0, 0], "persistent schedules make nothing again that they hold"
