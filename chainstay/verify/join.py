"""Joins checked: every method on random instances, replayed, held against the others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Final, TypeAlias

from chainstay import evidence
from chainstay.baselines.join import equivalent_chain
from chainstay.dp import DP
from chainstay.dp.join import waterfilling_bound
from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.evidence import Statement, disproof
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.join import AssignCuts
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Scope, Solution
from chainstay.solve.join import AnyJoinMethod, join_claim
from chainstay.validation.certify import certify_join
from chainstay.validation.join import simulate_join
from chainstay.validation.join_search import join_optimum
from chainstay.verify.checking import in_batches
from chainstay.verify.join_instances import JoinInstance, random_join, simpler_joins
from chainstay.verify.rounds import (
    MINIMISING_SECONDS,
    Round,
    held_to_required,
    minimised_round,
)

__all__ = [
    "JOIN_CONTESTANTS",
    "JoinAnswer",
    "JoinCheck",
    "JoinContestant",
    "join_checks",
    "join_contradiction",
    "join_counter_example",
    "minimised_join",
]


@dataclass(frozen=True, slots=True)
class _Search:
    """Exhaustive search as a method."""

    def __str__(self) -> str:
        return "search"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """As `JoinMethod`."""
        return join_optimum(profile, budget, keep=keep)


@dataclass(frozen=True, slots=True)
class _Grouped:
    """EQUIV-CHAIN as a method that proves nothing."""

    def __str__(self) -> str:
        return "equivalent chain"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """As `JoinMethod`, where no gradient is to be kept."""
        if not isinstance(profile, HomogeneousJoin) or profile.tail_length or any(keep):
            raise SolverLimitError("not a join that it takes")
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
class JoinContestant:
    """A method and which instances it is asked about.

    Attributes:
        method: To ask.
        finds: The family of its schedules on a `JoinProfile`; None if it takes none.
        slots_only_without_tail: Whether it takes homogeneous joins without a tail only.
        most_stages: It gets joins of at most so many stages.
        every: Of those, one in so many.
    """

    method: AnyJoinMethod
    finds: Family | None
    slots_only_without_tail: bool = False
    most_stages: int
    every: int = 1

    @property
    def name(self) -> str:
        """The method and its settings."""
        return str(self.method)

    @property
    def plan(self) -> str:
        """Which instances it is asked about, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        return f"{which}, n ≤ {self.most_stages}" + ("" if self.finds else ", slots")

    def is_asked(self, number: int, profile: Join) -> bool:
        """Whether the plan has this method for instance `number`, which has this profile."""
        if isinstance(profile, HomogeneousJoin):
            can_take = not (self.slots_only_without_tail and profile.tail_length)
        else:
            can_take = self.finds is not None
        return can_take and profile.stages <= self.most_stages and number % self.every == 0

    def found(self, profile: Join) -> Scope:
        """Where its schedules lie, and the schedules of which "nothing fits" speaks."""
        if not isinstance(profile, HomogeneousJoin):
            return Scope(self.finds or Family.ALL, Discards.TAPE)
        is_by_phases = isinstance(self.method, MIP | CPSAT) and profile.tail_length
        family = Family.SINGLE_SWEEP if is_by_phases else Family.SINGLE_TURN
        return Scope(family, Discards.TAPE)


