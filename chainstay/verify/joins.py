"""Joins verified: those in bytes, and those of the unit-slot model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from chainstay.baselines.join import equivalent_chain
from chainstay.dp import DP
from chainstay.dp.join import waterfilling_bound
from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.join import AssignCuts
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.profiles import HomogeneousJoin
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Scope, Solution
from chainstay.solve.join import join_claim
from chainstay.validation.certify import certify
from chainstay.validation.join.search import join_optimum
from chainstay.validation.join.simulate import simulate_join
from chainstay.verify.cross_check import Answer, MethodUnderTest, NamedFunction, Suite
from chainstay.verify.join_instances import random_join


def _equivalent_chain_claim(
    profile: HomogeneousJoin, budget: int, *, keep: tuple[bool, ...]
) -> Claim:
    """Return the schedule of EQUIV-CHAIN, without a bound, where no gradient is to be kept."""
    if any(keep):
        raise SolverLimitError("the equivalent chain drops all gradients of inputs")
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


_SEARCH: Final = NamedFunction("search", join_optimum)
_EQUIVALENT_CHAIN: Final = NamedFunction("equivalent chain", _equivalent_chain_claim)

JOIN_METHODS: Final = (
    MethodUnderTest(method=DP(), family=Family.CANONICAL_PERSISTENT, most_stages=30),
    MethodUnderTest(
        method=DP(slots=20), family=Family.CANONICAL_PERSISTENT, most_stages=12, every=2
    ),
    MethodUnderTest(method=_SEARCH, most_stages=6, every=2, only=("plain",)),
    MethodUnderTest(method=_SEARCH, most_stages=4, every=2, only=("options",)),
    MethodUnderTest(
        method=CPSAT(time_limit_s=20.0), family=Family.SINGLE_SWEEP, most_stages=7, every=4
    ),
    MethodUnderTest(
        method=MIP(time_limit_s=20.0), family=Family.SINGLE_SWEEP, most_stages=7, every=8
    ),
    MethodUnderTest(method=AssignCuts(), most_stages=14, every=3, only=("slots", "no tail")),
    MethodUnderTest(method=_EQUIVALENT_CHAIN, most_stages=30, only=("slots", "no tail")),
)
"""Quick methods on every instance, expensive ones on samples of small joins."""


@dataclass(frozen=True)
class JoinSuite(Suite):
    """Joins of both memory models."""

    methods: tuple[MethodUnderTest, ...] = JOIN_METHODS
    noun: ClassVar[str] = "joins"

    instance = staticmethod(random_join)

    def meets(self, restriction: str, problem: Any) -> bool:
        """Return whether a join is in slots, has no tail, or has options or kinds of runs."""
        if restriction == "slots":
            return bool(problem.unit == "slots")
        if restriction in ("plain", "options"):
            is_plain = problem.unit == "slots" or problem.profile.is_plain
            return bool(is_plain == (restriction == "plain"))
        return restriction == "no tail" and not problem.profile.tail_length

    def ask(self, tested: MethodUnderTest, problem: Any) -> Claim:
        """Run a method."""
        return join_claim(tested.method, problem.profile, problem.budget, keep=problem.keep)

    def certify(self, tested: MethodUnderTest, problem: Any, claim: Claim) -> Solution:
        """Return the claim as a solution; in slots, none may be below the waterfilling bound."""
        solution = certify(problem, claim, method=tested.name)
        if problem.unit == "slots":
            bound = waterfilling_bound(problem.profile, problem.budget, keep=problem.keep)
            if bound is None or bound > solution.makespan:
                reason = f"the waterfilling bound is {bound}, yet this takes {solution.makespan}"
                result = MethodResult(method=tested.name, claim=claim)
                raise contradiction_error(f"{tested.name}: {reason}", problem, [result])
        return solution

    def covers(self, other: Answer, one: Answer) -> bool:
        """Return whether the scope of `other` includes that of `one`."""
        claim = other.claim
        scope = claim.scope if isinstance(claim, Claim) else _scope(other)
        return scope.includes(_scope(one))


def _scope(answer: Answer) -> Scope:
    """Return the class of a method's schedules, which its "nothing fits" covers, too."""
    family = answer.tested.family
    profile = answer.problem.profile
    if isinstance(profile, HomogeneousJoin):
        is_by_phases = family is Family.SINGLE_SWEEP and profile.tail_length
        family = Family.SINGLE_SWEEP if is_by_phases else Family.SINGLE_TURN
    return Scope(family, Discards.TAPE)
