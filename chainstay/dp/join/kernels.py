"""The inner loops of the canonical program for joins; `canonical` says what they compute."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.chain.recursion_arrays import RecursionArrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.join.sizes import JoinCosts, JoinSizes

Overheads = NDArray[np.signedinteger]
"""Overheads in ns: int32 where that is enough, else int64."""

NEVER: Final = 2**60
"""The least memory of what has no schedule."""


class BranchParts(NamedTuple):
    """Parts of branches that are solved by themselves.

    Attributes:
        overheads: Shape (parts, W), ns at every memory; the first row is 0.
        row: Shape (cases, n, n), at [case, s, e]: the row of stages s..e of branch j.
    """

    overheads: Overheads
    row: Array


class CostsByKind(NamedTuple):
    """Costs of a stage's first run, and of a later one.

    Attributes:
        first: Costs while the tail is whole: nothing ahead has run.
        again: Costs once the tail has been cut: everything ahead has; the same if the kind of
            run does not matter.
        ahead_first: Shape (states,), ns: overhead of the forwards of all branches from each
            state on, as first runs.
        ahead_again: Likewise, as later runs.
    """

    first: JoinCosts
    again: JoinCosts
    ahead_first: Array
    ahead_again: Array


class BranchMove(NamedTuple):
    """The next move of branch j in some state.

    Attributes:
        state: The number of the state.
        j: The branch.
        place: Its position.
        beside: Bytes that the other branches free before its move is undone.
        gradient: Bytes of the gradient of the tail's output.
        left: Bytes that the checkpoints leave, exclusive.
    """

    state: int
    j: int
    place: int
    beside: int
    gradient: int
    left: int


class TailCut(NamedTuple):
    """The cuts of the tail in some state.

    Attributes:
        p: Stages of the tail that remain.
        state: The number of the state.
        need: Bytes needed to run all branches to their ends, and the join stage.
        ahead: Ns of the forwards of all branches from there on.
        left: Bytes that the checkpoints leave, exclusive.
    """

    p: int
    state: int
    need: int
    ahead: int
    left: int


def relax_by_slices(
    row: Overheads, behind: Overheads, aside: Overheads, cost: int, span: tuple[int, int]
) -> None:
    """Set ``row[m] = min(row[m], behind[m] + aside[m] + cost)`` for m within `span`.

    `behind` starts at the start of the span, and so does `aside`.
    """
    low, high = span
    if low < high:
        total = behind[: high - low] + aside[: high - low]
        total += total.dtype.type(cost)
        np.minimum(row[low:high], total, out=row[low:high])


def relax_by_loop(
    row: Overheads, behind: Overheads, aside: Overheads, cost: int, span: tuple[int, int]
) -> None:
    """Do what `relax_by_slices` does; compiled, this is several times faster."""
    low, high = span
    target, narrow = row[low:high], row.dtype.type
    more = narrow(cost)
    for m in range(high - low):
        target[m] = min(target[m], narrow(behind[m] + aside[m] + more))


relax = kernel(relax_by_loop, uncompiled=relax_by_slices)


@kernel
def _locate(sizes: JoinSizes, state: int, positions: Array) -> tuple[int, int, bool]:
    """Write the positions of a state to `positions`.

    Returns:
        The bytes that checkpoints store, the bytes of them that stay once all branches are back
        there, and whether all branches are at their ends.
    """
    stored, held, are_done = 0, 0, True
    for j in range(len(positions)):
        place = state // sizes.strides[j] % (2 * sizes.lengths[j] + 1)
        positions[j] = place
        stored += sizes.stored[j, place]
        held += sizes.held[j, place]
        are_done = are_done and place >= 2 * sizes.lengths[j] - 1
    return stored, held, are_done


@kernel
def fill_parts(parts: BranchParts, case: int, chain: RecursionArrays) -> None:
    """Fill the rows of a branch's parts in one of its cases, which are infeasible: `Table.fill`."""
    overheads, row = parts.overheads, parts.row[case]
    nothing, wide = overheads[0], overheads.shape[1]
    for t in range(len(chain.start) - 1):
        for s in range(t, -1, -1):
            best = overheads[row[s, t]]
            for o in range(chain.start[s], chain.start[s + 1]):
                size = chain.saved[o]
                low = max(size, chain.keep_floor[o, t])
                behind = overheads[row[s + 1, t] if s < t else 0]
                relax(best, behind[low - size :], nothing, chain.extra[o], (low, wide))
            for k in range(s + 1, t + 1):
                size = chain.activation[k]
                low = max(size, chain.gradient[t + 1] + chain.transit[s, k - 1])
                behind, aside = overheads[row[k, t]], overheads[row[s, k - 1]]
                rerun = chain.elapsed[k] - chain.elapsed[s]
                relax(best, behind[low - size :], aside[low:], rerun, (low, wide))


