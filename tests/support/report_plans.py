"""Plans of every kind, for tests of reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from chainstay.dp import DP
from chainstay.errors import InvalidSolutionError
from chainstay.problems import AnyProblem, problem_of
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    Join,
    JoinProfile,
    Link,
    OffloadProfile,
    Stage,
)
from chainstay.solution import Solution
from chainstay.solve import solve_chain, solve_join
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.solve.offload import AutoOffload, solve_offload

_MEBIBYTE: Final = 2**20
LINK: Final = Link.from_bytes_per_second(1_000_000_000)


@dataclass(frozen=True)
class Plan:
    """A solution and what it is a solution of."""

    solution: Solution
    profile: AnyProfile

    @property
    def problem(self) -> AnyProblem:
        """What it is a plan for."""
        return problem_of(self.solution, self.profile, error=InvalidSolutionError)


def a_chain(stages: int, *, name: str = "block") -> ChainProfile:
    """Stages that all differ, in MiB and ms."""
    return ChainProfile(
        input_bytes=2 * _MEBIBYTE,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                name=f"{name}{i}",
                forward_time=(2 + i * 7 % 5) * 10**6,
                backward_time=(3 + i * 5 % 7) * 10**6,
                output_bytes=(1 + i * 3 % 4) * _MEBIBYTE,
                saved_bytes=(4 + i * 5 % 9) * _MEBIBYTE,
                gradient_bytes=(1 + i * 3 % 4) * _MEBIBYTE,
                forward_overhead_bytes=i % 3 * _MEBIBYTE,
                backward_overhead_bytes=i % 4 * _MEBIBYTE,
            )
            for i in range(stages)
        ),
    )


def a_join() -> JoinProfile:
    """Two towers and a tail."""
    towers = JoinProfile(branches=(a_chain(3, name="left"), a_chain(4, name="right")))
    tail = replace(
        a_chain(2, name="head"),
        input_bytes=towers.output_bytes,
        input_gradient_bytes=towers.output_gradient_bytes,
    )
    return JoinProfile(branches=towers.branches, tail=tail)


@cache
def plan(kind: str) -> Plan:
    """One of `KINDS`."""
    what, _, transfers = kind.partition(" ")
    chain, join = a_chain(8), a_join()
    if what in ("chain", "free"):
        method = DP(discards="free" if what == "free" else "table1")
        return Plan(solve_chain(chain, "60%", method=method), chain)
    if what == "offload":
        profile = OffloadProfile.from_chain(chain)
        quick = AutoOffload(exact_stages=0)
        moved = solve_offload(profile, "70%", link=LINK, transfers=transfers, method=quick)
        return Plan(moved, profile)
    if what == "hybrid":
        pofo = Pofo(slots=16, tries=5)
        both = solve_hybrid(chain, "60%", link=LINK, transfers=transfers, method=pofo)
        return Plan(both, chain)
    steps = JoinProfile.homogeneous((3, 5), forward_time=1, backward_time=2, turn_time=1)
    bare = JoinProfile(branches=join.branches)
    joins: dict[str, Join] = {"join": join, "turn": bare, "slots": steps}
    return Plan(solve_join(joins[what], 6 if what == "slots" else "70%"), joins[what])


KINDS: Final = (
    "chain",
    "free",
    "join",
    "turn",
    "slots",
    "offload integral",
    "offload interruptible",
    "offload fractional",
    "hybrid integral",
)
"""All that have times."""
