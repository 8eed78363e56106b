"""Joins verified: every method on random instances, replayed and compared with the others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Final, TypeAlias

from chainstay.baselines.join import equivalent_chain
from chainstay.dp import DP
from chainstay.dp.join import waterfilling_bound
from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.join import AssignCuts
from chainstay.problems import consistency
from chainstay.problems.consistency import MethodResult, contradiction_between
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Scope, Solution
from chainstay.solve.join import AnyJoinMethod, join_claim
from chainstay.validation.certify import certify_join
from chainstay.validation.join.search import join_optimum
from chainstay.validation.join.simulate import simulate_join
from chainstay.verify.batches import in_batches
from chainstay.verify.cross_check import (
    MINIMISING_SECONDS,
    CrossCheck,
    minimised_check,
    required_budget_error,
)
from chainstay.verify.join_instances import JoinInstance, random_join, simpler_joins

__all__ = [
    "TESTED_JOIN_METHODS",
    "JoinAnswer",
    "JoinCheck",
    "JoinMethodUnderTest",
    "find_join_contradiction",
    "join_checks",
    "join_counter_example",
    "minimised_join",
]


@dataclass(frozen=True, slots=True)
class _ExhaustiveJoinSearch:
    """Exhaustive search as a method."""

    def __str__(self) -> str:
        return "search"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """Return the optimum."""
        return join_optimum(profile, budget, keep=keep)


@dataclass(frozen=True, slots=True)
class _EquivalentChain:
    """EQUIV-CHAIN as a method that proves nothing."""

    def __str__(self) -> str:
        return "equivalent chain"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """Return the schedule of the equivalent chain, where no gradient is to be kept."""
        if not isinstance(profile, HomogeneousJoin) or profile.tail_length or any(keep):
            raise SolverLimitError("the equivalent chain is for joins in slots without a tail")
        try:
            schedule = equivalent_chain(profile, budget)
        except InfeasibleBudgetError as error:
            raise SolverLimitError(str(error)) from error
        makespan = simulate_join(profile, schedule).makespan
        return Claim(
            schedule=schedule,
            makespan=makespan,
            lower_bound=0,
            family=Family.SINGLE_TURN,
            discards=Discards.TAPE,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinMethodUnderTest:
    """A method and the joins that it is run on.

    Attributes:
        method: The method.
        family: The family of its schedules on a `JoinProfile`; None if it takes none.
        slots_only_without_tail: Whether it takes homogeneous joins without a tail only.
        most_stages: Number of stages of the largest joins that it is run on.
        every: It is run on one in so many of those.
    """

    method: AnyJoinMethod
    family: Family | None
    slots_only_without_tail: bool = False
    most_stages: int
    every: int = 1

    @property
    def name(self) -> str:
        """The method and its settings."""
        return str(self.method)

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        return f"{which}, n ≤ {self.most_stages}" + ("" if self.family else ", slots")

    def takes(self, number: int, profile: Join) -> bool:
        """Return whether the plan runs this method on instance `number`, which has this profile."""
        if isinstance(profile, HomogeneousJoin):
            can_take = not (self.slots_only_without_tail and profile.tail_length)
        else:
            can_take = self.family is not None
        return can_take and profile.stages <= self.most_stages and number % self.every == 0

    def scope(self, profile: Join) -> Scope:
        """Return the class of its schedules, which its "nothing fits" covers, too."""
        if not isinstance(profile, HomogeneousJoin):
            return Scope(self.family or Family.ALL, Discards.TAPE)
        is_by_phases = isinstance(self.method, MIP | CPSAT) and profile.tail_length
        family = Family.SINGLE_SWEEP if is_by_phases else Family.SINGLE_TURN
        return Scope(family, Discards.TAPE)


TESTED_JOIN_METHODS: Final[tuple[JoinMethodUnderTest, ...]] = (
    JoinMethodUnderTest(method=DP(), family=Family.CANONICAL_PERSISTENT, most_stages=30),
    JoinMethodUnderTest(
        method=DP(slots=20), family=Family.CANONICAL_PERSISTENT, most_stages=12, every=2
    ),
    JoinMethodUnderTest(method=_ExhaustiveJoinSearch(), family=Family.ALL, most_stages=6, every=2),
    JoinMethodUnderTest(
        method=CPSAT(time_limit_s=20.0), family=Family.SINGLE_SWEEP, most_stages=7, every=4
    ),
    JoinMethodUnderTest(
        method=MIP(time_limit_s=20.0), family=Family.SINGLE_SWEEP, most_stages=7, every=8
    ),
    JoinMethodUnderTest(
        method=AssignCuts(),
        family=None,
        slots_only_without_tail=True,
        most_stages=14,
        every=3,
    ),
    JoinMethodUnderTest(
        method=_EquivalentChain(), family=None, slots_only_without_tail=True, most_stages=30
    ),
)
"""Quick methods on every instance, expensive ones on samples of small joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The answer of one method about one join.

    Attributes:
        tested: The method.
        result: The answer itself.
        seconds: Wall time, in seconds.
        solution: The claim as a solution, if the simulator confirmed it.
        refusal: Reason why the answer cannot be right, by itself; empty if there is none.
    """

    tested: JoinMethodUnderTest
    result: MethodResult
    seconds: float = 0.0
    solution: Solution | None = None
    refusal: str = ""

    @property
    def required(self) -> int | None:
        """The least budget, if the method said that nothing fits."""
        return self.result.required


JoinCheck: TypeAlias = CrossCheck[JoinInstance, JoinAnswer, JoinMethodUnderTest]
"""One join with the answers of all methods."""


def join_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    methods: Sequence[JoinMethodUnderTest] = TESTED_JOIN_METHODS,
    workers: int = 1,
) -> Iterator[JoinCheck]:
    """Check the instances `numbers` of `seed`; the results come in their order.

    Example:
        >>> [check.reason for check in join_checks(range(3), seed=0)]
        ['', '', '']
    """
    return in_batches(numbers, partial(_check_all, seed, tuple(methods)), workers)


def find_join_contradiction(
    answers: Sequence[JoinAnswer],
) -> tuple[str, tuple[JoinMethodUnderTest, ...]]:
    """Return the first reason why not all `answers` can be right, and the methods behind it."""
    for answer in answers:
        if answer.refusal:
            return answer.refusal, (answer.tested,)
    for one, other in permutations(answers, 2):
        if reason := contradiction_between(one.result, other.result):
            return reason, (one.tested, other.tested)
    return "", ()


def minimised_join(check: JoinCheck, *, seconds: float = MINIMISING_SECONDS) -> JoinCheck:
    """Return the same contradiction on a smallest instance, unless time ran out."""

    def again(instance: JoinInstance) -> JoinCheck:
        taking = [tested for tested in check.between if tested.takes(0, instance.profile)]
        return _check(check.number, instance, taking)

    return minimised_check(check, simpler_joins, again, seconds)


def join_counter_example(check: JoinCheck, *, seed: int) -> str:
    """Return a JSON document of the contradiction in `check`."""
    instance = check.instance
    flags = sum(2**j for j, flag in enumerate(instance.keep) if flag)
    result = [
        {**consistency.result_fields(answer.result), "refusal": answer.refusal}
        for answer in check.answers
    ]
    return consistency.counter_example_json(
        check.reason,
        instance.profile,
        instance.budget,
        result,
        seed=seed,
        number=check.number,
        keep=flags,
    )


def _check_all(
    seed: int, methods: Sequence[JoinMethodUnderTest], numbers: Sequence[int]
) -> list[JoinCheck]:
    checks = []
    for number in numbers:
        instance = random_join(seed, number)
        taking = [tested for tested in methods if tested.takes(number, instance.profile)]
        checks.append(_check(number, instance, taking))
    return checks


def _check(number: int, instance: JoinInstance, taking: Sequence[JoinMethodUnderTest]) -> JoinCheck:
    answers = tuple(_checked_answer(tested, instance) for tested in taking)
    reason, between = find_join_contradiction(answers)
    return CrossCheck(
        number=number, instance=instance, answers=answers, reason=reason, between=between
    )


def _checked_answer(tested: JoinMethodUnderTest, instance: JoinInstance) -> JoinAnswer:
    """Run a method, replay its claim, and check a least budget that it names."""
    start = time.perf_counter()

    def answer_at(budget: int) -> JoinAnswer:
        return _certified_answer(tested, replace(instance, budget=budget))

    answer = answer_at(instance.budget)
    refusal = required_budget_error(answer, tested.name, instance.budget, answer_at)
    return replace(answer, refusal=refusal, seconds=time.perf_counter() - start)


def _certified_answer(tested: JoinMethodUnderTest, instance: JoinInstance) -> JoinAnswer:
    profile, budget, keep = instance.profile, instance.budget, instance.keep
    scope = tested.scope(profile)
    result = MethodResult(method=tested.name, schedule_scope=scope, bound_scope=scope)
    answer, claim = JoinAnswer(tested=tested, result=result), None
    try:
        claim = join_claim(tested.method, profile, budget, keep=keep)
        solution = certify_join(
            profile, claim, keep=keep, budget=budget, method=tested.name, solve_seconds=0.0
        )
    except InfeasibleBudgetError as infeasible:
        return replace(answer, result=replace(result, required=infeasible.required))
    except SolverLimitError:
        return answer
    except ChainstayError as error:
        return replace(answer, refusal=str(error))
    result = replace(result, bound_scope=claim.scope, claim=claim)
    refusal = ""
    if isinstance(profile, HomogeneousJoin):
        bound = waterfilling_bound(profile, budget, keep=keep)
        if bound is None or bound > solution.makespan:
            refusal = f"the waterfilling bound is {bound}, yet this takes {solution.makespan}"
    return replace(answer, result=result, solution=solution, refusal=refusal)