@kernel
def need_up_to_the_join(sizes: JoinSizes, costs: JoinCosts, positions: Array, order: Array) -> int:
    """Return the most bytes needed while all branches run to their ends, and the join stage.

    A branch that needs much more on its way than at its end goes first. The order is written
    to `order`, branches that are at their ends included.
    """
    k = len(sizes.lengths)
    peaks, ends = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    for j in range(k):
        s, length = (positions[j] + 1) // 2, sizes.lengths[j]
        if s < length:
            peaks[j], ends[j] = costs.transit[j, s, length - 1], sizes.activation[j, length]
        place = j
        while place > 0 and (peaks[order[place - 1]] - ends[order[place - 1]] < peaks[j] - ends[j]):
            order[place] = order[place - 1]
            place -= 1
        order[place] = j
    most, made = 0, 0
    for j in order:
        most = max(most, made + peaks[j])
        made += ends[j]
    need: int = max(most, made + costs.tail_transit[0])
    return need


@kernel
def _relax_branch(  # noqa: PLR0913, PLR0917  # kernels take no keywords
    row: Overheads,
    table: Overheads,
    sizes: JoinSizes,
    costs: JoinCosts,
    parts: BranchParts,
    move: BranchMove,
) -> None:
    """Lower the overheads of a state to those of keeping or cutting a branch next."""
    state, j, place, beside, gradient, left = move
    s, stride, case = (place + 1) // 2, sizes.strides[j], sizes.case[j, state]
    wide = len(row)
    for o in range(costs.start[j, s], costs.start[j, s + 1]):
        size = costs.saved[j, o]
        to_go_back = costs.keep_backward[j, o] + sizes.backward[case, s] - beside
        low = max(size, gradient + costs.keep_forward[j, o], to_go_back)
        if low < left:
            behind = table[state + (2 * s + 2 - place) * stride]
            relax(row, behind[low - size :], parts.overheads[0], costs.extra[j, o], (low, left))
    for e in range(s, sizes.lengths[j]):
        size = sizes.activation[j, e + 1]
        low = max(size, gradient + costs.transit[j, s, e], -beside)
        high = min(left, wide - beside)
        if low < high:
            behind = table[state + (2 * e + 1 - place) * stride]
            aside = parts.overheads[parts.row[case, s, e]]
            cost = costs.elapsed[j, e + 1] - costs.elapsed[j, s]
            relax(row, behind[low - size :], aside[low + beside :], cost, (low, high))


@kernel
def _relax_tail(  # noqa: PLR0913, PLR0917  # as above
    row: Overheads,
    values: Overheads,
    sizes: JoinSizes,
    costs: JoinCosts,
    tail_parts: Overheads,
    cut: TailCut,
) -> None:
    """Lower the overheads of a state to those of cutting the tail next."""
    p, state, need, ahead, left = cut
    for i in range(1, p):
        if i > 1:
            need = max(need, costs.tail_transit[i - 1])
        size = sizes.tail_activation[i]
        low = max(size, sizes.tail_gradient[p] + need)
        if low < left:
            behind, aside = values[i - 1, state], tail_parts[i, p - 1]
            cost = ahead + costs.tail_elapsed[i]
            relax(row, behind[low:], aside[low - size :], cost, (low, left))


