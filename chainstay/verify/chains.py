"""Chains verified: recomputing without transfers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from chainstay.dp import DP
from chainstay.dp.free_discards.solver import keeps_stages_apart
from chainstay.formulations import CPSAT, MIP
from chainstay.problems import ChainProblem
from chainstay.problems.exactness import is_complete
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family, Scope, Solution
from chainstay.solve.chain import certify_chain
from chainstay.validation import search
from chainstay.validation.persistent_search import persistent_optimum
from chainstay.verify.chain_instances import random_chain
from chainstay.verify.cross_check import Answer, MethodUnderTest, NamedFunction, Suite
from chainstay.verify.option_instances import random_chain_with_options


def exhaustive_search(discards: Discards = Discards.TABLE1) -> NamedFunction:
    """Return exhaustive search as a method."""
    return NamedFunction(f"search ({discards})", partial(search.optimum, discards=discards))


def _exact(
    method: type[CPSAT | MIP], only: str, *, most_stages: int, every: int = 1
) -> Iterator[MethodUnderTest]:
    """Yield an exact solver under all rules for discards."""
    for rules in Discards:
        yield MethodUnderTest(
            method=method(discards=rules, time_limit_s=20.0),
            family=Family.SINGLE_SWEEP,
            discards=rules,
            complete_under=(rules,),
            most_stages=most_stages,
            every=every,
            only=(only,) if rules is Discards.TABLE1 else (only, "no environments"),
        )


CHAIN_METHODS: Final = (
    MethodUnderTest(method=DP(), family=Family.PERSISTENT, most_stages=20),
    MethodUnderTest(
        method=DP(slots=1500), family=Family.PERSISTENT, most_stages=8, only=("plain",)
    ),
    MethodUnderTest(
        method=NamedFunction("search (persistent)", persistent_optimum),
        family=Family.PERSISTENT,
        most_stages=4,
    ),
    MethodUnderTest(
        method=DP(persistence="weak"),
        family=Family.WEAKLY_PERSISTENT,
        complete_under=(Discards.TABLE1, Discards.TAPE),
        most_stages=20,
        only=("no skips", "no environments"),
    ),
    *(
        MethodUnderTest(
            method=DP(discards=rules),
            family=Family.PERSISTENT,
            discards=rules,
            most_stages=20,
            only=("stages apart", "no environments"),
        )
        for rules in (Discards.TAPE, Discards.FREE)
    ),
    *_exact(CPSAT, "plain", most_stages=6, every=4),
    *_exact(MIP, "plain", most_stages=5, every=16),
    *(
        MethodUnderTest(
            method=exhaustive_search(rules),
            discards=rules,
            most_stages=5,
            every=16,
            only=("plain",),
        )
        for rules in Discards
    ),
    *(
        MethodUnderTest(
            method=exhaustive_search(rules),
            discards=rules,
            most_stages=3,
            only=("options", "no environments"),
        )
        for rules in Discards
    ),
    *_exact(CPSAT, "options", most_stages=4),
    *_exact(MIP, "options", most_stages=3),
)
"""Cheap methods on every chain, expensive ones on samples of short chains."""

_WITH_OPTIONS: Final = 3
"""Remainder of the numbers of chains with options: no number of a sample, which divide by 4."""


@dataclass(frozen=True)
class ChainSuite(Suite):
    """Chains with and without skips; every fourth has stages with options."""

    methods: tuple[MethodUnderTest, ...] = CHAIN_METHODS
    noun: ClassVar[str] = "chains"

    def instance(self, seed: int, number: int) -> ChainProblem:
        """Return instance `number` of `seed`."""
        draw = random_chain_with_options if number % 4 == _WITH_OPTIONS else random_chain
        return draw(seed, number)

    def meets(self, restriction: str, problem: Any) -> bool:
        """Return whether a chain is in the part of all that a restriction names."""
        profile: ChainProfile = problem.profile
        return {
            "plain": profile.is_plain,
            "options": not profile.is_plain,
            "no skips": not profile.skips,
            "no environments": not profile.has_environments,
            "stages apart": keeps_stages_apart(profile),
        }[restriction]

    def ask(self, tested: MethodUnderTest, problem: Any) -> Claim:
        """Run a method."""
        claim: Claim = tested.method(problem.profile, problem.budget)
        return claim

    def certify(self, tested: MethodUnderTest, problem: Any, claim: Claim) -> Solution:
        """Return the claim as a solution; no schedule may be below the bound on all of them."""
        return certify_chain(problem, claim, method=tested.name)

    def covers(self, other: Answer, one: Answer) -> bool:
        """Return whether the scope of `other` includes that of `one`."""
        return self.scope(other).includes(Scope(one.tested.family, one.tested.discards))

    @staticmethod
    def scope(answer: Answer) -> Scope:
        """Return the class of schedules that a bound, or "nothing fits", covers."""
        tested, claim = answer.tested, answer.claim
        if isinstance(claim, Claim):
            return claim.scope
        assert isinstance(answer.problem, ChainProblem), "this suite is about chains"
        for rules in tested.complete_under:
            if is_complete(answer.problem.profile, rules):
                return Scope(Family.ALL, rules)
        return Scope(tested.family, tested.discards)
