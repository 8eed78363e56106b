"""Problems to be solved, claims of solvers about them, and whether several claims agree.

Read `problem`: what all kinds have in common. `chain`, `join`, `offload` and `hybrid` are the four
kinds, the last two with the claims and solutions of schedules that move data; `consistency`
compares what several methods say, `simpler` makes a problem smaller, `exactness` says for which
chains narrow families of schedules contain an optimum, `schedule_time` adds up times,
`binomial` and `ordered_no_wait` have the plans of equal steps and of offloading that several
packages use, and `arguments` refuses what is no budget or profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from chainstay.errors import ChainstayError, type_with_article
from chainstay.problems.chain import ChainProblem
from chainstay.problems.hybrid import HybridProblem, HybridSolution
from chainstay.problems.join import JoinProblem
from chainstay.problems.offload import OffloadProblem, OffloadSolution
from chainstay.problems.problem import Problem
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    HomogeneousJoin,
    JoinProfile,
    OffloadProfile,
)
from chainstay.solution import Solution

__all__ = [
    "AnyProblem",
    "ChainProblem",
    "HybridProblem",
    "JoinProblem",
    "OffloadProblem",
    "Problem",
    "problem_of",
]

AnyProblem: TypeAlias = ChainProblem | JoinProblem | OffloadProblem | HybridProblem
"""A problem of one of the four kinds."""

_KINDS: Final[Mapping[tuple[type, type], type[AnyProblem]]] = MappingProxyType(
    {
        (Solution, ChainProfile): ChainProblem,
        (Solution, JoinProfile): JoinProblem,
        (Solution, HomogeneousJoin): JoinProblem,
        (OffloadSolution, OffloadProfile): OffloadProblem,
        (OffloadSolution, ChainProfile): OffloadProblem,
        (HybridSolution, ChainProfile): HybridProblem,
    }
)
"""Kinds of problems, by what a solution is and what it is a solution of."""


def problem_of(
    solution: Solution,
    profile: AnyProfile,
    *,
    keep: Sequence[bool] | None = None,
    error: type[ChainstayError],
) -> AnyProblem:
    """Return the problem that `solution` is a solution of.

    Args:
        solution: A solution of any kind.
        profile: The costs that it is a solution of; a chain stands for its `OffloadProfile` where
            the solution is one of offloading alone.
        keep: For each branch of a join, whether its input's gradient stays; ``None`` or empty for
            none.
        error: Class of the error to raise.

    Raises:
        ChainstayError: `error`: solution and profile do not go together.
        InvalidProfileError: The profile, the link or the transfers do not go together.
    """
    kind = _KINDS.get((type(solution), type(profile)))
    if kind is None:
        raise error(
            f"{type_with_article(solution)} is no solution of {type_with_article(profile)}; pass "
            "the profile that was solved"
        )
    rules: tuple[object, ...] = ()
    if kind is OffloadProblem and isinstance(profile, ChainProfile):
        profile = OffloadProfile.from_chain(profile)
    if kind.moves:
        rules = (getattr(solution, "link", None), getattr(solution, "transfers", None))
    elif kind.network == "join":
        rules = (tuple(keep or ()),)
    return kind(profile, solution.budget, *rules)  # type: ignore[arg-type]  # as the table says
