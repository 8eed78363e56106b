"""Offloading verified: every method on random instances, replayed and compared with the others.

Whole transfers are a case of interruptible ones, and these of fractional ones; so a schedule
of any model must not be faster than what a method proved about the same or a freer model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Final, TypeAlias

from chainstay.baselines.offload import OFFLOAD_BASELINES
from chainstay.dp.offload import Algorithm1, Greedy, fractional_optimum
from chainstay.errors import SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.problems.offload import (
    OffloadClaim,
    OffloadMethod,
    OffloadProblem,
    OffloadSolution,
    transfer_counter_example_json,
)
from chainstay.schedule import OpKind
from chainstay.solution import Family
from chainstay.solve.offload import IntegerProgramOffload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.validation.offload.certify import certify_offload
from chainstay.validation.offload.search import offload_optimum
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.verify.batches import in_batches
from chainstay.verify.cross_check import (
    MINIMISING_SECONDS,
    CrossCheck,
    TransferAnswer,
    TransferMethodUnderTest,
    minimised_check,
    required_budget_error,
    run_and_certify,
)
from chainstay.verify.offload_instances import OffloadInstance, random_offload, simpler_offload

__all__ = [
    "TESTED_OFFLOAD_METHODS",
    "OffloadAnswer",
    "OffloadCheck",
    "OffloadMethodUnderTest",
    "find_offload_contradiction",
    "minimised_offload",
    "offload_checks",
    "offload_counter_example",
]

_BREADTH: Final = tuple(Transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadMethodUnderTest(TransferMethodUnderTest[OffloadMethod]):
    """A `TransferMethodUnderTest` for offloading.

    Attributes:
        takes_any_link: Whether it is run on links with latency or two directions.
    """

    takes_any_link: bool = True

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        return self.base_sampling + ("" if self.takes_any_link else ", simple link")

    def takes(self, number: int, instance: OffloadInstance) -> bool:
        """Return whether the plan runs this method on instance `number`."""
        link = instance.link
        can_take = self.takes_any_link or not (link.latency or link.is_full_duplex)
        return can_take and self.is_sampled(number, len(instance.profile))


@dataclass(frozen=True, slots=True)
class _ExhaustiveOffloadSearch:
    """Exhaustive search as a method."""

    def __str__(self) -> str:
        return "search"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the optimum."""
        found = offload_optimum(problem.profile, budget=problem.budget, link=problem.link)
        return OffloadClaim(
            schedule=found.schedule, makespan=found.makespan, lower_bound=found.makespan
        )


@dataclass(frozen=True, slots=True)
class _OffloadBaseline:
    """A baseline as a method that proves nothing."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return the schedule of the baseline, with its makespan and no bound."""
        problem.require_feasible()
        schedule = OFFLOAD_BASELINES[self.name](problem)
        if schedule is None:
            raise SolverLimitError("out of memory with all settings")
        replay = simulate_offload(
            problem.profile, schedule, budget=problem.budget, link=problem.link
        )
        return OffloadClaim(schedule=schedule, makespan=replay.makespan, lower_bound=0)


def _exact(
    method: MIP | CPSAT, transfers: Transfers, most_stages: int, every: int
) -> OffloadMethodUnderTest:
    return OffloadMethodUnderTest(
        method=IntegerProgramOffload(method, alone=True),
        transfers=transfers,
        most_stages=most_stages,
        every=every,
        takes_any_link=transfers is Transfers.INTEGRAL,
    )


def _on_simple_links(
    method: OffloadMethod, transfers: Transfers, most_stages: int = 14
) -> OffloadMethodUnderTest:
    return OffloadMethodUnderTest(
        method=method, transfers=transfers, most_stages=most_stages, takes_any_link=False
    )


TESTED_OFFLOAD_METHODS: Final[tuple[OffloadMethodUnderTest, ...]] = (
    OffloadMethodUnderTest(method=Heuristics(), transfers=Transfers.INTEGRAL, most_stages=14),
    OffloadMethodUnderTest(
        method=Heuristics(exhaustive_up_to=0), transfers=Transfers.INTEGRAL, most_stages=7
    ),
    *(
        OffloadMethodUnderTest(
            method=_OffloadBaseline(name), transfers=Transfers.INTEGRAL, most_stages=14, every=2
        )
        for name in OFFLOAD_BASELINES
    ),
    _on_simple_links(Greedy(), Transfers.FRACTIONAL),
    _on_simple_links(Algorithm1(), Transfers.INTERRUPTIBLE, 9),
    _on_simple_links(Algorithm1(slots=100), Transfers.INTERRUPTIBLE),
    OffloadMethodUnderTest(
        method=_ExhaustiveOffloadSearch(), transfers=Transfers.INTEGRAL, most_stages=4, every=4
    ),
    _exact(CPSAT(time_limit_s=3.0), Transfers.INTEGRAL, 6, 4),
    _exact(MIP(time_limit_s=20.0), Transfers.INTEGRAL, 4, 8),
    _exact(MIP(time_limit_s=20.0), Transfers.INTERRUPTIBLE, 5, 8),
    _exact(MIP(time_limit_s=20.0), Transfers.FRACTIONAL, 7, 8),
)
"""Quick methods on every instance, exhaustive and exact ones on samples of short chains."""


