"""Recomputing and offloading verified: methods on random instances, replayed and compared.

A bound on persistent plans that may move parts of items holds for every such plan: those
that only recompute, and those that only offload. A bound on all schedules holds for every
schedule. And a schedule that is such a plan, with whole transfers, takes no less than its
own computations and items with transfers in parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import permutations
from typing import Final, TypeAlias

from chainstay.dp import DP
from chainstay.dp.hybrid import hybrid_bound
from chainstay.errors import (
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.instances import ChainInstance, random_chain, simpler_chains
from chainstay.problems.hybrid import HybridClaim, HybridMethod, HybridProblem, HybridSolution
from chainstay.problems.offload import transfer_counter_example_json
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family
from chainstay.solve.hybrid import AutoHybrid, IntegerProgramHybrid, Pofo
from chainstay.solve.hybrid_pofo import relaxed_link
from chainstay.timetable import Time, Transfers
from chainstay.validation.hybrid.certify import certify_hybrid
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.verify.batches import in_batches
from chainstay.verify.cross_check import (
    MINIMISING_SECONDS,
    CrossCheck,
    TransferAnswer,
    TransferMethodUnderTest,
    minimised_check,
    run_and_certify,
)

__all__ = [
    "TESTED_HYBRID_METHODS",
    "HybridAnswer",
    "HybridCheck",
    "HybridInstance",
    "HybridMethodUnderTest",
    "hybrid_checks",
    "hybrid_counter_example",
    "minimised_hybrid",
    "random_hybrid",
]

_LIMITED: Final = (5, 7)
"""Remainders of numbers whose link has a limit, and besides a second level."""
_BANDWIDTHS: Final = tuple(map(Fraction, ("1/3", "1", "2", "5/2", "9")))


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridInstance:
    """A chain without skips, a budget in bytes and a link."""

    profile: ChainProfile
    budget: int
    link: Link


def random_hybrid(seed: int, number: int) -> HybridInstance:
    """Return instance `number` of `seed`; now and then the budget is infeasible.

    Example:
        >>> random_hybrid(1, 7) == random_hybrid(1, 7) != random_hybrid(1, 8)
        True
    """
    draw = random.Random(f"chainstay hybrid {seed} {number}")  # noqa: S311  # reproducible
    profile = replace(random_chain(seed, number).profile, skips=())
    is_measured = profile.stages[0].name == "measured"
    bandwidth = draw.choice(_BANDWIDTHS) * (1000 if is_measured else 1)
    link = Link(bandwidth=bandwidth)
    if number % 8 in _LIMITED:
        room = sum(stage.saved_bytes for stage in profile.stages)
        beyond = Link(bandwidth=bandwidth / 2) if number % 8 == _LIMITED[1] else None
        link = replace(link, capacity=draw.randint(0, room), beyond=beyond)
    least = HybridProblem(profile, 1, link).required_bytes
    most = max(least, profile.input_bytes + sum(stage.saved_bytes for stage in profile.stages))
    budget = least + (most - least) * draw.randint(0, 8) // 8
    if draw.random() < 1 / 10:
        budget = least - draw.randint(1, 1 + least // 4)
    return HybridInstance(profile=profile, budget=max(1, budget), link=link)


@dataclass(frozen=True, slots=True)
class _ExhaustiveHybridSearch:
    """Exhaustive search as a method."""

    def __str__(self) -> str:
        return "search"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return the optimum."""
        problem.require_feasible()
        found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
        if found is None:
            raise SolverLimitError("search says that nothing fits, although something should")
        return HybridClaim(
            schedule=found.schedule, makespan=found.makespan, lower_bound=found.makespan
        )


