"""Training by plans that recompute and offload: bit for bit, within the budget, nothing left."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.problems.hybrid import HybridProblem, HybridSolution
from chainstay.profiles import ChainProfile, Link
from chainstay.runtime import PlannedChain, trace_memory
from chainstay.runtime.execute.items import TransferPlan, movable_chain
from chainstay.runtime.transfer import Engine, PlannedTransfers
from chainstay.runtime.transfer.cpu_engine import CopyingEngine, _is_ours_alone
from chainstay.schedule import Schedule
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.validation.simulate import simulate
from combined_support import kept_in_part, least_plan, least_plan_in_part, with_random_transfers
from interrupting import Interrupting, InterruptionError
from live_tensors import leave_out_other_tests, tensors_alive
from offload_support import (
    BUGS,
    FAST,
    Case,
    gpt_case,
    normalized_case,
    perceptron_case,
    resnet_case,
)
from runtime_support import random_free, random_persistent
from zoo import Appended, build

PERCENT = (22, 28, 35, 42, 50, 58, 66, 75, 84, 95)
"""Of the way from the least budget to what plain training needs."""


@cache
def densenet_case() -> Case:
    """DenseNet-121, narrow, three dense layers a stage: the state grows."""
    torch.manual_seed(0)
    build("DenseNet-121")  # torchvision, ready for use
    densenet = import_module("torchvision.models.densenet").DenseNet
    net: Any = densenet(
        8, (6, 12, 24, 16), num_init_features=16, bn_size=2, drop_rate=0.1, num_classes=10
    )
    stages: list[nn.Module] = []
    for name, part in net.features.named_children():
        if name.startswith("denseblock"):
            layers = [*map(Appended, part.children()), nn.Identity(), nn.Identity()]
            stages += map(nn.Sequential, layers[::3], layers[1::3], layers[2::3])
        else:
            stages.append(part)
    pool = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier)
    images, classes = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    return Case.of(
        nn.Sequential(*stages, nn.Sequential(*pool)),
        images,
        lambda scores: functional.cross_entropy(scores, classes),
    )


@dataclass(frozen=True, eq=False)
class Combined:
    """A model and a link on which neither recomputing nor offloading is for nothing."""

    case: Case
    link: Link

    @classmethod
    def of(cls, case: Case) -> Combined:
        """All that is saved takes as long to move as a step takes to compute."""
        profile = case.measured.movable_profile
        moved = sum(stage.saved_bytes for stage in profile.stages)
        return cls(case, Link(bandwidth=Fraction(moved, profile.least_time), latency=2000))

    def budget(self, percent: int) -> int:
        """Bytes."""
        profile = self.case.measured.movable_profile
        plain = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
        least = HybridProblem(profile, plain, self.link).required_bytes
        return least + (plain - least) * percent // 100

    @cache  # noqa: B019  # cases live as long as the tests
    def solution(self, percent: int) -> HybridSolution:
        """A plan for that budget."""
        return solve_hybrid(
            self.case.measured.movable_profile,
            self.budget(percent),
            link=self.link,
            method=Pofo(slots=20, tries=20),
        )


@cache
def combined(make: Callable[[], Case]) -> Combined:
    """Of one of the cases."""
    return Combined.of(make())


CASES = [resnet_case, gpt_case, densenet_case]


def started(model: nn.Module) -> None:
    """Gradients are there, so that a step leaves no memory behind."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@pytest.mark.parametrize("percent", PERCENT)
@pytest.mark.parametrize("make", CASES)
def test_equal_bit_for_bit_and_within_the_budget(make: Callable[[], Case], percent: int) -> None:
    case, solution = make(), combined(make).solution(percent)
    poisoned = case.measured.planned(solution, engine=CopyingEngine(FAST, poison=True))
    assert case.trained(poisoned).differences(case.trained(case.model)) == []
    poisoned.close()
    started(case.model)
    engine = CopyingEngine(FAST)
    chain = case.measured.planned(solution, engine=engine)
    case.step(chain)
    trace = trace_memory(lambda: case.step(chain), "cpu")
    peak = trace.peak_bytes + case.batch.nbytes - immovable(solution.schedule)
    assert peak <= plan_of(chain).peak_bytes <= solution.budget
    assert abs(trace.end_bytes) <= 4, "a step leaves its loss behind, at most"
    assert engine.pool.used_bytes == 0
    assert bool(plan_of(chain).moved) == (engine.pool.allocated_bytes > 0)
    assert engine.pool.allocated_bytes <= plan_of(chain).host_bytes
    chain.close()


