"""Optima of small joins by exhaustive search over memory states: no theory assumed.

A state is what is stored and which gradients are held. The transitions are written anew
here, so that a mistake in `chainstay.validation.join.simulate` and one here would have to agree.
A* with a lower bound on the time left: what is not stored must still be made, and every
backward must still run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.profiles import HomogeneousJoin, Join, kept_gradients
from chainstay.schedule import Discards, Op, Schedule
from chainstay.solution import Claim, Family
from chainstay.validation.join.states import ByteTransitions, JoinTransitions, SlotTransitions
from chainstay.validation.search import add_time, cheapest_path, raise_peak

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
    found = _fastest_path(rules, budget) if rules.stored(rules.start) <= budget else None
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
        while _fastest_path(rules, slots) is None:
            slots += 1
        return slots
    found = cheapest_path(rules.start, lambda state: rules.steps(state, None), raise_peak)
    assert found is not None, "to keep all is valid for every join"
    return found[0]


def _fastest_path(rules: JoinTransitions, budget: int) -> tuple[int, tuple[Op, ...]] | None:
    """Return the least time of a path to a final state, and the operations along it."""
    return cheapest_path(
        rules.start, lambda state: rules.steps(state, budget), add_time, budget, rules.least_left
    )
