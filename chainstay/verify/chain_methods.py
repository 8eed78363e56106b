"""The sampling plan: which methods run on which chains, and what each of them promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chainstay.dp import DP
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.chain.exactness_conditions import is_complete
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Scope
from chainstay.validation import search

__all__ = ["TESTED_METHODS", "ExhaustiveChainSearch", "MethodUnderTest"]


@dataclass(frozen=True, slots=True)
class ExhaustiveChainSearch:
    """Exhaustive search as a method."""

    discards: Discards = Discards.TABLE1

    def __str__(self) -> str:
        return f"search ({self.discards})"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the optimum; no hint is needed."""
        del hint
        return search.optimum(profile, budget, discards=self.discards)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodUnderTest:
    """A method, the class of schedules that it searches, and the instances that it is run on.

    Attributes:
        method: The method.
        family: The family that its schedules belong to.
        discards: The rules that they keep.
        complete_under: Rules for discards under which, by its promise, its optimum is that of
            all schedules, on chains where `is_complete` holds; the strictest rules first.
        most_stages: Length of the longest chains that it is run on.
        every: It is run on one in so many of those.
        takes_skips: Whether it is run on chains with skips.
    """

    method: Method
    family: Family
    discards: Discards = Discards.TABLE1
    complete_under: tuple[Discards, ...] = ()
    most_stages: int
    every: int = 1
    takes_skips: bool = True

    @property
    def name(self) -> str:
        """The method and its settings."""
        return str(self.method)

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        skips = "" if self.takes_skips else ", no skips"
        return f"{which}, n ≤ {self.most_stages}{skips}"

    @property
    def scope(self) -> Scope:
        """The class in which all its schedules lie."""
        return Scope(self.family, self.discards)

    def takes(self, number: int, profile: ChainProfile) -> bool:
        """Return whether the plan runs this method on instance `number`, which has this chain."""
        can_take = len(profile) <= self.most_stages and (self.takes_skips or not profile.skips)
        return can_take and number % self.every == 0

    def infeasibility_scope(self, profile: ChainProfile) -> Scope:
        """Return the class of schedules that its "nothing fits" covers."""
        complete = (rules for rules in self.complete_under if is_complete(profile, rules))
        return next((Scope(Family.ALL, rules) for rules in complete), self.scope)


TESTED_METHODS: Final[tuple[MethodUnderTest, ...]] = (
    MethodUnderTest(method=DP(), family=Family.PERSISTENT, most_stages=20),
    MethodUnderTest(method=DP(slots=1500), family=Family.PERSISTENT, most_stages=8),
    MethodUnderTest(
        method=DP(persistence="weak"),
        family=Family.WEAKLY_PERSISTENT,
        complete_under=(Discards.TABLE1, Discards.TAPE),
        most_stages=20,
        takes_skips=False,
    ),
    MethodUnderTest(
        method=DP(discards=Discards.FREE),
        family=Family.PERSISTENT,
        discards=Discards.FREE,
        most_stages=20,
    ),
    *(
        tested
        for rules in Discards
        for tested in (
            MethodUnderTest(
                method=CPSAT(discards=rules, time_limit_s=20.0),
                family=Family.SINGLE_SWEEP,
                discards=rules,
                complete_under=(rules,),
                most_stages=6,
                every=4,
            ),
            MethodUnderTest(
                method=MIP(discards=rules, time_limit_s=20.0),
                family=Family.SINGLE_SWEEP,
                discards=rules,
                complete_under=(rules,),
                most_stages=5,
                every=16,
            ),
            MethodUnderTest(
                method=ExhaustiveChainSearch(rules),
                family=Family.ALL,
                discards=rules,
                most_stages=5,
                every=16,
            ),
        )
    ),
)
"""Cheap methods on every chain, expensive ones on samples of short chains."""