def immovable(schedule: Schedule) -> int:
    """Bytes of numbers that operators multiply by: autograd hands them to no hook, so they stay."""
    return 16 * sum(op.kind.is_offload for op in schedule)


def plan_of(chain: PlannedChain) -> TransferPlan:
    """What was made of its transfers."""
    transfers = chain._executor.transfers
    assert transfers is not None
    return transfers.plan


@pytest.mark.long
@pytest.mark.parametrize("make", CASES)
def test_plans_do_both(make: Callable[[], Case]) -> None:
    """Or else the test above would say nothing about what one has to do with the other."""
    count = 0
    for percent in PERCENT:
        schedule = combined(make).solution(percent).schedule
        offloads = sum(op.kind.is_offload for op in schedule)
        forwards = sum(op.kind.is_forward for op in schedule)
        again = 2 * forwards > len(schedule) - 2 * offloads or any(op.option for op in schedule)
        count += offloads > 0 and again
    assert count >= 4


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("make", [resnet_case, gpt_case])
def test_seeded_bugs_are_caught(make: Callable[[], Case], bug: Callable[[], CopyingEngine]) -> None:
    """DenseNet's plans use what they move so late that even these engines are in time."""
    case = make()
    chain = max(
        (
            case.measured.planned(combined(make).solution(percent), engine=bug())
            for percent in PERCENT
        ),
        key=lambda chain: len(plan_of(chain).moved),
    )
    started(case.model)
    case.step(chain)
    chain.close()
    assert any(p.grad is not None and p.grad.isnan().any() for p in case.model.parameters())


def mixed(seed: int, engine: Engine, *, is_tight: bool = False) -> tuple[Case, PlannedChain, int]:
    """The perceptron by a random program list of anything, in the least memory that allows.

    With `is_tight`, each operation needs so much besides that all that can be away is away.
    """
    case = perceptron_case()
    measured = case.measured
    stages = len(measured.profile)
    base = (
        random_persistent(stages, seed, keep=0.5)
        if seed % 2
        else random_free(stages, seed, stray=0.1)
    )
    schedule = with_random_transfers(base, seed)
    profile = movable_chain(measured.profile_for(schedule))
    budget, plan = least_plan(schedule, profile)
    if is_tight:
        budget, plan = tight_plan(schedule, profile)
    return case, planned(case, PlannedTransfers(schedule, plan, engine)), budget


def tight_plan(schedule: Schedule, profile: ChainProfile) -> tuple[int, TransferPlan]:
    """The least budget if each operation needs so much besides, and the plan."""
    budget, _ = least_plan(schedule, profile)
    places = range(len(schedule))
    needs = [
        least_plan(schedule, profile, [budget * (other == place) for other in places])[0]
        for place in places
    ]
    return least_plan(schedule, profile, [budget + max(needs) - need for need in needs])


def planned(case: Case, transfers: PlannedTransfers) -> PlannedChain:
    """The case's chain by that."""
    return PlannedChain(case.measured, transfers.schedule, transfers)


