"""Optima of small joins by exhaustive search over memory states: no theory assumed.

A state is what is stored and which gradients are held. The transitions are written anew
here, so that a mistake in `chainstay.validation.join.simulate` and one here would have to agree.
A* with a lower bound on the time left: what is not stored must still be made, and every
backward must still run.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import HomogeneousJoin, Join, kept_gradients
from chainstay.schedule import Discards, Op, Schedule
from chainstay.solution import Claim, Family
from chainstay.validation.join.states import (
    ByteTransitions,
    JoinState,
    JoinTransitions,
    SlotTransitions,
)
from chainstay.validation.search import walk_back

LARGEST_JOIN: Final = 24
"""Stages of the largest join accepted; more than 10 with saved data take minutes."""


def join_optimum(profile: Join, budget: int, *, keep: Sequence[bool] | None = None) -> Claim:
    """Return the fastest schedule of a small join within `budget` among all valid ones.

    Args:
        profile: A join of at most `LARGEST_JOIN` stages.
        budget: Bytes; slots of a `HomogeneousJoin`.
        keep: As in `chainstay.validation.join.simulate.simulate_join`.

    Raises:
        InfeasibleBudgetError: No valid schedule fits; ``error.required`` says what would.
        InvalidProfileError: The join is too large to search, or `keep` does not fit it.
    """
    flags = kept_gradients(profile, keep)
    if profile.stages > LARGEST_JOIN:
        raise InvalidProfileError(
            f"exhaustive search takes joins of at most {LARGEST_JOIN} stages, this one has "
            f"{profile.stages}; use a solver"
        )
    rules: JoinTransitions
    if is_homogeneous := isinstance(profile, HomogeneousJoin):
        rules = SlotTransitions(profile, flags)
    else:
        rules = ByteTransitions(profile, flags)
    found = _best_path(rules, budget) if rules.stored(rules.start) <= budget else None
    if found is None:
        raise InfeasibleBudgetError(
            budget=budget,
            required=_least_budget(rules, profile),
            stages=profile.stages,
            family="all",
            network="join",
            unit="slots" if is_homogeneous else "bytes",
        )
    makespan, ops = found
    return Claim(
        schedule=Schedule(ops),
        makespan=makespan,
        lower_bound=makespan,
        family=Family.SINGLE_TURN if is_homogeneous else Family.ALL,
        discards=Discards.TAPE,
    )


def _least_budget(rules: JoinTransitions, profile: Join) -> int:
    """Return the least budget for which some schedule exists."""
    if isinstance(profile, HomogeneousJoin):  # slots are few: try them
        slots = rules.stored(rules.start)
        while _best_path(rules, slots) is None:
            slots += 1
        return slots
    best = {rules.start: rules.stored(rules.start)}
    frontier = [(rules.stored(rules.start), 0, rules.start)]
    while True:
        peak, _, state = heapq.heappop(frontier)
        if max(state.gradients) <= 0:
            return peak
        for step in rules.steps(state, None):
            higher = max(peak, step.bytes)
            if higher < best.get(step.after, higher + 1):
                best[step.after] = higher
                heapq.heappush(frontier, (higher, len(best), step.after))


def _best_path(rules: JoinTransitions, budget: int) -> tuple[int, tuple[Op, ...]] | None:
    """Return the least time of a path to a final state, and the operations along it."""
    best = {rules.start: 0}
    came_from: dict[JoinState, tuple[JoinState, tuple[Op, ...]]] = {}
    frontier = [(rules.least_left(rules.start), 0, 0, rules.start)]
    while frontier:
        _, _, time, state = heapq.heappop(frontier)
        if time > best[state]:
            continue
        if max(state.gradients) <= 0:
            return time, walk_back(state, came_from)
        for step in rules.steps(state, budget):
            later = time + step.time
            if step.bytes <= budget and later < best.get(step.after, later + 1):
                best[step.after] = later
                came_from[step.after] = (state, step.ops)
                estimate = later + rules.least_left(step.after)
                heapq.heappush(frontier, (estimate, -len(best), later, step.after))
    return None
