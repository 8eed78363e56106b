"""Random offloading instances, answers held against each other, counter-examples made small."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from chainstay.dp.offload import Algorithm1
from chainstay.errors import InfeasibleBudgetError
from chainstay.problems.offload import OffloadClaim, OffloadProblem
from chainstay.profiles import OffloadProfile
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.verify import Check, MethodUnderTest, OffloadSuite, Tally
from chainstay.verify.offloads import OFFLOAD_METHODS
from chainstay.verify.transfer_instances import random_offload

TRUTH = MethodUnderTest(method=Heuristics(), transfers=Transfers.INTEGRAL, most_stages=4)


@dataclass(frozen=True)
class Liar:
    """The heuristics, with one lie about chains of two stages and more."""

    lie: str

    def __str__(self) -> str:
        return f"liar ({self.lie})"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        claim = Heuristics()(problem)
        if len(problem.profile) < 2:
            return claim
        match self.lie:
            case "optimal":
                return replace(claim, lower_bound=claim.makespan, makespan=claim.makespan)
            case "makespan":
                return replace(claim, makespan=claim.makespan - 1)
            case "infeasible":
                raise InfeasibleBudgetError(
                    budget=problem.budget, required=problem.budget + 1, stages=2, family="all"
                )
        raise AssertionError


def first_contradiction(*methods: MethodUnderTest) -> Check:
    found = OffloadSuite(methods).checks(range(400), seed=8)
    return next(check for check in found if check.reason)


def test_instances_depend_on_seed_and_number_alone() -> None:
    drawn = [random_offload(3, number) for number in range(50)]
    assert drawn[17] == random_offload(3, 17)
    assert drawn != [random_offload(4, number) for number in range(50)]
    feasible = [i for i in drawn if i.budget >= i.profile.required_bytes]
    assert 0.7 < len(feasible) / len(drawn) < 1


def test_simpler_instances_end() -> None:
    instance, steps = random_offload(1, 2), 0
    while (step := next(instance.simpler(), None)) is not None:
        assert step != instance
        instance, steps = step, steps + 1
        assert steps < 10_000
    assert len(instance.profile) == 1
    assert instance.profile.least_time == 0


@pytest.mark.parametrize(
    ("lie", "reason"),
    [("makespan", "the solver claimed"), ("infeasible", "nothing fits")],
)
def test_lies_are_found_and_made_small(lie: str, reason: str) -> None:
    liar = MethodUnderTest(method=Liar(lie), transfers=Transfers.INTEGRAL, most_stages=4)
    check = first_contradiction(TRUTH, liar)
    assert reason in check.reason
    small = OffloadSuite().minimised(check, seconds=10)
    assert small.reason
    assert small.problem.stages == 2
    document = json.loads(small.counter_example(seed=8))
    assert document["number"] == check.number
    assert OffloadProfile.from_json(document["profile"]) == small.problem.profile


def test_a_bound_is_held_against_stricter_models() -> None:
    """That a heuristic is optimal is refuted by the exact methods beside it."""
    liar = MethodUnderTest(method=Liar("optimal"), transfers=Transfers.INTEGRAL, most_stages=4)
    exact = [tested for tested in OFFLOAD_METHODS if str(tested.method) == "search"]
    check = first_contradiction(liar, *(replace(tested, every=1) for tested in exact))
    assert "says that nothing is faster than" in check.reason


def test_all_methods_agree_on_some_instances() -> None:
    tally = Tally()
    for check in OffloadSuite().checks(range(60), seed=11):
        assert not check.reason, (check.number, check.reason)
        for answer in check.answers:
            if answer.tested.method == Algorithm1():
                tally.add(answer)
    assert tally.instances > 10
    assert tally.optimal > 10
