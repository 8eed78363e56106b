"""Fitted models train bit for bit as plain ones do, within the peak that was promised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from torch.utils._pytree import tree_leaves

import chainstay
from chainstay.runtime import trace_memory
from chainstay.runtime.calls import PlannedCall
from chainstay.runtime.executor import Executor
from chainstay.runtime.extracted import measure_extracted
from chainstay.runtime.extraction import ExtractedChain, extract
from chainstay.runtime.fitted import Fitted
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.remaking import remade_bytes
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from chainstay.solve import Auto, solve_chain
from chainstay.validation.simulate import simulate
from runtime_support import random_free, random_persistent
from zoo import FAMILIES, Sample, build, loss_of


@dataclass(frozen=True)
class Case:
    """A family, extracted and measured."""

    sample: Sample
    chain: ExtractedChain
    measured: Measurement

    @property
    def keep_all_peak(self) -> int:
        profile = self.measured.profile
        return simulate(profile, Schedule.keep_all(len(profile))).peak_bytes

    def predicted_peak(self, plan: Solution) -> int:
        """Of that plan alone."""
        profile = self.measured.profile_for(plan.schedule)
        return simulate(profile, plan.schedule, discards="free").peak_bytes

    def solved(self, share: float) -> Solution:
        """The optimum at a share of plain training's memory, or at the least that there is."""
        least = chainstay.least_budget(self.measured.profile)
        budget = max(least, int(share * self.keep_all_peak))
        return solve_chain(self.measured.profile, budget, Auto(discards="free"))

    @contextmanager
    def fitted(self, plan: Solution) -> Iterator[None]:
        """The sample's model trains by `plan` inside, as if `fit` had found it."""
        executor = Executor(self.measured.chain, self.measured.traits, plan.schedule)
        call = PlannedCall(self.chain, executor, plan, self.measured.profile)
        fitted = Fitted(self.sample.model, lambda _args, _kwargs: call, "refuse")
        fitted.plan_for(self.sample.args, self.sample.kwargs)
        fitted.install()
        try:
            yield
        finally:
            fitted.remove()

    def peak(self) -> int:
        """Of a whole step as the sample's model is now, inputs included."""

        def step() -> None:
            output = self.sample()  # held until the step ends, as in most training loops
            loss_of(output).backward()

        for parameter in self.sample.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        step()
        trace = trace_memory(step, "cpu")
        assert trace.end_bytes == 0, "a step leaves nothing behind"
        inputs = {id(leaf): leaf for leaf in tree_leaves((self.sample.args, self.sample.kwargs))}
        sizes = (leaf.nbytes for leaf in inputs.values() if isinstance(leaf, torch.Tensor))
        return trace.peak_bytes + sum(sizes)


def case_of(family: str, granularity: int | str = "fine") -> Case:
    sample = build(family)
    chain = extract(sample.model, sample.args, sample.kwargs, granularity=granularity)  # type: ignore[arg-type]
    measured = measure_extracted(chain, sample.args, sample.kwargs, loss=loss_of, repeats=1)
    return Case(sample, chain, measured)


def three_steps(
    sample: Sample, initial: dict[str, torch.Tensor], seed: int = 7
) -> dict[str, torch.Tensor]:
    """Everything that three steps of SGD with momentum leave behind, step by step."""
    model = sample.model
    model.load_state_dict(initial)
    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(seed)
    found = {}
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(sample())
        loss.backward()
        found[f"loss {step}"] = loss.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient {step} {name}"] = parameter.grad.clone()
        optimizer.step()
        found |= {f"buffer {step} {name}": each.clone() for name, each in model.named_buffers()}
        found[f"random state {step}"] = torch.get_rng_state()
    return found


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    return [
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_three_steps_are_equal_and_within_the_promised_peak(family: str) -> None:
    case = case_of(family)
    initial = {name: each.clone() for name, each in case.sample.model.state_dict().items()}
    expected = three_steps(case.sample, initial)
    for share in (1.0, 0.7, 0.4, 0.0):
        plan = case.solved(share)
        with case.fitted(plan):
            assert differences(three_steps(case.sample, initial), expected) == [], share
            measured = case.peak()
        predicted = case.predicted_peak(plan)
        assert measured <= predicted <= plan.peak_bytes <= plan.budget, share
        assert predicted <= 1.1 * measured, share


def test_the_comparison_is_sharp() -> None:
    """Other random numbers would be found out, so a plan that did not restore them would be."""
    sample = build("GPT-2")
    initial = {name: each.clone() for name, each in sample.model.state_dict().items()}
    expected = three_steps(sample, initial)
    assert differences(three_steps(sample, initial), expected) == []
    assert "loss 0" in differences(three_steps(sample, initial, seed=8), expected)


@pytest.mark.parametrize("family", ["U-Net", "DenseNet-121", "two towers", "T5"])
def test_any_schedule_gives_equal_bits_within_its_peak(family: str) -> None:
    """Also schedules that make again what they hold: what that takes is known beforehand."""
    case = case_of(family, granularity=14)
    initial = {name: each.clone() for name, each in case.sample.model.state_dict().items()}
    expected = three_steps(case.sample, initial)
    profile = case.measured.profile
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
        with case.fitted(plan):
            assert differences(three_steps(case.sample, initial), expected) == [], schedule
            peak = case.peak()
            assert peak <= case.predicted_peak(plan) + remade[-1], schedule
            assert case.predicted_peak(plan) <= replay.peak_bytes, schedule
    assert remade[-4:] == [0, 0, 0, 0], "persistent schedules make nothing again that they hold"
