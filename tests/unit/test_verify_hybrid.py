"""Recomputing and offloading together: answers held against each other, made small."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace

import pytest

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.profiles import ChainProfile, Link
from chainstay.solution import Family
from chainstay.solve.hybrid import AutoHybrid, Pofo
from chainstay.timetable import Transfers
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.verify import Check, HybridSuite, MethodUnderTest
from chainstay.verify.hybrids import HYBRID_METHODS
from chainstay.verify.transfer_instances import random_hybrid

QUICK = AutoHybrid(combined=Pofo(tries=20), exact_stages=0)
SEED = 9
"""Of instances that tell each lie: few chains of two stages gain by offloading."""
(SEARCH,) = [tested for tested in HYBRID_METHODS if str(tested.method) == "search"]


@dataclass(frozen=True)
class Liar:
    """A quick method, or recomputing only; with one lie about chains of two stages and more."""

    lie: str

    def __str__(self) -> str:
        return f"liar ({self.lie})"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        claim = QUICK(problem)
        if len(problem.profile) < 2:
            return claim
        match self.lie:
            case "makespan":
                return replace(claim, makespan=claim.makespan - 1)
            case "optimal":
                slow = recomputed(problem)
                return replace(slow, lower_bound=slow.makespan, family=Family.ALL)
            case "twice":
                slow = recomputed(problem)
                return replace(slow, family=Family.TWICE, unrestricted_bound=slow.makespan)
            case "infeasible":
                raise InfeasibleBudgetError(
                    budget=problem.budget, required=problem.budget + 1, stages=2, family="all"
                )
        raise SolverLimitError("too late")


def recomputed(problem: HybridProblem) -> HybridClaim:
    try:
        claim = DP()(problem.profile, problem.budget)
    except InfeasibleBudgetError as infeasible:
        raise SolverLimitError(str(infeasible)) from infeasible
    return HybridClaim(schedule=claim.schedule, makespan=claim.makespan, lower_bound=0)


def under_test(lie: str) -> MethodUnderTest:
    return MethodUnderTest(method=Liar(lie), transfers=Transfers.INTEGRAL, most_stages=2)


def first_contradiction(*methods: MethodUnderTest) -> Check:
    found = HybridSuite(methods).checks(range(300), seed=SEED)
    return next(check for check in found if check.reason)


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("makespan", "liar (makespan), integral: the schedule takes"),
        ("optimal", "liar (optimal), integral says that nothing is faster than"),
        ("twice", "liar (twice), integral says that nothing is faster than"),
    ],
)
@pytest.mark.long
def test_lies_are_found_and_made_small(lie: str, reason: str) -> None:
    check = first_contradiction(under_test(lie), SEARCH)
    assert check.reason.startswith(reason)
    small = HybridSuite().minimised(check, seconds=10)
    assert small.reason.startswith(reason)
    assert small.number == check.number
    before, after = check.problem, small.problem
    assert isinstance(before, HybridProblem)
    assert isinstance(after, HybridProblem)
    assert len(after.profile) == 2
    assert after.link == before.link
    assert sizes(after.profile) <= sizes(before.profile)
    document = json.loads(small.counter_example(seed=SEED))
    assert (document["number"], document["seed"]) == (check.number, SEED)
    assert (document["problem"], document["transfers"]) == ("hybrid", "integral")
    assert ChainProfile.from_json(document["profile"]) == after.profile
    assert Link.from_json(document["link"]) == after.link
    said = {answer["method"]: answer for answer in document["answers"]}
    assert said[f"liar ({lie}), integral"]["schedule"]


def sizes(profile: ChainProfile) -> int:
    numbers = (n for stage in profile.stages for n in astuple(stage) if isinstance(n, int))
    return profile.input_bytes + profile.input_gradient_bytes + sum(numbers)


def test_who_is_late_or_says_that_nothing_fits_contradicts_nobody() -> None:
    checks = HybridSuite((under_test("late"), SEARCH)).checks(range(20), seed=6)
    assert not any(check.reason for check in checks)
    for check in HybridSuite((under_test("infeasible"),)).checks(range(20), seed=6):
        assert not check.reason
        for answer in check.answers:
            assert answer.claim is None or check.problem.stages == 1


def test_search_says_if_it_finds_nothing_where_something_fits() -> None:
    """With little room on the host, more than the least budget may be needed."""
    tight = 0
    for number in range(800):
        problem = random_hybrid(6, number)
        if problem.stages > 2 or problem.budget < problem.required_bytes:
            continue
        found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
        if found is not None:
            continue
        tight += 1
        assert problem.link.capacity is not None
        with pytest.raises(SolverLimitError, match="nothing fits, although something should"):
            SEARCH.method(problem)
        (check,) = HybridSuite().checks([number], seed=6)
        assert not check.reason
        break
    assert tight
