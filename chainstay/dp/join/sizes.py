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
from typing import NamedTuple

import numpy as np

from chainstay.dp.recursion import Array, Recursion
from chainstay.profiles import ChainProfile, JoinProfile

__all__ = ["JoinSizes", "in_units", "join_sizes", "positions_of", "recursions_of", "states_of"]


class JoinSizes(NamedTuple):
    """The sizes and times of k branches, with at most n stages each, and of a tail of t stages.

    Entries beyond a branch's end mean nothing. Bytes, unless said otherwise.

    Attributes:
        lengths: Shape (k,), stages of each branch.
        strides: Shape (k,), the weight of each branch's position in the number of a state.
        stored: Shape (k, 2 n + 1), at [j, position]: bytes of the checkpoint there.
        held: Shape (k, 2 n + 1), at [j, position]: bytes that stay once the branch is back there:
            the gradient of the next stage's input, and saved data that contains the input.
        activation: Shape (k, n + 1).
        saved: Shape (k, n).
        elapsed: Shape (k, n + 1), ns: forward time of the stages before.
        keep_forward: Shape (k, n), what ``Fa`` of a stage needs.
        keep_backward: Shape (k, n), what ``B`` of a stage needs, its saved data included.
        transit: Shape (k, n, n), at [j, s, e]: what running s..e needs besides the input.
        tail_activation: Shape (t + 1,).
        tail_gradient: Shape (t + 1,).
        tail_elapsed: Shape (t + 1,), ns: forward time of the tail's stages before.
        tail_transit: Shape (t,), at [i]: what running the tail from its start to i needs
            after the join stage, for i >= 1; for i = 0, what the join stage makes.
    """

    lengths: Array
    strides: Array
    stored: Array
    held: Array
    activation: Array
    saved: Array
    elapsed: Array
    keep_forward: Array
    keep_backward: Array
    transit: Array
    tail_activation: Array
    tail_gradient: Array
    tail_elapsed: Array
    tail_transit: Array


def states_of(profile: JoinProfile) -> int:
    """Return the number of states."""
    return prod(2 * len(branch) + 1 for branch in profile.branches)


def positions_of(state: int, sizes: JoinSizes) -> list[int]:
    """Return the position of each branch in a state.

    Example:
        >>> from chainstay.profiles import Stage
        >>> branch = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))
        >>> positions_of(5, join_sizes(JoinProfile(branches=(branch, branch)), (False, False)))
        [1, 2]
    """
    spans = 2 * sizes.lengths + 1
    return [
        state // int(stride) % int(span) for stride, span in zip(sizes.strides, spans, strict=True)
    ]


def recursions_of(profile: JoinProfile) -> tuple[Recursion, ...]:
    """Return the recursions of every branch, and of the tail."""
    return tuple(Recursion.from_profile(chain) for chain in (*profile.branches, profile.closing))


def join_sizes(profile: JoinProfile, keep: tuple[bool, ...]) -> JoinSizes:
    """Return the arrays of a join, sizes in its own units, times in ns."""
    k, n = len(profile.branches), max(map(len, profile.branches))
    arrays = {
        name: np.zeros((k, width), dtype=np.int64)
        for name, width in {
            "stored": 2 * n + 1,
            "held": 2 * n + 1,
            "activation": n + 1,
            "saved": n,
            "elapsed": n + 1,
            "keep_forward": n,
            "keep_backward": n,
        }.items()
    }
    transit = np.zeros((k, n, n), dtype=np.int64)
    for j, branch in enumerate(profile.branches):
        recursion, length = Recursion.from_profile(branch), len(branch)
        for name, values in _branch(branch, recursion, is_kept=keep[j]).items():
            arrays[name][j, : len(values)] = values
        transit[j, :length, :length] = recursion.again.transit
    lengths = np.array([len(branch) for branch in profile.branches], dtype=np.int64)
    spans = 2 * lengths + 1
    tail, after = profile.closing.arrays(), Recursion.from_profile(profile.closing)
    made = tail.activation[1:] + tail.forward_overhead
    return JoinSizes(
        lengths=lengths,
        strides=np.array([prod(spans[j + 1 :].tolist()) for j in range(k)], dtype=np.int64),
        transit=transit,
        tail_activation=tail.activation,
        tail_gradient=tail.gradient,
        tail_elapsed=after.again.elapsed,
        tail_transit=np.concatenate([made[:1], tail.activation[1:-1] + made[1:]]),
        **arrays,
    )


def _branch(branch: ChainProfile, recursion: Recursion, *, is_kept: bool) -> dict[str, Array]:
    """Return the rows of one branch, by the name of the array."""
    p = branch.arrays()
    stored, held = (np.zeros(2 * len(branch) + 1, dtype=np.int64) for _ in range(2))
    stored[0], stored[1::2], stored[2::2] = p.activation[0], p.activation[1:], p.saved
    held[0] = p.gradient[0] * is_kept
    held[1::2], held[2::2] = p.gradient[1:], p.gradient[1:] + p.saved
    return {
        "stored": stored,
        "held": held,
        "activation": p.activation,
        "saved": p.saved,
        "elapsed": recursion.again.elapsed,
        "keep_forward": p.saved + p.forward_overhead,
        "keep_backward": p.saved + p.backward_overhead + p.gradients,
    }


def in_units(profile: JoinProfile, unit: int, *, up: bool) -> JoinProfile:
    """Return the join with every size in units of `unit` bytes, rounded up or down.

    A schedule that fits in a budget rounded down fits in it with sizes rounded up, as
    every sum of sizes does; and what fits at all fits with sizes rounded the other way.
    """

    def scale(size: int) -> int:
        return -(-size // unit) if up else size // unit

    def scaled(chain: ChainProfile) -> ChainProfile:
        stages = (
            replace(
                stage,
                output_bytes=scale(stage.output_bytes),
                saved_bytes=scale(stage.saved_bytes),
                gradient_bytes=scale(stage.gradient_bytes),
                forward_overhead_bytes=scale(stage.forward_overhead_bytes),
                backward_overhead_bytes=scale(stage.backward_overhead_bytes),
            )
            for stage in chain.stages
        )
        return ChainProfile(
            input_bytes=scale(chain.input_bytes),
            input_gradient_bytes=scale(chain.input_gradient_bytes),
            stages=tuple(stages),
        )

    joined = JoinProfile(branches=tuple(map(scaled, profile.branches)))
    if profile.tail is None:
        return joined
    tail = replace(
        scaled(profile.tail),
        input_bytes=joined.output_bytes,
        input_gradient_bytes=joined.output_gradient_bytes,
    )
    return replace(joined, tail=tail)