@dataclass(frozen=True, slots=True)
class _SingleTechnique:
    """Recomputing only, or offloading everything: a plan without a bound."""

    name: str

    def __str__(self) -> str:
        return f"{self.name} only"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return the plan and its makespan with fractional transfers."""
        problem.require_feasible()
        stages = len(problem.profile)
        if self.name == "recompute":
            try:
                schedule = DP()(problem.profile, problem.budget).schedule
            except InfeasibleBudgetError as infeasible:
                raise SolverLimitError(str(infeasible)) from infeasible
        else:
            moves = [Op(OpKind.OFFLOAD_SAVED, i) for i in range(stages - 1)]
            moves += [Op(OpKind.OFFLOAD_ACTIVATION, 0)]
            schedule = Schedule((*moves, *Schedule.keep_all(stages)))
        try:
            makespan = fractional_makespan(
                problem.profile, schedule, budget=problem.budget, link=problem.link
            )
        except InvalidScheduleError as invalid:
            raise SolverLimitError(str(invalid)) from invalid
        return HybridClaim(
            schedule=schedule, makespan=makespan, lower_bound=0, family=Family.PERSISTENT
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridMethodUnderTest(TransferMethodUnderTest[HybridMethod]):
    """A `TransferMethodUnderTest` for recomputing and offloading.

    Attributes:
        takes_any_link: Whether it is run on links with latency, two directions, a limit or a
            level beyond.
    """

    takes_any_link: bool = True

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        return self.base_sampling + ("" if self.takes_any_link else ", simple link")

    def takes(self, number: int, instance: HybridInstance) -> bool:
        """Return whether the plan runs this method on instance `number`."""
        can_take = self.takes_any_link or instance.link.is_plain
        return can_take and self.is_sampled(number, len(instance.profile))


def _fractional(method: HybridMethod, most_stages: int) -> HybridMethodUnderTest:
    return HybridMethodUnderTest(
        method=method,
        transfers=Transfers.FRACTIONAL,
        most_stages=most_stages,
        takes_any_link=False,
    )


def _integral(method: HybridMethod, most_stages: int, every: int) -> HybridMethodUnderTest:
    return HybridMethodUnderTest(
        method=method, transfers=Transfers.INTEGRAL, most_stages=most_stages, every=every
    )


TESTED_HYBRID_METHODS: Final[tuple[HybridMethodUnderTest, ...]] = (
    _fractional(Pofo(), 5),
    _fractional(Pofo(slots=40), 20),
    _fractional(_SingleTechnique("recompute"), 20),
    _fractional(_SingleTechnique("offload"), 20),
    _integral(AutoHybrid(combined=Pofo(tries=60), exact_stages=0), 5, 1),
    _integral(AutoHybrid(combined=Pofo(tries=60), time_limit_s=1.0), 3, 3),
    _integral(_ExhaustiveHybridSearch(), 2, 1),
    _integral(IntegerProgramHybrid(CPSAT(time_limit_s=3.0), alone=True), 3, 3),
    _integral(IntegerProgramHybrid(MIP(time_limit_s=10.0), alone=True), 2, 5),
)
"""Quick methods on every instance, exhaustive search and exact ones on samples of the shortest."""


HybridAnswer: TypeAlias = TransferAnswer[HybridMethodUnderTest, HybridClaim, HybridSolution]
"""The answer of one method about one instance."""
HybridCheck: TypeAlias = CrossCheck[HybridInstance, HybridAnswer, HybridMethodUnderTest]
"""One instance with the answers of all methods."""


def hybrid_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    methods: Sequence[HybridMethodUnderTest] = TESTED_HYBRID_METHODS,
    workers: int = 1,
) -> Iterator[HybridCheck]:
    """Check the instances `numbers` of `seed`; the results come in their order."""
    return in_batches(numbers, partial(_check_all, seed, tuple(methods)), workers)


def _check_all(
    seed: int, methods: Sequence[HybridMethodUnderTest], numbers: Sequence[int]
) -> list[HybridCheck]:
    return [_check(number, random_hybrid(seed, number), methods) for number in numbers]


def _check(
    number: int, instance: HybridInstance, methods: Sequence[HybridMethodUnderTest]
) -> HybridCheck:
    taking = [tested for tested in methods if tested.takes(number, instance)]
    answers = tuple(_checked_answer(tested, instance) for tested in taking)
    reason, between = _find_contradiction(answers)
    return CrossCheck(
        number=number, instance=instance, answers=answers, reason=reason, between=between
    )


def _checked_answer(tested: HybridMethodUnderTest, instance: HybridInstance) -> HybridAnswer:
    """Run a method, replay its claim, and compare schedules with their own fractional makespan."""
    problem = HybridProblem(instance.profile, instance.budget, instance.link, tested.transfers)

    def ask() -> HybridClaim:
        problem.require_feasible()
        return tested.method(problem)

    def certified(claim: HybridClaim) -> HybridSolution:
        return certify_hybrid(
            problem,
            claim,
            bound=hybrid_bound(problem.profile, problem.budget, relaxed_link(problem.link)),
            method=tested.name,
            solve_seconds=0.0,
        )

    return run_and_certify(
        tested, ask, certified, lambda solution: _fractional_contradiction(problem, solution)
    )


def _fractional_contradiction(problem: HybridProblem, solution: HybridSolution) -> str:
    """Return why a schedule that is a plan of [POFO] is too fast; empty if it is not."""
    if problem.transfers is not Transfers.INTEGRAL or not problem.link.is_plain:
        return ""
    computations = [op for op in solution.schedule if op.kind.is_forward or op.kind == "B"]
    turn = computations.index(Op(OpKind.BACKWARD, len(problem.profile) - 1))
    starts, loss = solution.timetable.starts, problem.profile.stages[-1]
    is_plan = all(
        move.end <= starts[turn]
        if move.op.kind in (OpKind.OFFLOAD_ACTIVATION, OpKind.OFFLOAD_SAVED)
        else move.start >= starts[turn - 1] + loss.forward_time
        for move in solution.timetable.moves
    )
    if not is_plan:
        return ""
    try:
        value = fractional_makespan(
            problem.profile, solution.schedule, budget=problem.budget, link=problem.link
        )
    except InvalidScheduleError:  # no persistent plan
        return ""
    if value > solution.makespan:
        return f"whole transfers take {solution.makespan}, and parts of items {value}"
    return ""


def _find_contradiction(
    answers: Sequence[HybridAnswer],
) -> tuple[str, tuple[HybridMethodUnderTest, ...]]:
    """Return the first reason why not all `answers` can be right, and the methods behind it."""
    for answer in answers:
        if answer.refusal:
            return f"{answer.tested.name}: {answer.refusal}", (answer.tested,)
    for one, other in permutations(answers, 2):
        if one.solution is None or other.claim is None:
            continue
        is_within = one.tested.transfers is other.tested.transfers
        bound = _bound_on_all(other)
        if is_within and one.solution.makespan < bound:
            reason = (
                f"{other.tested.name} says that nothing is faster than {bound}, and "
                f"{one.tested.name} has a schedule of {one.solution.makespan}"
            )
            return reason, (one.tested, other.tested)
    return "", ()


def _bound_on_all(answer: HybridAnswer) -> Time:
    """Return the time that, by this answer, no answer to the same problem goes below.

    All fractional answers are persistent, so a bound on such plans is one on all of them.
    """
    assert answer.claim is not None, "there is a claim"
    if answer.claim.family is Family.TWICE:
        return answer.claim.unrestricted_bound
    return max(answer.claim.lower_bound, answer.claim.unrestricted_bound)


def minimised_hybrid(check: HybridCheck, *, seconds: float = MINIMISING_SECONDS) -> HybridCheck:
    """Return the same contradiction on a smallest instance, unless time ran out."""
    return minimised_check(
        check, _simpler_hybrid, lambda instance: _check(0, instance, check.between), seconds
    )


def _simpler_hybrid(instance: HybridInstance) -> Iterator[HybridInstance]:
    chain = ChainInstance(profile=instance.profile, budget=instance.budget)
    for one in simpler_chains(chain):
        yield replace(instance, profile=one.profile, budget=one.budget)


def hybrid_counter_example(check: HybridCheck, *, seed: int) -> str:
    """Return a JSON document of the contradiction in `check`."""
    transfers = check.between[0].transfers if check.between else Transfers.INTEGRAL
    instance = check.instance
    problem = HybridProblem(instance.profile, instance.budget, instance.link, transfers)
    claims = {answer.tested.name: answer.claim for answer in check.answers}
    return transfer_counter_example_json(
        check.reason, problem, claims, seed=seed, number=check.number
    )
