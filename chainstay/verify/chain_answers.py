"""Run a method on a chain, replay its claim, and compare answers with each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import NamedTuple

from chainstay.dp import unrestricted_bound
from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.instances import ChainInstance
from chainstay.problems.consistency import MethodResult, contradiction_between
from chainstay.solution import Claim, Solution
from chainstay.validation.certify import certify
from chainstay.verify.chain_methods import MethodUnderTest

__all__ = ["CheckedAnswer", "Contradiction", "check_method", "find_contradiction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAnswer:
    """The answer of one method about one chain, and what the simulator found.

    Attributes:
        tested: The method.
        result: The answer itself.
        seconds: Wall time, in seconds.
        solution: The claim as a solution, if the simulator confirmed it.
        refusal: Reason why the answer cannot be right, by itself; empty if there is none.
    """

    tested: MethodUnderTest
    result: MethodResult
    seconds: float
    solution: Solution | None = None
    refusal: str = ""

    @property
    def required(self) -> int | None:
        """The least budget in bytes, if the method said that nothing fits."""
        return self.result.required


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Answers that cannot all be right.

    Attributes:
        reason: One sentence that says why.
        between: The methods that gave them.
    """

    reason: str
    between: tuple[MethodUnderTest, ...]


def check_method(tested: MethodUnderTest, instance: ChainInstance) -> CheckedAnswer:
    """Run a method on `instance`, replay its claim, and check a least budget that it names."""
    start = time.perf_counter()
    statement, solution, refusal = _simulated(tested, instance)
    required = statement.required
    if required is not None and not refusal:
        roomier = ChainInstance(profile=instance.profile, budget=required)
        again = _simulated(tested, roomier)
        if required <= instance.budget or again.result.required is not None or again.refusal:
            refusal = (
                f"{tested.name} reports that nothing fits in {instance.budget} bytes and that "
                f"{required} bytes would do, which is wrong: {again.refusal or 'it does not'}"
            )
    return CheckedAnswer(
        tested=tested,
        result=statement,
        seconds=time.perf_counter() - start,
        solution=solution,
        refusal=refusal,
    )


def find_contradiction(answers: Sequence[CheckedAnswer]) -> Contradiction | None:
    """Return the first reason why not all `answers` to one instance can be right."""
    for answer in answers:
        if answer.refusal:
            return Contradiction(reason=answer.refusal, between=(answer.tested,))
    for one, other in permutations(answers, 2):
        if reason := contradiction_between(one.result, other.result):
            return Contradiction(reason=reason, between=(one.tested, other.tested))
    return None


class _SimulatedResult(NamedTuple):
    """The result of a method and what the simulator found."""

    result: MethodResult
    solution: Solution | None = None
    refusal: str = ""


def _simulated(tested: MethodUnderTest, instance: ChainInstance) -> _SimulatedResult:
    profile, budget = instance.profile, instance.budget
    claim: Claim | None = None
    try:
        claim = tested.method(profile, budget)
        solution = certify(profile, claim, budget=budget, method=tested.name, solve_seconds=0.0)
    except InfeasibleBudgetError as infeasible:
        return _SimulatedResult(_method_result(tested, instance, required=infeasible.required))
    except SolverLimitError:
        return _SimulatedResult(_method_result(tested, instance))
    except ChainstayError as error:
        return _SimulatedResult(_method_result(tested, instance, claim), refusal=str(error))
    refusal = ""
    if (bound := unrestricted_bound(profile, budget)) > solution.makespan:
        refusal = f"no schedule takes less than {bound} ns, yet this takes {solution.makespan}"
    return _SimulatedResult(_method_result(tested, instance, claim), solution, refusal)


def _method_result(
    tested: MethodUnderTest,
    instance: ChainInstance,
    claim: Claim | None = None,
    required: int | None = None,
) -> MethodResult:
    return MethodResult(
        method=tested.name,
        schedule_scope=tested.scope,
        bound_scope=claim.scope if claim else tested.infeasibility_scope(instance.profile),
        claim=claim,
        required=required,
    )
