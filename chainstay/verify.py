"""How anyone checks our claims: random instances, every method, and the referee.

`checks` draws instances, asks each method that the sampling plan has for them, replays
every claim in the simulator, and holds all answers against each other. The first
contradiction ends it; `minimised` makes its instance as small as it gets, and
`counter_example` writes it down with every claim and replay.

Two answers contradict each other when one shows a schedule that the other has proved not
to exist. What a bound speaks about is its family and its rules for discards, so a
persistent optimum may be slower than the optimum of all schedules, but never faster.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, NamedTuple

from chainstay import documents
from chainstay.dp import DP
from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.domains import is_complete
from chainstay.instances import ChainInstance, random_chain, simpler
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Solution
from chainstay.validation import search
from chainstay.validation.certify import certify
from chainstay.validation.simulate import simulate

__all__ = [
    "CONTESTANTS",
    "Answer",
    "Check",
    "Contestant",
    "Contradiction",
    "Search",
    "Tally",
    "checks",
    "contradiction",
    "counter_example",
    "minimised",
]

_BREADTH: Final = (Family.PERSISTENT, Family.SINGLE_SWEEP, Family.ALL)
"""Families, each within the next."""
_MINIMISING_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Search:
    """Exhaustive search as a method."""

    discards: Discards = Discards.TABLE1

    def __str__(self) -> str:
        return f"search ({self.discards})"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """As `Method`; no hint is needed."""
        del hint
        return search.optimum(profile, budget, discards=self.discards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """A method, what it looks for, and which instances it is asked about.

    Attributes:
        method: To ask.
        finds: The family that its schedules belong to.
        discards: The rules that they keep.
        most_stages: It gets chains of at most this length.
        every: Of those, one in so many.
    """

    method: Method
    finds: Family
    discards: Discards = Discards.TABLE1
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
        return f"{which}, n ≤ {self.most_stages}"

    def is_asked(self, number: int, stages: int) -> bool:
        """Whether the plan has this method for instance `number`."""
        return stages <= self.most_stages and number % self.every == 0

    def searched(self, profile: ChainProfile) -> Family:
        """The family of which "infeasible" speaks."""
        if self.finds is Family.SINGLE_SWEEP and is_complete(profile, self.discards):
            return Family.ALL
        return self.finds


CONTESTANTS: Final[tuple[Contestant, ...]] = (
    Contestant(method=DP(), finds=Family.PERSISTENT, most_stages=20),
    Contestant(method=DP(slots=1500), finds=Family.PERSISTENT, most_stages=8),
    *(
        contestant
        for rules in Discards
        for contestant in (
            Contestant(
                method=CPSAT(discards=rules, time_limit_s=20.0),
                finds=Family.SINGLE_SWEEP,
                discards=rules,
                most_stages=6,
                every=4,
            ),
            Contestant(
                method=MIP(discards=rules, time_limit_s=20.0),
                finds=Family.SINGLE_SWEEP,
                discards=rules,
                most_stages=5,
                every=16,
            ),
            Contestant(
                method=Search(rules), finds=Family.ALL, discards=rules, most_stages=5, every=16
            ),
        )
    ),
)
"""The sampling plan: cheap methods on every chain, dear ones on samples of short chains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a method said about an instance, and what the referee made of it.

    Attributes:
        contestant: Who was asked.
        covers: The family of which its bound or its "infeasible" speaks.
        seconds: Wall time.
        claim: Its word, if it had a schedule.
        solution: The same, once the referee agreed.
        required: The least budget in bytes, if it said that nothing fits.
        refusal: Why the answer cannot be right, by itself.
    """

    contestant: Contestant
    covers: Family
    seconds: float
    claim: Claim | None = None
    solution: Solution | None = None
    required: int | None = None
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Answers that cannot all be right.

    Attributes:
        reason: In one sentence.
        between: Who gave them.
    """

    reason: str
    between: tuple[Contestant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One instance, checked."""

    number: int
    instance: ChainInstance
    answers: tuple[Answer, ...]
    contradiction: Contradiction | None


@dataclass(slots=True)
class Tally:
    """What the answers of one contestant add up to."""

    instances: int = 0
    optimal: int = 0
    infeasible: int = 0
    worst_gap: float = 0.0
    seconds: float = 0.0

    def add(self, answer: Answer) -> None:
        """Count one more answer."""
        self.instances += 1
        self.seconds += answer.seconds
        self.infeasible += answer.required is not None
        if answer.solution is not None:
            self.optimal += answer.solution.is_optimal
            self.worst_gap = max(self.worst_gap, answer.solution.gap)


def checks(
    numbers: Iterable[int], *, seed: int, contestants: Sequence[Contestant] = CONTESTANTS
) -> Iterator[Check]:
    """Check the instances `numbers` of `seed`, one after another.

    Example:
        >>> [check.contradiction for check in checks(range(3), seed=0)]
        [None, None, None]
    """
    for number in numbers:
        instance = random_chain(seed, number)
        stages = len(instance.profile)
        asked = [each for each in contestants if each.is_asked(number, stages)]
        try:
            answers = tuple(_ask(contestant, instance) for contestant in asked)
        except Exception as error:
            error.add_note(f"while checking instance {number} of seed {seed}")
            raise
        yield Check(
            number=number,
            instance=instance,
            answers=answers,
            contradiction=contradiction(answers),
        )


def contradiction(answers: Sequence[Answer]) -> Contradiction | None:
    """The first reason why not all `answers` to one instance can be right."""
    for answer in answers:
        if answer.refusal:
            return Contradiction(reason=answer.refusal, between=(answer.contestant,))
    for one, other in permutations(answers, 2):
        reason = _disproof(one, other) if _is_within(one, other) else ""
        if reason:
            return Contradiction(reason=reason, between=(one.contestant, other.contestant))
    return None


def minimised(
    instance: ChainInstance,
    between: Sequence[Contestant],
    *,
    seconds: float = _MINIMISING_SECONDS,
) -> ChainInstance:
    """A smallest instance on which the contestants `between` still contradict each other.

    Nothing simpler, by `chainstay.instances.simpler`, makes them; unless time ran out.
    """
    deadline = time.monotonic() + seconds

    def fails(candidate: ChainInstance) -> bool:
        answers = [_ask(contestant, candidate) for contestant in between]
        return time.monotonic() < deadline and contradiction(answers) is not None

    while (smaller := next(filter(fails, simpler(instance)), None)) is not None:
        instance = smaller
    return instance


def counter_example(check: Check, *, seed: int, instance: ChainInstance) -> str:
    """A JSON document of the contradiction in `check`, shown on a smaller `instance` of it."""
    assert check.contradiction is not None, "there is nothing to write about"
    answers = [_ask(contestant, instance) for contestant in check.contradiction.between]
    found = contradiction(answers) or check.contradiction
    body = {
        "problem": "chain",
        "reason": found.reason,
        "seed": seed,
        "number": check.number,
        "budget": instance.budget,
        "profile": instance.profile.to_json(),
        "answers": [_answer_fields(answer, instance) for answer in answers],
    }
    return documents.dump("counter-example", 1, body)


def _ask(contestant: Contestant, instance: ChainInstance) -> Answer:
    """Ask about `instance`, replay the claim, and hold the method to a least budget it names."""
    start = time.perf_counter()
    covers, claim, solution, required, refusal = _answer(contestant, instance)
    if required is not None and not refusal:
        roomier = ChainInstance(profile=instance.profile, budget=required)
        again = _answer(contestant, roomier)
        if required <= instance.budget or again.required is not None or again.refusal:
            refusal = (
                f"{contestant.name}: nothing fits in {instance.budget} bytes, it says, and "
                f"{required} would do, which is not so {again.refusal}"
            )
    return Answer(
        contestant=contestant,
        covers=covers,
        seconds=time.perf_counter() - start,
        claim=claim,
        solution=solution,
        required=required,
        refusal=refusal,
    )


class _Bare(NamedTuple):
    """An answer before anyone looks at it."""

    covers: Family
    claim: Claim | None = None
    solution: Solution | None = None
    required: int | None = None
    refusal: str = ""


def _answer(contestant: Contestant, instance: ChainInstance) -> _Bare:
    profile, budget = instance.profile, instance.budget
    searched, claim = contestant.searched(profile), None
    try:
        claim = contestant.method(profile, budget)
        solution = certify(profile, claim, budget=budget, method=contestant.name, solve_seconds=0.0)
    except InfeasibleBudgetError as infeasible:
        return _Bare(searched, required=infeasible.required)
    except SolverLimitError:
        return _Bare(searched)
    except ChainstayError as error:
        return _Bare(searched, claim, refusal=str(error))
    return _Bare(claim.family, claim, solution)


def _is_within(one: Answer, other: Answer) -> bool:
    """Whether all that `one` may find is among what `other` makes statements about."""
    finds, rules = one.contestant.finds, one.contestant.discards
    return _BREADTH.index(finds) <= _BREADTH.index(other.covers) and (
        rules is other.contestant.discards
        # Whatever is kept until its backward is kept under all rules; free ones allow all.
        or finds is Family.PERSISTENT
        or (other.contestant.discards is Discards.FREE and other.covers is Family.ALL)
    )


def _disproof(one: Answer, other: Answer) -> str:
    """Why `other` is wrong, given what `one` has found; empty if it may be right."""
    this, that = one.contestant.name, other.contestant.name
    if one.solution and other.required is not None:
        return f"{that} says that nothing fits, and {this} has a schedule that does"
    if one.solution and other.solution and one.solution.makespan < other.solution.lower_bound:
        return (
            f"{that} says that nothing is faster than {other.solution.lower_bound} ns, and "
            f"{this} has a schedule of {one.solution.makespan} ns"
        )
    if one.required is not None and other.required is not None and one.required < other.required:
        return (
            f"{that} says that nothing fits in less than {other.required} bytes, and {this} "
            f"has a schedule for {one.required}"
        )
    return ""


def _answer_fields(answer: Answer, instance: ChainInstance) -> dict[str, object]:
    """An answer, for a document."""
    fields: dict[str, object] = {"method": answer.contestant.name, "refusal": answer.refusal}
    if answer.required is not None:
        fields["required"] = answer.required
    if answer.claim is not None:
        claim = answer.claim
        fields |= {
            "schedule": str(claim.schedule),
            "makespan": claim.makespan,
            "lower_bound": claim.lower_bound,
            "family": claim.family,
            "discards": claim.discards,
            "replay": _replay_fields(claim, instance.profile),
        }
    return fields


def _replay_fields(claim: Claim, profile: ChainProfile) -> dict[str, object]:
    try:
        replay = simulate(profile, claim.schedule, discards=claim.discards)
    except InvalidScheduleError as error:
        return {"invalid": error.reason}
    return {"makespan": replay.makespan, "peak_bytes": replay.peak_bytes}