@kernel
def fill_overheads(
    values: Overheads,
    sizes: JoinSizes,
    by_kind: CostsByKind,
    parts: BranchParts,
    tail_parts: Overheads,
) -> None:
    """Fill `values` with the least overhead of every tail prefix, state and memory.

    Args:
        values: Shape (t, states, W), ns, for tails of 1 to t stages, all infeasible.
        sizes: The join.
        by_kind: Its costs.
        parts: Parts of branches.
        tail_parts: Shape (t, t, W), at [s, e], ns: overheads of stages s..e of the tail.
    """
    k, wide = len(sizes.lengths), values.shape[2]
    positions, order = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    for p in range(1, values.shape[0] + 1):
        table, gradient = values[p - 1], sizes.tail_gradient[p]
        costs, ahead = by_kind.again, by_kind.ahead_again
        if p == values.shape[0]:  # the tail has not been cut: nothing ahead has run
            costs, ahead = by_kind.first, by_kind.ahead_first
        for state in range(values.shape[1] - 1, -1, -1):
            stored, held, are_done = _locate(sizes, state, positions)
            row, left = table[state], wide - stored
            if left <= 0:
                continue
            if are_done:
                row[:left] = tail_parts[0, p - 1, :left]
            for j in range(k):
                place = positions[j]
                if place < 2 * sizes.lengths[j] - 1:
                    beside = stored - sizes.stored[j, place] - (held - sizes.held[j, place])
                    move = BranchMove(state, j, place, beside, gradient, left)
                    _relax_branch(row, table, sizes, costs, parts, move)
            if p > 1:
                need = need_up_to_the_join(sizes, costs, positions, order)
                cut = TailCut(p, state, need, ahead[state], left)
                _relax_tail(row, values, sizes, costs, tail_parts, cut)


@kernel
def _least_of_branch(
    behind: Array, sizes: JoinSizes, costs: JoinCosts, parts: Array, move: BranchMove
) -> int:
    """Return the least bytes for keeping or cutting a branch next.

    `behind` has the least bytes of the states that each of these leads to.
    """
    j, place, beside, gradient = move.j, move.place, move.beside, move.gradient
    s, case = (place + 1) // 2, sizes.case[j, move.state]
    best: int = NEVER
    for o in range(costs.start[j, s], costs.start[j, s + 1]):
        need = max(
            behind[2 * s + 2 - place] + costs.saved[j, o],
            gradient + costs.keep_forward[j, o],
            costs.keep_backward[j, o] + sizes.backward[case, s] - beside,
        )
        best = min(best, need)
    for e in range(s, sizes.lengths[j]):
        need = max(
            behind[2 * e + 1 - place] + sizes.activation[j, e + 1],
            gradient + costs.transit[j, s, e],
            parts[case, s, e] - beside,
        )
        best = min(best, need)
    return best


@kernel
def fill_least_memory(
    least: Array, sizes: JoinSizes, by_kind: CostsByKind, parts: Array, tail_parts: Array
) -> None:
    """Fill `least` with the least memory of every tail prefix and state: no times.

    Args:
        least: Shape (t, states), bytes, for tails of 1 to t stages.
        sizes: The join.
        by_kind: Its costs.
        parts: Shape (cases, n, n), bytes: least memory of parts of branches.
        tail_parts: Shape (t, t), bytes: least memory of parts of the tail.
    """
    k = len(sizes.lengths)
    positions, order = np.zeros(k, dtype=np.int64), np.zeros(k, dtype=np.int64)
    for p in range(1, least.shape[0] + 1):
        gradient = sizes.tail_gradient[p]
        costs = by_kind.first if p == least.shape[0] else by_kind.again
        for state in range(least.shape[1] - 1, -1, -1):
            stored, held, are_done = _locate(sizes, state, positions)
            best = tail_parts[0, p - 1] if are_done else NEVER
            for j in range(k):
                place = positions[j]
                if place < 2 * sizes.lengths[j] - 1:
                    beside = stored - sizes.stored[j, place] - (held - sizes.held[j, place])
                    behind = least[p - 1, state :: sizes.strides[j]]
                    move = BranchMove(state, j, place, beside, gradient, 0)
                    need = _least_of_branch(behind, sizes, costs, parts, move)
                    best = min(best, need)
            need = need_up_to_the_join(sizes, costs, positions, order)
            for i in range(1, p):
                if i > 1:
                    need = max(need, costs.tail_transit[i - 1])
                behind_cut = tail_parts[i, p - 1] + sizes.tail_activation[i]
                best = min(best, max(gradient + need, behind_cut, least[i - 1, state]))
            least[p - 1, state] = max(best, 0)
