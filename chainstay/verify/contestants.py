"""The sampling plan: who is asked about which chains, and what each of them promises."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chainstay.dp import DP
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.domains import is_complete
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method, Scope
from chainstay.validation import search

__all__ = ["CONTESTANTS", "Contestant", "Search"]


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
        complete_under: Rules for discards under which, by its promise, its optimum is that of
            all schedules, on chains where `is_complete` holds; the strictest rules first.
        most_stages: It gets chains of at most this length.
        every: Of those, one in so many.
        takes_skips: Whether it gets chains with skips.
    """

    method: Method
    finds: Family
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
    def plan(self) -> str:
        """Which instances it is asked about, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        skips = "" if self.takes_skips else ", no skips"
        return f"{which}, n ≤ {self.most_stages}{skips}"

    @property
    def found(self) -> Scope:
        """Where all its schedules lie."""
        return Scope(self.finds, self.discards)

    def is_asked(self, number: int, profile: ChainProfile) -> bool:
        """Whether the plan has this method for instance `number`, which has this chain."""
        can_take = len(profile) <= self.most_stages and (self.takes_skips or not profile.skips)
        return can_take and number % self.every == 0

    def searched(self, profile: ChainProfile) -> Scope:
        """The schedules of which "nothing fits" speaks."""
        complete = (rules for rules in self.complete_under if is_complete(profile, rules))
        return next((Scope(Family.ALL, rules) for rules in complete), self.found)


CONTESTANTS: Final[tuple[Contestant, ...]] = (
    Contestant(method=DP(), finds=Family.PERSISTENT, most_stages=20),
    Contestant(method=DP(slots=1500), finds=Family.PERSISTENT, most_stages=8),
    Contestant(
        method=DP(persistence="weak"),
        finds=Family.WEAKLY_PERSISTENT,
        complete_under=(Discards.TABLE1, Discards.TAPE),
        most_stages=20,
        takes_skips=False,
    ),
    Contestant(
        method=DP(discards=Discards.FREE),
        finds=Family.PERSISTENT,
        discards=Discards.FREE,
        most_stages=20,
    ),
    Contestant(
        method=DP(persistence="weak", discards=Discards.FREE),
        finds=Family.WEAKLY_PERSISTENT,
        discards=Discards.FREE,
        most_stages=20,
        every=4,
        takes_skips=False,
    ),
    *(
        contestant
        for rules in Discards
        for contestant in (
            Contestant(
                method=CPSAT(discards=rules, time_limit_s=20.0),
                finds=Family.SINGLE_SWEEP,
                discards=rules,
                complete_under=(rules,),
                most_stages=6,
                every=4,
            ),
            Contestant(
                method=MIP(discards=rules, time_limit_s=20.0),
                finds=Family.SINGLE_SWEEP,
                discards=rules,
                complete_under=(rules,),
                most_stages=5,
                every=16,
            ),
            Contestant(
                method=Search(rules), finds=Family.ALL, discards=rules, most_stages=5, every=16
            ),
        )
    ),
)
"""Cheap methods on every chain, dear ones on samples of short chains."""
