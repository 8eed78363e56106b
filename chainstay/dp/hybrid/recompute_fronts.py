"""``C_A``, the cost of recomputing stages, as Pareto fronts instead of a table: compiled loops.

For a fixed way to recompute stages i..j in `room` slots, what has to come back beside it
makes it wait once at most: its cost is ``base + max(0, D + demand - room)``, where ``base``
is computing alone, and ``demand`` the most by which what an operation needs exceeds what has
come back until then. So ``C_A(i, j, A, ·)`` is a *front*: pairs of a base and a demand, and
only rooms are on a grid (``docs/derivations/hybrid-fronts.md``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.slot_chain import (
    INFINITE,
    TINY,
    Rooms,
    SlotChain,
    column_of,
    passing,
    rounded,
    row_of,
)
from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int32]

_RECORDED = -1


class RecomputeFronts(NamedTuple):
    """Fronts of stages i..j at row ``j (j + 1) / 2 + i``, for every room of the grid.

    Attributes:
        start: Shape (rows, slots + 1): where the plans of a front begin; rooms may share them.
        plan_count: Shape (rows, slots + 1): how many plans there are, bases ascending, demands
            descending.
        base: At [plan]: the time it takes where nothing has to come back.
        demand: At [plan]: slots, as above.
        choice: At [plan]: -1 - k for ``Fall`` under the k-th option that counts, or the last stage
            that ``Fck`` passes.
        later: At [plan]: the plan of what runs later, if that is part of it.
        sooner: At [plan]: the plan of what runs sooner, if that is part of it.
    """

    start: _Ints
    plan_count: _Ints
    base: _Floats
    demand: _Floats
    choice: _Ints
    later: _Ints
    sooner: _Ints


class FrontLimits(NamedTuple):
    """The plans that are worth having.

    Attributes:
        caps: Shape (rows, slots + 1): plans with a larger base are of no use.
        tolerance: In slots: two plans of a front that differ by less count as equal.
    """

    caps: _Floats
    tolerance: float


class FrontPlan(NamedTuple):
    """One plan of a front; the fields are the columns of `RecomputeFronts`."""

    base: float
    demand: float
    choice: int
    later: int
    sooner: int


class DraftFront(NamedTuple):
    """A front while it is being made, and what its forwards need.

    Attributes:
        base, demand, choice, later, sooner: At [plan], as in `RecomputeFronts`.
        length: Shape (1,): the number of plans; -1 if there is no room for them.
        needed: At [k]: slots that forwards i..k need at most.
        pending: At [k]: that less what came back since, at most.
        tolerance: As in `FrontLimits`.
    """

    base: _Floats
    demand: _Floats
    choice: _Ints
    later: _Ints
    sooner: _Ints
    length: _Ints
    needed: _Floats
    pending: _Floats
    tolerance: float


class StageRange(NamedTuple):
    """Stages i..j, to be recomputed in `room` slots."""

    i: int
    j: int
    room: int


class Split(NamedTuple):
    """Stages i..j cut after stage k.

    Attributes:
        i: First stage.
        j: Last stage.
        k: Last stage that ``Fck`` passes.
        room: Slots for stages i..k.
        left: Slots for stages k+1..j.
        run: Time of forwards i..k.
        cap: Plans with a larger base are of no use.
    """

    i: int
    j: int
    k: int
    room: int
    left: int
    run: float
    cap: float


@kernel
def best_plan(
    fronts: RecomputeFronts, rooms: Rooms, row: int, room: float, returning: float
) -> int:
    """Return the best plan of a row for a room and what has to come back; -1 if there is none."""
    if room < -TINY:
        return -1
    at = column_of(rooms, room)
    best, found = INFINITE, -1
    first = fronts.start[row, at]
    for plan in range(first, first + fronts.plan_count[row, at]):
        if fronts.base[plan] >= best:
            break
        cost = fronts.base[plan] + max(0.0, returning + fronts.demand[plan] - room)
        if cost < best:
            best, found = cost, plan
    return found


@kernel
def recompute_cost(
    fronts: RecomputeFronts, rooms: Rooms, row: int, room: float, returning: float
) -> float:
    """Return ``C_A`` of a row for a room and what has to come back."""
    plan = best_plan(fronts, rooms, row, room, returning)
    if plan < 0:
        return INFINITE
    return float(fronts.base[plan] + max(0.0, returning + fronts.demand[plan] - room))


@kernel
def fill_column(
    chain: SlotChain, limits: FrontLimits, j: int, fronts: RecomputeFronts, made: int
) -> int:
    """Fill in the fronts of stages i..j for all i.

    Args:
        chain: The chain.
        limits: The plans that are worth having.
        j: Last stage.
        fronts: Has the fronts of smaller j; `plan_count` is zero elsewhere.
        made: How many plans there are.

    Returns:
        How many plans there are now, or -1 if there is no room for them.
    """
    most, caps = len(fronts.base), limits.caps
    draft = DraftFront(
        np.empty(most), np.empty(most), np.empty(most, np.int32), np.empty(most, np.int32),
        np.empty(most, np.int32), np.zeros(1, np.int32), np.empty(j + 1), np.empty(j + 1),
        limits.tolerance,
    )  # fmt: skip
    length = draft.length
    for i in range(j, -1, -1):
        row = row_of(i, j)
        if caps[row].max() < chain.least[i]:
            continue
        length[0] = 0
        _fill_needs(chain, i, j, draft)
        for room in range(chain.rooms.slots + 1):
            cap = caps[row, room]
            while length[0] > 0 and draft.base[length[0] - 1] > cap:
                length[0] -= 1
            is_new = _add_plans(chain, caps, StageRange(i, j, room), fronts, draft)
            if length[0] < 0 or made + length[0] > len(fronts.base):
                return -1
            if is_new:
                fronts.start[row, room] = made
                for at in range(length[0]):
                    _store(draft, at, fronts, made)
                    made += 1
            elif room > 0:
                fronts.start[row, room] = fronts.start[row, room - 1]
            fronts.plan_count[row, room] = length[0]
    return made


@kernel
def _fill_needs(chain: SlotChain, i: int, j: int, draft: DraftFront) -> None:
    """Fill in `DraftFront.needed` and `DraftFront.pending` for stages i..j."""
    most, pending = 0.0, -INFINITE
    for k in range(i, j):
        need = passing(chain, k, i, j)
        most = max(most, need)
        pending = max(pending - chain.forward[k], need)
        draft.needed[k], draft.pending[k] = most, pending


@kernel
def _add_plans(  # noqa: C901  # a call for each option takes half as long again
    chain: SlotChain, caps: _Floats, part: StageRange, fronts: RecomputeFronts, draft: DraftFront
) -> bool:
    """Add the plans that need this room to those that need less; return whether there are any."""
    i, j, room = part
    cap = caps[row_of(i, j), room]
    before = cap if room == 0 else caps[row_of(i, j), room - 1]
    if cap < chain.least[i]:
        return False
    is_new, held = False, chain.gradient[j + 1]
    for option in range(chain.counts[i]):
        forward_need = held + chain.forward_need[i, option]
        backward_need = chain.backward_need[i, option]
        if max(forward_need, backward_need) > room + TINY:
            continue
        saved, backward = chain.saved[i, option], chain.backward[i, option]
        own, choice = chain.keep[i, option] + backward, _RECORDED - option
        if i == j:
            demand = max(backward_need, forward_need - backward)
            is_added = _insert(draft, cap, FrontPlan(own, demand, choice, -1, -1))
            is_new = is_new or is_added
        left = room - rounded(chain.rooms, saved)
        if i < j and left >= 0:
            row = row_of(i + 1, j)
            first = fronts.start[row, left]
            for plan in range(first, first + fronts.plan_count[row, left]):
                base = fronts.base[plan]
                demand = max(
                    backward_need,
                    fronts.demand[plan] + saved - backward,
                    forward_need - backward - base,
                )
                is_added = _insert(draft, cap, FrontPlan(own + base, demand, choice, -1, plan))
                is_new = is_new or is_added
    run = 0.0
    for k in range(i, j):
        run += chain.forward[k]
        if draft.needed[k] > room + TINY or draft.length[0] < 0:
            break
        left = room - rounded(chain.rooms, chain.activation[k + 1])
        one, other = row_of(i, k), row_of(k + 1, j)
        if left < 0 or fronts.plan_count[one, room] == 0 or fronts.plan_count[other, left] == 0:
            continue
        if (
            cap <= before
            and left > 0
            and draft.needed[k] <= room - 1 + TINY
            and _is_as_before(fronts, one, room)
            and _is_as_before(fronts, other, left)
        ):
            continue
        is_added = _restart(chain, Split(i, j, k, room, left, run, cap), fronts, draft)
        is_new = is_new or is_added
    return is_new


@kernel
def _is_as_before(fronts: RecomputeFronts, row: int, room: int) -> bool:
    """Return whether a front has only plans that it has with one slot less, too."""
    return bool(
        fronts.start[row, room] == fronts.start[row, room - 1]
        and fronts.plan_count[row, room] <= fronts.plan_count[row, room - 1]
    )


@kernel
def _restart(chain: SlotChain, split: Split, fronts: RecomputeFronts, draft: DraftFront) -> bool:
    """Add every plan of stages i..k with every one of k+1..j; return whether any is new.

    This is the case ``Fck``.
    """
    k, room, left, run, cap = split.k, split.room, split.left, split.run, split.cap
    one, other = row_of(split.i, k), row_of(k + 1, split.j)
    ones, others = fronts.plan_count[one, room], fronts.plan_count[other, left]
    one_first, other_first = fronts.start[one, room], fronts.start[other, left]
    least = run + fronts.base[one_first] + fronts.base[other_first]
    if least > cap:
        return False
    if _is_covered(draft, least, fronts.demand[one_first + ones - 1]):
        return False
    is_new = False
    pending = draft.pending[k]
    for later in range(one_first, one_first + ones):
        base, demand = run + fronts.base[later], fronts.demand[later]
        for sooner in range(other_first, other_first + others):
            total = base + fronts.base[sooner]
            if total > cap:
                break
            wanted = fronts.demand[sooner] + chain.activation[k + 1] - fronts.base[later]
            wanted = max(demand, wanted, pending - total + run)
            is_added = _insert(draft, cap, FrontPlan(total, wanted, k, later, sooner))
            is_new = is_new or is_added
    return is_new


@kernel
def _is_covered(draft: DraftFront, base: float, demand: float) -> bool:
    """Return whether some plan, waiting, is as good as one of this base and demand.

    Where bases go up, what plans take with waiting goes down: the last that has no larger
    base is as good, or none is.
    """
    at = _count_below(draft, base + draft.tolerance) - 1
    if at < 0:
        return False
    return bool(draft.base[at] + max(0.0, draft.demand[at] - demand) < base + draft.tolerance)


@kernel
def _count_below(draft: DraftFront, base: float) -> int:
    """Return how many plans have a smaller base."""
    low, high = 0, draft.length[0]
    while low < high:
        middle = (low + high) // 2
        if draft.base[middle] < base:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _insert(draft: DraftFront, cap: float, plan: FrontPlan) -> bool:
    """Enter a plan unless it costs too much or another one is as good; return whether it is new."""
    base, demand, length = plan.base, plan.demand, draft.length[0]
    if base > cap or length < 0 or _is_covered(draft, base, demand):
        return False
    place = _count_below(draft, base)
    after = place
    while after < length and base + max(0.0, demand - draft.demand[after]) <= draft.base[after]:
        after += 1
    if after == place:
        if length == len(draft.base):
            draft.length[0] = -1
            return False
        for at in range(length, place, -1):
            _move(draft, at - 1, at)
        length += 1
    else:
        for at in range(after, length):
            _move(draft, at, at - after + place + 1)
        length -= after - place - 1
    draft.base[place], draft.demand[place], draft.choice[place] = base, demand, plan.choice
    draft.later[place], draft.sooner[place] = plan.later, plan.sooner
    draft.length[0] = length
    return True


@kernel
def _move(draft: DraftFront, at: int, to: int) -> None:
    """Copy a plan to another place of the same front."""
    draft.base[to], draft.demand[to] = draft.base[at], draft.demand[at]
    draft.choice[to] = draft.choice[at]
    draft.later[to], draft.sooner[to] = draft.later[at], draft.sooner[at]


@kernel
def _store(draft: DraftFront, at: int, fronts: RecomputeFronts, to: int) -> None:
    """Copy a plan of the draft to the plans of all fronts."""
    fronts.base[to], fronts.demand[to] = draft.base[at], draft.demand[at]
    fronts.choice[to] = draft.choice[at]
    fronts.later[to], fronts.sooner[to] = draft.later[at], draft.sooner[at]
