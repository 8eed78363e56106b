"""Ask a method about an instance, replay its claim, and hold answers against each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from chainstay.dp import unrestricted_bound
from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.evidence import Statement, disproof
from chainstay.instances import ChainInstance
from chainstay.solution import Claim, Solution
from chainstay.validation.certify import certify
from chainstay.verify.contestants import Contestant

__all__ = ["Answer", "Contradiction", "ask", "contradiction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a method said about an instance, and what the referee made of it.

    Attributes:
        contestant: Who was asked.
        statement: Its word.
        seconds: Wall time.
        solution: Its claim, once the referee agreed.
        refusal: Why the answer cannot be right, by itself.
    """

    contestant: Contestant
    statement: Statement
    seconds: float
    solution: Solution | None = None
    refusal: str = ""

    @property
    def required(self) -> int | None:
        """The least budget, if it said that nothing fits."""
        return self.statement.required


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Answers that cannot all be right.

    Attributes:
        reason: In one sentence.
        between: Who gave them.
    """

    reason: str
    between: tuple[Contestant, ...]


def ask(contestant: Contestant, instance: ChainInstance) -> Answer:
    """Ask about `instance`, replay the claim, and hold the method to a least budget it names."""
    start = time.perf_counter()
    statement, solution, refusal = _judged(contestant, instance)
    required = statement.required
    if required is not None and not refusal:
        roomier = ChainInstance(profile=instance.profile, budget=required)
        again = _judged(contestant, roomier)
        if required <= instance.budget or again.statement.required is not None or again.refusal:
            refusal = (
                f"{contestant.name}: nothing fits in {instance.budget} bytes, it says, and "
                f"{required} would do, which is not so {again.refusal}"
            )
    return Answer(
        contestant=contestant,
        statement=statement,
        seconds=time.perf_counter() - start,
        solution=solution,
        refusal=refusal,
    )


def contradiction(answers: Sequence[Answer]) -> Contradiction | None:
    """The first reason why not all `answers` to one instance can be right."""
    for answer in answers:
        if answer.refusal:
            return Contradiction(reason=answer.refusal, between=(answer.contestant,))
    for one, other in permutations(answers, 2):
        if reason := disproof(one.statement, other.statement):
            return Contradiction(reason=reason, between=(one.contestant, other.contestant))
    return None


class _Judged(NamedTuple):
    """A statement and what the referee says to it."""

    statement: Statement
    solution: Solution | None = None
    refusal: str = ""


def _judged(contestant: Contestant, instance: ChainInstance) -> _Judged:
    profile, budget = instance.profile, instance.budget
    claim: Claim | None = None
    try:
        claim = contestant.method(profile, budget)
        solution = certify(profile, claim, budget=budget, method=contestant.name, solve_seconds=0.0)
    except InfeasibleBudgetError as infeasible:
        return _Judged(_statement(contestant, instance, required=infeasible.required))
    except SolverLimitError:
        return _Judged(_statement(contestant, instance))
    except ChainstayError as error:
        return _Judged(_statement(contestant, instance, claim), refusal=str(error))
    refusal = ""
    if (bound := unrestricted_bound(profile, budget)) > solution.makespan:
        refusal = f"no schedule takes less than {bound} ns, yet this takes {solution.makespan}"
    return _Judged(_statement(contestant, instance, claim), solution, refusal)


def _statement(
    contestant: Contestant,
    instance: ChainInstance,
    claim: Claim | None = None,
    required: int | None = None,
) -> Statement:
    return Statement(
        method=contestant.name,
        finds=contestant.found,
        covers=claim.scope if claim else contestant.searched(instance.profile),
        claim=claim,
        required=required,
    )
