"""The problem of a chain: recompute within a budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from chainstay.errors import InvalidProfileError
from chainstay.problems.problem import Problem
from chainstay.problems.simpler import simpler_chains, smaller
from chainstay.profiles import ChainProfile
from chainstay.profiles.quantities import with_numbers


@dataclass(frozen=True, slots=True)
class ChainProblem(Problem):
    """A chain and a budget in bytes; the rules for discards are those of a claim about it."""

    profile: ChainProfile
    kind: ClassVar[str] = "chain"

    def simpler(self) -> Iterator[Self]:
        """Yield problems with a stage or skip less, halves of all sizes or times, a number less."""
        profile = self.profile
        for chain in simpler_chains(profile):
            if len(chain) + len(chain.skips) < len(profile) + len(profile.skips):
                yield replace(self, profile=chain)
        with suppress(InvalidProfileError):
            sizes = with_numbers(profile, "bytes", _half)
            if self.budget > 1:
                yield replace(self, profile=sizes, budget=self.budget // 2)
        if (times := with_numbers(profile, "time", _half)) != profile:
            yield replace(self, profile=times)
        for budget in filter(None, smaller(self.budget)):
            yield replace(self, budget=budget)
        for chain in simpler_chains(profile):
            if len(chain) + len(chain.skips) == len(profile) + len(profile.skips):
                yield replace(self, profile=chain)


def _half(number: int) -> int:
    return number // 2
