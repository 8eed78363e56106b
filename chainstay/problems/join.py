"""The problem of a join: recompute within a budget where several chains meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from chainstay.problems.problem import Problem
from chainstay.problems.simpler import simpler_chains, smaller, with_smaller_numbers
from chainstay.profiles import ChainProfile, HomogeneousJoin, Join, JoinProfile
from chainstay.solution import Solution
from chainstay.units import format_time


@dataclass(frozen=True, slots=True)
class JoinProblem(Problem):
    """A join, and a budget in bytes or, for a `HomogeneousJoin`, in slots.

    Attributes:
        keep: For each branch, whether the gradient of its input stays until the end; empty for
            none of them.
    """

    profile: Join
    keep: tuple[bool, ...] = ()
    kind: ClassVar[str] = "join"
    network: ClassVar[str] = "join"

    @property
    def unit(self) -> str:
        """The unit of memory: ``"bytes"`` or ``"slots"``."""
        return "slots" if isinstance(self.profile, HomogeneousJoin) else "bytes"

    @property
    def chains(self) -> tuple[tuple[int | None, ChainProfile], ...]:
        """The branches, then the tail, if there is one; nothing of a join in slots."""
        if isinstance(self.profile, HomogeneousJoin):
            return ()
        tail = self.profile.tail
        return (*enumerate(self.profile.branches), *(((None, tail),) if tail else ()))

    def format_size(self, size: int) -> str:
        """Return an amount of memory for people."""
        if self.unit == "bytes":
            return Problem.format_size(self, size)
        return f"{size} slot{'s' * (size != 1)}"

    def describe(self, solution: Solution) -> str:
        """Return one sentence for people on a solution of this problem."""
        if self.unit == "bytes":
            return Problem.describe(self, solution)
        peak, size = solution.peak_bytes, self.format_size(solution.budget)
        return f"{format_time(solution.makespan)} in {peak} of {size}: {solution.proof}"

    def to_fields(self) -> dict[str, object]:
        """Return the problem as JSON fields, for a counter-example."""
        return Problem.to_fields(self) | {"keep": [int(flag) for flag in self.keep]}

    def simpler(self) -> Iterator[Self]:
        """Yield problems with no gradient to keep, a branch, a stage, the tail or a number less."""
        profile, keep = self.profile, self.keep
        if any(keep):
            yield replace(self, keep=(False,) * len(keep))
        for budget in filter(None, smaller(self.budget)):
            yield replace(self, budget=budget)
        for j in range(len(keep) * (len(keep) > 1)):
            yield replace(self, profile=_without_branch(profile, j), keep=keep[:j] + keep[j + 1 :])
        for other in _simpler_joins(profile):
            if other != profile:  # a tail's input is as its branches say
                yield replace(self, profile=other)


def joined(branches: tuple[ChainProfile, ...], tail: ChainProfile | None) -> JoinProfile:
    """Return a join of these branches with this tail, whose input is made to match."""
    join = JoinProfile(branches=branches)
    if tail is None:
        return join
    fitted = replace(
        tail, input_bytes=join.output_bytes, input_gradient_bytes=join.output_gradient_bytes
    )
    return JoinProfile(branches=branches, tail=fitted)


def _without_branch(profile: Join, j: int) -> Join:
    if isinstance(profile, HomogeneousJoin):
        return replace(profile, lengths=profile.lengths[:j] + profile.lengths[j + 1 :])
    return joined(profile.branches[:j] + profile.branches[j + 1 :], profile.tail)


def _simpler_joins(profile: Join) -> Iterator[Join]:
    if isinstance(profile, HomogeneousJoin):
        if profile.tail_steps == 0:
            yield replace(profile, tail_steps=None)
        yield from with_smaller_numbers(profile)
        return
    branches, tail = profile.branches, profile.tail
    for n in range(len(profile.shared)):
        yield replace(profile, shared=profile.shared[:n] + profile.shared[n + 1 :])
    if tail is not None:
        yield joined(branches, None)
        for shorter in simpler_chains(tail):
            yield _sharing(joined(branches, shorter), profile)
    for j, branch in enumerate(branches):
        for simpler in simpler_chains(branch):
            yield _sharing(joined((*branches[:j], simpler, *branches[j + 1 :]), tail), profile)


def _sharing(join: JoinProfile, profile: JoinProfile) -> JoinProfile:
    """Return a join with the shared gradients of another one of as many stages."""
    return replace(join, shared=profile.shared) if join.stages == profile.stages else join
