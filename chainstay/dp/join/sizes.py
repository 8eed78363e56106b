"""A join as arrays, for the canonical program and its kernels.

Where a branch stands is a *position*: how far its last checkpoint is, and whether the input
of the next stage is stored by itself or inside the saved data of the stage before.

======================  =================================================
position of a branch    next stage, and where its input is
======================  =================================================
0                       stage 0: the branch's input
2 s - 1, for s >= 1     stage s: ``a^s`` itself
2 s, for s >= 1         stage s: inside ``ā`` of stage s - 1
======================  =================================================

A *state* is one position a branch, the last branch varying fastest.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array, ForwardCosts
from chainstay.dp.join.half_sums import HalfSums
from chainstay.dp.recursion import Recursion
from chainstay.problems.join import joined
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.profiles.quantities import with_numbers

_SMALL: Final = 50_000
"""Moves of all states together with which numpy takes about half a second."""


class JoinSizes(NamedTuple):
    """The sizes of k branches, with at most n stages each, and of a tail of t stages, in bytes.

    Entries beyond a branch's end mean nothing.

    Attributes:
        lengths: Shape (k,), stages of each branch.
        strides: Shape (k,), the weight of each branch's position in the number of a state.
        stored: Shape (k, 2 n + 1), at [j, position]: bytes of the checkpoint there; inside saved
            data, the least of any option.
        held: Shape (k, 2 n + 1), at [j, position]: bytes that stay once the branch is back there:
            the gradient of the next stage's input, and saved data that contains the input.
            Whatever the option, the gradient more than `stored`.
        activation: Shape (k, n + 1).
        tail_activation: Shape (t + 1,).
        tail_gradient: Shape (t + 1,), with what is half summed then.
        case: Shape (k, states): the case of each branch, see `HalfSums`.
        backward: Shape (cases, n): what is half summed beside the backward of each stage.
    """

    lengths: Array
    strides: Array
    stored: Array
    held: Array
    activation: Array
    tail_activation: Array
    tail_gradient: Array
    case: Array
    backward: Array


class JoinCosts(NamedTuple):
    """The costs of forwards of one kind, first runs or later ones; times in ns, else bytes.

    Stage s of branch j has options ``start[j, s] .. start[j, s + 1] - 1``, at most o in a branch.

    Attributes:
        elapsed: Shape (k, n + 1): overhead of running the stages before without keeping them.
        transit: Shape (k, n, n), at [j, s, e]: what running s..e needs besides the input.
        start: Shape (k, n + 1).
        saved: Shape (k, o), saved data of each option.
        extra: Shape (k, o), overhead in ns of keeping a stage under that option.
        number: Shape (k, o), its number in the profile.
        keep_forward: Shape (k, o), what its ``Fa`` needs.
        keep_backward: Shape (k, o), what its ``B`` needs, its saved data included.
        tail_elapsed: Shape (t + 1,): as `elapsed`, of the tail.
        tail_transit: Shape (t,), at [i]: what running the tail from its start to i needs
            after the join stage, for i >= 1; for i = 0, what the join stage makes.
    """

    elapsed: Array
    transit: Array
    start: Array
    saved: Array
    extra: Array
    number: Array
    keep_forward: Array
    keep_backward: Array
    tail_elapsed: Array
    tail_transit: Array


def states_of(profile: JoinProfile) -> int:
    """Return the number of states."""
    return prod(2 * len(branch) + 1 for branch in profile.branches)


def is_small(profile: JoinProfile) -> bool:
    """Return whether numpy has filled a table before a compiler would be loaded."""
    steps = sum(map(len, profile.branches)) + len(profile.closing)
    return states_of(profile) * len(profile.closing) * steps <= _SMALL


def positions_of(state: int, sizes: JoinSizes) -> list[int]:
    """Return the position of each branch in a state.

    Example:
        >>> from chainstay.dp.join.half_sums import half_sums
        >>> from chainstay.profiles import Stage
        >>> branch = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))
        >>> join = JoinProfile(branches=(branch, branch))
        >>> positions_of(5, join_sizes(join, (False, False), half_sums(join)))
        [1, 2]
    """
    spans = 2 * sizes.lengths + 1
    return [
        state // int(stride) % int(span) for stride, span in zip(sizes.strides, spans, strict=True)
    ]


def recursions_by_case(
    profile: JoinProfile, alone: tuple[Recursion, ...], sums: HalfSums
) -> tuple[Recursion, ...]:
    """Return the recursions of parts of the branches in every case, and of the tail.

    A part of a branch is solved after a sweep over it: all its runs are later ones.
    """
    chains = profile.chains
    kinds = [*(replace(recursion, first=recursion.again) for recursion in alone[:-1]), alone[-1]]
    return tuple(
        _beside(kinds[c], chains[c], held, backward)
        for c, held, backward in zip(sums.chain, sums.held, sums.backward, strict=True)
    )


def _beside(alone: Recursion, chain: ChainProfile, held: Array, backward: Array) -> Recursion:
    """Return the recursion of a chain beside half-summed gradients; see `HalfSums`."""
    gradient = alone.gradient + held

    def beside(costs: ForwardCosts, *, is_first: bool) -> ForwardCosts:
        to_keep, to_go_back = _needs(chain, costs, is_first=is_first)
        to_go_back += np.repeat(backward, np.diff(costs.start))
        floor = np.maximum(gradient[None, 1:] + to_keep[:, None], to_go_back[:, None])
        return replace(costs, keep_floor=floor)

    again = first = beside(alone.again, is_first=False)
    if alone.first is not alone.again:
        first = beside(alone.first, is_first=True)
    return replace(alone, gradient=gradient, first=first, again=again)


def join_sizes(profile: JoinProfile, keep: tuple[bool, ...], sums: HalfSums) -> JoinSizes:
    """Return the sizes of a join, in its own units, that do not depend on the kind of a run."""
    k, n = len(profile.branches), max(map(len, profile.branches))
    stored, held = (np.zeros((k, 2 * n + 1), dtype=np.int64) for _ in range(2))
    activation = np.zeros((k, n + 1), dtype=np.int64)
    for j, branch in enumerate(profile.branches):
        p, end = branch.arrays(), 2 * len(branch) + 1
        saved = [min(option.saved_bytes for option in s.all_options) for s in branch.stages]
        activation[j, : len(branch) + 1] = p.activation
        stored[j, 0] = p.activation[0]
        stored[j, 1:end:2], stored[j, 2:end:2] = p.activation[1:], saved
        held[j, 0] = p.gradient[0] * keep[j]
        held[j, 1:end:2], held[j, 2:end:2] = p.gradient[1:], p.gradient[1:] + saved
    lengths = np.array([len(branch) for branch in profile.branches], dtype=np.int64)
    spans = 2 * lengths + 1
    tail = profile.closing.arrays()
    backward = np.zeros((len(sums.chain) - 1, n), dtype=np.int64)
    for case, beside in enumerate(sums.backward[:-1]):
        backward[case, : len(beside)] = beside
    return JoinSizes(
        lengths=lengths,
        strides=np.array([prod(spans[j + 1 :].tolist()) for j in range(k)], dtype=np.int64),
        stored=stored,
        held=held,
        activation=activation,
        tail_activation=tail.activation,
        tail_gradient=tail.gradient + sums.held[-1],
        case=sums.case,
        backward=backward,
    )


def join_costs(
    profile: JoinProfile, recursions: tuple[Recursion, ...], *, is_first: bool
) -> JoinCosts:
    """Return the costs of first runs, or those of later ones, in the profile's own units."""
    k, n = len(profile.branches), max(map(len, profile.branches))
    kinds = [recursion.first if is_first else recursion.again for recursion in recursions]
    most = max(len(costs.saved) for costs in kinds[:k])
    elapsed, start = (np.zeros((k, n + 1), dtype=np.int64) for _ in range(2))
    transit = np.zeros((k, n, n), dtype=np.int64)
    saved, extra, number, forward, backward = np.zeros((5, k, most), dtype=np.int64)
    for j, (branch, costs) in enumerate(zip(profile.branches, kinds[:k], strict=True)):
        length, o = len(branch), len(costs.saved)
        elapsed[j, : length + 1], start[j, : length + 1] = costs.elapsed, costs.start
        transit[j, :length, :length] = costs.transit
        saved[j, :o], extra[j, :o], number[j, :o] = costs.saved, costs.extra, costs.number
        forward[j, :o], backward[j, :o] = _needs(branch, costs, is_first=is_first)
    tail = profile.closing
    dropped = [stage.dropped(first=is_first).overhead_bytes for stage in tail.stages]
    activation = recursions[-1].activation
    made = activation[1:] + np.array(dropped, dtype=np.int64)
    return JoinCosts(
        elapsed=elapsed,
        transit=transit,
        start=start,
        saved=saved,
        extra=extra,
        number=number,
        keep_forward=forward,
        keep_backward=backward,
        tail_elapsed=kinds[-1].elapsed,
        tail_transit=np.concatenate([made[:1], activation[1:-1] + made[1:]]),
    )


