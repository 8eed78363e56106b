"""Plans that are tried out by a step before they are used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from chainstay.errors import InfeasibleBudgetError
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.progress import say
from chainstay.runtime.measures.rehearsal import Rehearsal
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.schedule import OpKind
from chainstay.units import format_bytes

AnyPlan = TypeVar("AnyPlan", PlannedGraph, PlannedBlocks)

Rehearse: TypeAlias = Callable[[AnyPlan, int], Rehearsal]

_TIGHTENINGS: Final = 3
"""How often a plan that needs more than predicted is replaced by a tighter one."""
_TOLERATED: Final = 1.05
"""By so much plain training may exceed what it was predicted to need."""


def tried(
    budget: int,
    solved: Callable[[int], AnyPlan],
    rehearsed: Rehearse[AnyPlan],
    *,
    is_told: bool,
    is_whole: bool = False,
) -> AnyPlan:
    """Return the plan within a budget, tried out.

    Args:
        budget: Bytes.
        solved: Plans within so many bytes.
        rehearsed: Runs a step by a plan; told the bytes beyond which the operator is looked for.
        is_told: Whether to say when a plan needs more than predicted.
        is_whole: Whether the budget is all that plain training needs, which then may exceed it.

    Raises:
        InfeasibleBudgetError: Nothing fits; the least budget that it names has been tried, too.
    """
    try:
        return _tried(budget, solved, rehearsed, is_told=is_told, is_whole=is_whole)
    except InfeasibleBudgetError as refusal:
        found = refusal
    for _ in range(_TIGHTENINGS):
        try:
            _tried(found.required, solved, rehearsed, is_told=False, is_whole=False).close()
        except InfeasibleBudgetError as larger:
            found = found.known(budget, max(larger.required, found.required + 1))
        else:
            break
    raise found


def _tried(
    budget: int,
    solved: Callable[[int], AnyPlan],
    rehearsed: Rehearse[AnyPlan],
    *,
    is_told: bool,
    is_whole: bool,
) -> AnyPlan:
    """Return a plan that was tried out; a tighter one where it needs more than predicted."""
    limit, planned = budget, solved(budget)
    first, kind = planned.solution, _kind_of(planned)
    for tightenings in range(_TIGHTENINGS + 1):
        predicted = planned.solution.peak_bytes
        allowed = budget
        if _keeps_all(planned):
            allowed = sys.maxsize if is_whole else max(budget, int(predicted * _TOLERATED))
        found = rehearsed(planned, allowed)
        if found.peak_bytes <= allowed:
            break
        if tightenings == _TIGHTENINGS:
            planned.close()
            raise InfeasibleBudgetError(
                budget=budget,
                required=found.peak_bytes,
                stages=len(planned.profile),
                family="known",
                plain=planned.plain_peak or 0,
            )
        limit = min(limit, predicted) - (found.peak_bytes - budget)
        say(
            f"a step by the plan needs {format_bytes(found.peak_bytes)}, "
            f"{format_bytes(predicted)} were predicted; the budget of {format_bytes(budget)} "
            f"is exceeded first at {found.operator or 'an unknown operator'}; planning again",
            wanted=is_told,
        )
        planned.close()
        try:
            planned = solved(max(limit, 1))
        except InfeasibleBudgetError as refusal:
            required = refusal.required + budget - max(limit, 1)
            raise refusal.known(budget, required) from refusal
    if limit == budget:
        return planned
    is_alike = _kind_of(planned) == kind  # what bounds the first then bounds this one
    solution = replace(
        planned.solution,
        budget=budget,
        lower_bound=first.lower_bound if is_alike else 0,
        unrestricted_bound=first.unrestricted_bound if is_alike else 0,
    )
    return replace(planned, solution=solution)


def _kind_of(planned: Planned) -> tuple[object, ...]:
    """Return what plans have in common that the same bounds hold for."""
    return type(planned.profile), planned.solution.family, planned.solution.discards


def _keeps_all(planned: Planned) -> bool:
    schedule = planned.solution.schedule
    kinds = {op.kind for op in schedule}
    is_whole = not any(op.option for op in schedule)
    return is_whole and kinds == {OpKind.FORWARD_KEEP_ALL, OpKind.BACKWARD}