@pytest.mark.parametrize("seed", [*range(1, 40, 2), 10, 14, 40, 54, 62])
def test_anything_goes_bit_for_bit(seed: int) -> None:
    """Checkpoints and what was saved again, away once or twice, wherever a schedule has them."""
    case, chain, budget = mixed(seed, CopyingEngine(FAST, poison=True))
    assert case.trained(chain, steps=1).differences(case.trained(case.model, steps=1)) == []
    started(case.model)
    engine = CopyingEngine(FAST)
    _, chain, _ = mixed(seed, engine)
    case.step(chain)
    peak = trace_memory(lambda: case.step(chain), "cpu").peak_bytes
    assert peak + case.batch.nbytes <= budget
    assert engine.pool.used_bytes == 0
    chain.close()


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        *((gpt_case, seed) for seed in range(12)),
        (normalized_case, 26),  # copies of statistics came back beside themselves
        *(
            pytest.param(make, seed, marks=pytest.mark.long)
            for make in (gpt_case, resnet_case)
            for seed in range(100, 130)
        ),
    ],
)
def test_what_is_kept_in_part_is_away_too(make: Callable[[], Case], seed: int) -> None:
    """What replays start from comes back from the host before them."""
    case = make()
    schedule = kept_in_part(case.measured, seed)
    budget, plan = least_plan_in_part(case.measured, schedule)
    poisoned = planned(case, PlannedTransfers(schedule, plan, CopyingEngine(FAST, poison=True)))
    trained = case.trained(poisoned, steps=1)
    assert trained.differences(case.trained(case.model, steps=1)) == []
    poisoned.close()
    started(case.model)
    engine = CopyingEngine(FAST)
    chain = planned(case, PlannedTransfers(schedule, plan, engine))
    case.step(chain)
    trace = trace_memory(lambda: case.step(chain), "cpu")
    assert trace.peak_bytes + case.batch.nbytes - immovable(schedule) <= budget
    assert abs(trace.end_bytes) <= 4
    assert engine.pool.used_bytes == 0
    chain.close()


@pytest.mark.parametrize("seed", [2, 9, 15, 43, 45, 46, 47, 49, 55, 61, 79])
def test_all_that_can_be_away_is_away(seed: int) -> None:
    case, chain, _ = mixed(seed, CopyingEngine(FAST, poison=True), is_tight=True)
    assert len(plan_of(chain).moved) > 1
    assert case.trained(chain).differences(case.trained(case.model)) == []


class Freeing(CopyingEngine):
    """Notes of all memory that it lets go whether it was the last to hold it."""

    def __init__(self) -> None:
        super().__init__(FAST)
        self.were_last = list[bool]()

    def freed(self, memory: torch.Tensor) -> None:
        self.were_last.append(_is_ours_alone(memory))


@pytest.mark.parametrize("stage", range(4))
def test_what_kept_stages_read_is_let_go_too(stage: int) -> None:
    """There is nothing to do before their backward: what they read is back by then."""
    case, engine = perceptron_case(), Freeing()
    last = len(case.measured.profile) - 1
    forwards, backwards = ([f"{kind}{n}" for n in range(last + 1)] for kind in ("Fa", "B"))
    forwards.insert(stage + 3, f"Ob{stage}")
    backwards.insert(stage + 3, f"Pb{stage}")
    schedule = Schedule.parse(" ".join((*forwards, *reversed(backwards))))
    _, plan = tight_plan(schedule, movable_chain(case.measured.profile_for(schedule)))
    chain = planned(case, PlannedTransfers(schedule, plan, engine))
    assert stage + 1 in chain._executor.plan.kept
    case.step(chain)
    assert len(engine.were_last) > 1
    assert all(engine.were_last)
    chain.close()


@pytest.mark.parametrize("make", CASES)
@pytest.mark.long
def test_what_breaks_off_leaves_nothing(make: Callable[[], Case]) -> None:
    """A missing backward, one that fails, and a forward that fails."""
    leave_out_other_tests()
    threads = set(threading.enumerate())
    case, solution = make(), combined(make).solution(PERCENT[3])
    engine = CopyingEngine(FAST, poison=True)
    chain = case.measured.planned(solution, engine=engine)
    output = chain(case.batch)
    del output
    assert engine.pool.used_bytes == 0
    with Interrupting() as counting:
        case.step(chain)
    for sixth in (1, 2, 4, 5):  # forwards, then backwards
        with pytest.raises(InterruptionError), Interrupting(sixth * counting.count // 6):
            case.step(chain)
        # Torch keeps the nodes that a failed backward had ready until the thread's next backward.
        torch.ones(1, requires_grad=True).sum().backward()
        gc.collect()
        assert engine.pool.used_bytes == 0
    started(case.model)
    before = tensors_alive()
    for _ in range(3):
        case.step(chain)
    assert tensors_alive() == before
    case.model.zero_grad()
    assert case.trained(chain).differences(case.trained(case.model)) == []
    chain.close()
    assert engine.pool.allocated_bytes == 0
    assert set(threading.enumerate()) <= threads