def _needs(branch: ChainProfile, costs: ForwardCosts, *, is_first: bool) -> Array:
    """Return what ``Fa`` and ``B`` of every option need; shape (2, options)."""
    needs = []
    for o, number in enumerate(costs.number.tolist()):
        s = int(costs.end[o]) - 1
        option = branch.stages[s].all_options[number]
        backward = option.backward_overhead_bytes
        backward += branch.gradient_bytes(s) + branch.gradient_bytes(s + 1)
        forward = option.run(first=is_first).overhead_bytes
        needs.append((option.saved_bytes + forward, option.saved_bytes + backward))
    return np.array(needs, dtype=np.int64).T


def in_units(profile: JoinProfile, unit: int, *, up: bool) -> JoinProfile:
    """Return the join with every size in units of `unit` bytes, rounded up or down.

    Shared gradients are left out: their sums are rounded, see `HalfSums.scaled`.
    A schedule that fits in a budget rounded down fits in it with sizes rounded up, as
    every sum of sizes does; and what fits at all fits with sizes rounded the other way.
    """

    def scale(size: int) -> int:
        return -(-size // unit) if up else size // unit

    def scaled(chain: ChainProfile) -> ChainProfile:
        return with_numbers(chain, "bytes", scale)

    tail = None if profile.tail is None else scaled(profile.tail)
    return joined(tuple(map(scaled, profile.branches)), tail)