OffloadAnswer: TypeAlias = TransferAnswer[OffloadMethodUnderTest, OffloadClaim, OffloadSolution]
"""The answer of one method about one instance."""
OffloadCheck: TypeAlias = CrossCheck[OffloadInstance, OffloadAnswer, OffloadMethodUnderTest]
"""One instance with the answers of all methods."""


def offload_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    methods: Sequence[OffloadMethodUnderTest] = TESTED_OFFLOAD_METHODS,
    workers: int = 1,
) -> Iterator[OffloadCheck]:
    """Check the instances `numbers` of `seed`; the results come in their order.

    Example:
        >>> [check.reason for check in offload_checks(range(3), seed=0)]
        ['', '', '']
    """
    return in_batches(numbers, partial(_check_all, seed, tuple(methods)), workers)


def _check_all(
    seed: int, methods: Sequence[OffloadMethodUnderTest], numbers: Sequence[int]
) -> list[OffloadCheck]:
    return [_check(number, random_offload(seed, number), methods) for number in numbers]


def _check(
    number: int, instance: OffloadInstance, methods: Sequence[OffloadMethodUnderTest]
) -> OffloadCheck:
    taking = [tested for tested in methods if tested.takes(number, instance)]
    answers = tuple(_checked_answer(tested, instance) for tested in taking)
    reason, between = find_offload_contradiction(answers)
    return CrossCheck(
        number=number, instance=instance, answers=answers, reason=reason, between=between
    )


def _checked_answer(tested: OffloadMethodUnderTest, instance: OffloadInstance) -> OffloadAnswer:
    """Run a method, replay its claim, and check a least budget that it names."""

    def answer_at(budget: int) -> OffloadAnswer:
        return _certified_answer(tested, replace(instance, budget=budget))

    answer = answer_at(instance.budget)
    return replace(
        answer, refusal=required_budget_error(answer, tested.name, instance.budget, answer_at)
    )


def _certified_answer(tested: OffloadMethodUnderTest, instance: OffloadInstance) -> OffloadAnswer:
    problem = OffloadProblem(instance.profile, instance.budget, instance.link, tested.transfers)

    def certified(claim: OffloadClaim) -> OffloadSolution:
        return certify_offload(
            problem,
            claim,
            bound=fractional_optimum(problem),
            method=tested.name,
            solve_seconds=0.0,
        )

    return run_and_certify(tested, lambda: tested.method(problem), certified)


def find_offload_contradiction(
    answers: Sequence[OffloadAnswer],
) -> tuple[str, tuple[OffloadMethodUnderTest, ...]]:
    """Return the first reason why not all `answers` can be right, and the methods behind it."""
    for answer in answers:
        if answer.refusal:
            return answer.refusal, (answer.tested,)
    for one, other in permutations(answers, 2):
        if reason := _contradiction_between(one, other):
            return reason, (one.tested, other.tested)
    return "", ()


def _contradiction_between(one: OffloadAnswer, other: OffloadAnswer) -> str:
    """Return why `other` must be wrong given what `one` shows; empty if both may be right."""
    if (required := other.required) is not None:
        fits = one.solution is not None or (one.required is not None and one.required < required)
        says = f"{other.tested.name} says that nothing fits below {required} bytes"
        return f"{says}, and {one.tested.name} that something does" if fits else ""
    if one.solution is None or other.claim is None:
        return ""
    mine, theirs = one.tested.transfers, other.tested.transfers
    is_within = _BREADTH.index(mine) <= _BREADTH.index(theirs)
    if other.claim.family is Family.OFFLOAD_FIRST:
        is_within = one.claim is not None and mine is theirs and _offloads_first(one.claim)
    if is_within and one.solution.makespan < other.claim.lower_bound:
        return (
            f"{other.tested.name} says that nothing is faster than "
            f"{other.claim.lower_bound}, and {one.tested.name} has a schedule of "
            f"{one.solution.makespan}"
        )
    return ""


def _offloads_first(claim: OffloadClaim) -> bool:
    """Return whether a claim is of the family `Family.OFFLOAD_FIRST`."""
    moves = () if claim.timetable is None else claim.timetable.moves
    found = [move.op for move in moves]
    return found == sorted(
        found,
        key=lambda op: (op.kind, op.stage * (-1 if op.kind is OpKind.PREFETCH_ACTIVATION else 1)),
    )


def minimised_offload(check: OffloadCheck, *, seconds: float = MINIMISING_SECONDS) -> OffloadCheck:
    """Return the same contradiction on a smallest instance, unless time ran out."""
    # The sampling plan is about numbers; methods that disagreed run in any case.
    return minimised_check(
        check, simpler_offload, lambda instance: _check(0, instance, check.between), seconds
    )


def offload_counter_example(check: OffloadCheck, *, seed: int) -> str:
    """Return a JSON document of the contradiction in `check`."""
    transfers = check.between[0].transfers if check.between else Transfers.INTEGRAL
    instance = check.instance
    problem = OffloadProblem(instance.profile, instance.budget, instance.link, transfers)
    claims = {answer.tested.name: answer.claim for answer in check.answers}
    return transfer_counter_example_json(
        check.reason, problem, claims, seed=seed, number=check.number
    )