JOIN_CONTESTANTS: Final[tuple[JoinContestant, ...]] = (
    JoinContestant(method=DP(), finds=Family.CANONICAL_PERSISTENT, most_stages=30),
    JoinContestant(method=DP(slots=20), finds=Family.CANONICAL_PERSISTENT, most_stages=12, every=2),
    JoinContestant(method=_Search(), finds=Family.ALL, most_stages=6, every=2),
    JoinContestant(
        method=CPSAT(time_limit_s=20.0), finds=Family.SINGLE_SWEEP, most_stages=7, every=4
    ),
    JoinContestant(
        method=MIP(time_limit_s=20.0), finds=Family.SINGLE_SWEEP, most_stages=7, every=8
    ),
    JoinContestant(
        method=AssignCuts(),
        finds=None,
        slots_only_without_tail=True,
        most_stages=14,
        every=3,
    ),
    JoinContestant(method=_Grouped(), finds=None, slots_only_without_tail=True, most_stages=30),
)
"""Quick methods on every instance, dear ones on samples of small joins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """What one contestant said to one instance.

    Attributes:
        contestant: Who.
        statement: Its word.
        seconds: Wall time.
        solution: Its claim, once the referee agreed.
        refusal: Why the answer cannot be right, by itself.
    """

    contestant: JoinContestant
    statement: Statement
    seconds: float = 0.0
    solution: Solution | None = None
    refusal: str = ""

    @property
    def required(self) -> int | None:
        """The least budget, if it said that nothing fits."""
        return self.statement.required


JoinCheck: TypeAlias = Round[JoinInstance, JoinAnswer, JoinContestant]
"""One instance, checked."""


def join_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    contestants: Sequence[JoinContestant] = JOIN_CONTESTANTS,
    workers: int = 1,
) -> Iterator[JoinCheck]:
    """Check the instances `numbers` of `seed`; the results come in their order.

    Example:
        >>> [check.reason for check in join_checks(range(3), seed=0)]
        ['', '', '']
    """
    return in_batches(numbers, partial(_check_all, seed, tuple(contestants)), workers)


def join_contradiction(answers: Sequence[JoinAnswer]) -> tuple[str, tuple[JoinContestant, ...]]:
    """The first reason why not all `answers` can be right, and who gave them."""
    for answer in answers:
        if answer.refusal:
            return answer.refusal, (answer.contestant,)
    for one, other in permutations(answers, 2):
        if reason := disproof(one.statement, other.statement):
            return reason, (one.contestant, other.contestant)
    return "", ()


def minimised_join(check: JoinCheck, *, seconds: float = MINIMISING_SECONDS) -> JoinCheck:
    """The same contradiction on a smallest instance, unless time ran out."""

    def again(instance: JoinInstance) -> JoinCheck:
        asked = [each for each in check.between if each.is_asked(0, instance.profile)]
        return _check(check.number, instance, asked)

    return minimised_round(check, simpler_joins, again, seconds)


def join_counter_example(check: JoinCheck, *, seed: int) -> str:
    """A JSON document of the contradiction in `check`."""
    instance = check.instance
    flags = sum(2**j for j, flag in enumerate(instance.keep) if flag)
    said = [
        {**evidence.statement_fields(answer.statement), "refusal": answer.refusal}
        for answer in check.answers
    ]
    return evidence.counter_example(
        check.reason,
        instance.profile,
        instance.budget,
        said,
        seed=seed,
        number=check.number,
        keep=flags,
    )


def _check_all(
    seed: int, contestants: Sequence[JoinContestant], numbers: Sequence[int]
) -> list[JoinCheck]:
    checks = []
    for number in numbers:
        instance = random_join(seed, number)
        asked = [each for each in contestants if each.is_asked(number, instance.profile)]
        checks.append(_check(number, instance, asked))
    return checks


def _check(number: int, instance: JoinInstance, asked: Sequence[JoinContestant]) -> JoinCheck:
    answers = tuple(_ask(contestant, instance) for contestant in asked)
    reason, between = join_contradiction(answers)
    return Round(number=number, instance=instance, answers=answers, reason=reason, between=between)


def _ask(contestant: JoinContestant, instance: JoinInstance) -> JoinAnswer:
    """Ask, replay the claim, and hold the method to a least budget that it names."""
    start = time.perf_counter()

    def judged(budget: int) -> JoinAnswer:
        return _judged(contestant, replace(instance, budget=budget))

    answer = judged(instance.budget)
    refusal = held_to_required(answer, contestant.name, instance.budget, judged)
    return replace(answer, refusal=refusal, seconds=time.perf_counter() - start)


def _judged(contestant: JoinContestant, instance: JoinInstance) -> JoinAnswer:
    profile, budget, keep = instance.profile, instance.budget, instance.keep
    scope = contestant.found(profile)
    said = Statement(method=contestant.name, finds=scope, covers=scope)
    answer, claim = JoinAnswer(contestant=contestant, statement=said), None
    try:
        claim = join_claim(contestant.method, profile, budget, keep=keep)
        solution = certify_join(
            profile, claim, keep=keep, budget=budget, method=contestant.name, solve_seconds=0.0
        )
    except InfeasibleBudgetError as infeasible:
        return replace(answer, statement=replace(said, required=infeasible.required))
    except SolverLimitError:
        return answer
    except ChainstayError as error:
        return replace(answer, refusal=str(error))
    said = replace(said, covers=claim.scope, claim=claim)
    refusal = ""
    if isinstance(profile, HomogeneousJoin):
        bound = waterfilling_bound(profile, budget, keep=keep)
        if bound is None or bound > solution.makespan:
            refusal = f"waterfilling says {bound}, and this takes {solution.makespan}"
    return replace(answer, statement=said, solution=solution, refusal=refusal)
