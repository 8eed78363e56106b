"""Offloading checked: every method on random instances, replayed, held against the others.

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
from chainstay.offloading import (
    OffloadClaim,
    OffloadMethod,
    OffloadProblem,
    OffloadSolution,
    counter_example,
)
from chainstay.schedule import OpKind
from chainstay.solution import Family
from chainstay.solve.offload import ExactOffload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.validation.certify_offload import certify_offload
from chainstay.validation.transfer_search import optimal_program
from chainstay.validation.transfers import simulate_offload
from chainstay.verify.checking import in_batches
from chainstay.verify.offload_instances import OffloadInstance, random_offload, simpler_offload
from chainstay.verify.rounds import (
    MINIMISING_SECONDS,
    Round,
    TransferAnswer,
    TransferContestant,
    answered,
    held_to_required,
    minimised_round,
)

__all__ = [
    "OFFLOAD_CONTESTANTS",
    "OffloadAnswer",
    "OffloadCheck",
    "OffloadContestant",
    "minimised_offload",
    "offload_checks",
    "offload_contradiction",
    "offload_counter_example",
]

_BREADTH: Final = tuple(Transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContestant(TransferContestant[OffloadMethod]):
    """A `TransferContestant`.

    Attributes:
        takes_any_link: Whether it gets links with latency or two directions.
    """

    takes_any_link: bool = True

    @property
    def plan(self) -> str:
        """Which instances it is asked about, in words."""
        return self.sample + ("" if self.takes_any_link else ", simple link")

    def is_asked(self, number: int, instance: OffloadInstance) -> bool:
        """Whether the plan has this method for instance `number`."""
        link = instance.link
        can_take = self.takes_any_link or not (link.latency or link.is_full_duplex)
        return can_take and self.is_in_plan(number, len(instance.profile))


@dataclass(frozen=True, slots=True)
class _Search:
    """Exhaustive search as a method."""

    def __str__(self) -> str:
        return "search"

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """As `OffloadMethod`."""
        found = optimal_program(problem.profile, budget=problem.budget, link=problem.link)
        return OffloadClaim(
            schedule=found.schedule, makespan=found.makespan, lower_bound=found.makespan
        )


@dataclass(frozen=True, slots=True)
class _Baseline:
    """A baseline as a method that proves nothing."""

    name: str

    def __str__(self) -> str:
        return self.name

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """As `OffloadMethod`."""
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
) -> OffloadContestant:
    return OffloadContestant(
        method=ExactOffload(method, alone=True),
        transfers=transfers,
        most_stages=most_stages,
        every=every,
        takes_any_link=transfers is Transfers.INTEGRAL,
    )


def _program(
    method: OffloadMethod, transfers: Transfers, most_stages: int = 14
) -> OffloadContestant:
    return OffloadContestant(
        method=method, transfers=transfers, most_stages=most_stages, takes_any_link=False
    )


OFFLOAD_CONTESTANTS: Final[tuple[OffloadContestant, ...]] = (
    OffloadContestant(method=Heuristics(), transfers=Transfers.INTEGRAL, most_stages=14),
    OffloadContestant(
        method=Heuristics(every_set_of=0), transfers=Transfers.INTEGRAL, most_stages=7
    ),
    *(
        OffloadContestant(
            method=_Baseline(name), transfers=Transfers.INTEGRAL, most_stages=14, every=2
        )
        for name in OFFLOAD_BASELINES
    ),
    _program(Greedy(), Transfers.FRACTIONAL),
    _program(Algorithm1(), Transfers.INTERRUPTIBLE, 9),
    _program(Algorithm1(slots=100), Transfers.INTERRUPTIBLE),
    OffloadContestant(method=_Search(), transfers=Transfers.INTEGRAL, most_stages=4, every=4),
    _exact(CPSAT(time_limit_s=3.0), Transfers.INTEGRAL, 6, 4),
    _exact(MIP(time_limit_s=20.0), Transfers.INTEGRAL, 4, 8),
    _exact(MIP(time_limit_s=20.0), Transfers.INTERRUPTIBLE, 5, 8),
    _exact(MIP(time_limit_s=20.0), Transfers.FRACTIONAL, 7, 8),
)
"""Quick methods on every instance, exhaustive and exact ones on samples of short chains."""


OffloadAnswer: TypeAlias = TransferAnswer[OffloadContestant, OffloadClaim, OffloadSolution]
"""What one contestant said to one instance."""
OffloadCheck: TypeAlias = Round[OffloadInstance, OffloadAnswer, OffloadContestant]
"""One instance, checked."""


def offload_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    contestants: Sequence[OffloadContestant] = OFFLOAD_CONTESTANTS,
    workers: int = 1,
) -> Iterator[OffloadCheck]:
    """Check the instances `numbers` of `seed`; the results come in their order.

    Example:
        >>> [check.reason for check in offload_checks(range(3), seed=0)]
        ['', '', '']
    """
    return in_batches(numbers, partial(_check_all, seed, tuple(contestants)), workers)


def _check_all(
    seed: int, contestants: Sequence[OffloadContestant], numbers: Sequence[int]
) -> list[OffloadCheck]:
    return [_check(number, random_offload(seed, number), contestants) for number in numbers]


def _check(
    number: int, instance: OffloadInstance, contestants: Sequence[OffloadContestant]
) -> OffloadCheck:
    asked = [each for each in contestants if each.is_asked(number, instance)]
    answers = tuple(_ask(contestant, instance) for contestant in asked)
    reason, between = offload_contradiction(answers)
    return Round(number=number, instance=instance, answers=answers, reason=reason, between=between)


def _ask(contestant: OffloadContestant, instance: OffloadInstance) -> OffloadAnswer:
    """Ask, replay the claim, and hold the method to a least budget that it names."""

    def judged(budget: int) -> OffloadAnswer:
        return _judged(contestant, replace(instance, budget=budget))

    answer = judged(instance.budget)
    return replace(
        answer, refusal=held_to_required(answer, contestant.name, instance.budget, judged)
    )


def _judged(contestant: OffloadContestant, instance: OffloadInstance) -> OffloadAnswer:
    problem = OffloadProblem(instance.profile, instance.budget, instance.link, contestant.transfers)

    def certified(claim: OffloadClaim) -> OffloadSolution:
        return certify_offload(
            problem,
            claim,
            bound=fractional_optimum(problem),
            method=contestant.name,
            solve_seconds=0.0,
        )

    return answered(contestant, lambda: contestant.method(problem), certified)


def offload_contradiction(
    answers: Sequence[OffloadAnswer],
) -> tuple[str, tuple[OffloadContestant, ...]]:
    """The first reason why not all `answers` can be right, and who gave them."""
    for answer in answers:
        if answer.refusal:
            return answer.refusal, (answer.contestant,)
    for one, other in permutations(answers, 2):
        if reason := _disproof(one, other):
            return reason, (one.contestant, other.contestant)
    return "", ()


def _disproof(one: OffloadAnswer, other: OffloadAnswer) -> str:
    """Why `other` is wrong if `one` shows what it says; empty if both may be right."""
    if (required := other.required) is not None:
        fits = one.solution is not None or (one.required is not None and one.required < required)
        says = f"{other.contestant.name} says that nothing fits below {required} bytes"
        return f"{says}, and {one.contestant.name} that something does" if fits else ""
    if one.solution is None or other.claim is None:
        return ""
    mine, theirs = one.contestant.transfers, other.contestant.transfers
    is_within = _BREADTH.index(mine) <= _BREADTH.index(theirs)
    if other.claim.family is Family.OFFLOAD_FIRST:
        is_within = one.claim is not None and mine is theirs and _offloads_first(one.claim)
    if is_within and one.solution.makespan < other.claim.lower_bound:
        return (
            f"{other.contestant.name} says that nothing is faster than "
            f"{other.claim.lower_bound}, and {one.contestant.name} has a schedule of "
            f"{one.solution.makespan}"
        )
    return ""


def _offloads_first(claim: OffloadClaim) -> bool:
    """Whether it is of the family `Family.OFFLOAD_FIRST`."""
    moves = () if claim.timetable is None else claim.timetable.moves
    found = [move.op for move in moves]
    return found == sorted(
        found,
        key=lambda op: (op.kind, op.stage * (-1 if op.kind is OpKind.PREFETCH_ACTIVATION else 1)),
    )


def minimised_offload(check: OffloadCheck, *, seconds: float = MINIMISING_SECONDS) -> OffloadCheck:
    """The same contradiction on a smallest instance, unless time ran out."""
    # The sampling plan is about numbers; who disagreed is asked in any case.
    return minimised_round(
        check, simpler_offload, lambda instance: _check(0, instance, check.between), seconds
    )


def offload_counter_example(check: OffloadCheck, *, seed: int) -> str:
    """A JSON document of the contradiction in `check`."""
    transfers = check.between[0].transfers if check.between else Transfers.INTEGRAL
    instance = check.instance
    problem = OffloadProblem(instance.profile, instance.budget, instance.link, transfers)
    said = {answer.contestant.name: answer.claim for answer in check.answers}
    return counter_example(check.reason, problem, said, seed=seed, number=check.number)
