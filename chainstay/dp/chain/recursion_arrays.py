"""A recursion as plain arrays, for the code that fills its fronts, and the pool of these fronts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array, ForwardCosts
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Recursion


class RecursionArrays(NamedTuple):
    """A `Recursion` with forwards of one kind, for compiled code.

    Every array of an argument costs a little there.

    Attributes:
        activation: Shape (n + 1,), at [k]: bytes that a restart at k stores; with skips, the
            least that it stores, and `fresh` tells how much.
        fresh: Shape (n, n + 1), at [s, k], bytes of ``a^k`` that are no part of ``a^s``; of
            shape (0, 0) for chains without skips.
        least_input: Shape (n + 1,), bytes that the input of a stage takes at least: by itself, or
            in saved data; 0 for the network's input.
        gradient: Shape (n + 1,), bytes of gradients, and of `ForwardCosts.held`.
        elapsed, transit, start, end, saved, extra, number, keep_floor: As in `ForwardCosts`.
    """

    activation: Array
    fresh: Array
    least_input: Array
    gradient: Array
    elapsed: Array
    transit: Array
    start: Array
    end: Array
    saved: Array
    extra: Array
    number: Array
    keep_floor: Array


class SweepArrays(NamedTuple):
    """The part of `RecursionArrays` that restarts need: fewer arguments make calls faster."""

    activation: Array
    fresh: Array
    gradient: Array
    elapsed: Array
    transit: Array


class OptionArrays(NamedTuple):
    """The part of `RecursionArrays` that keeping stages needs."""

    start: Array
    end: Array
    saved: Array
    extra: Array
    keep_floor: Array


class ArraysByKind(NamedTuple):
    """The arrays of a recursion for both kinds of forwards.

    Attributes:
        first: Arrays for sub-chains up to the loss.
        again: Arrays for all others; the same if the kind of run does not matter.
    """

    first: RecursionArrays
    again: RecursionArrays


class ChainFrontPool(NamedTuple):
    """Fronts of all sub-chains, in one pool of breakpoints.

    Attributes:
        memory: Bytes of all breakpoints of all fronts.
        overhead: Ns of all breakpoints of all fronts.
        first: Shape (n + 1, n), at [s, t]: index of the first breakpoint of the front of s..t. At
            [t + 1, t] it is 0, and so is `last`: nothing is left to do, in 0 bytes and ns.
        last: Shape (n + 1, n), at [s, t]: index of its last breakpoint; ``first - 1`` when none is
            kept.
    """

    memory: Array
    overhead: Array
    first: Array
    last: Array


@kernel
def split_arrays(chain: RecursionArrays) -> tuple[SweepArrays, OptionArrays]:
    """Return what restarts need, and what keeping stages needs."""
    sweep = SweepArrays(chain.activation, chain.fresh, chain.gradient, chain.elapsed, chain.transit)
    return sweep, OptionArrays(chain.start, chain.end, chain.saved, chain.extra, chain.keep_floor)


def recursion_arrays(recursion: Recursion) -> ArraysByKind:
    """Return the arrays of `recursion` that compiled code needs."""
    fresh = recursion.fresh if recursion.has_skips else np.empty((0, 0), dtype=np.int64)
    nearest = recursion.nearest
    least_input = nearest.copy()
    for costs in (recursion.first, recursion.again):
        np.minimum.at(least_input, costs.end, costs.saved)
    least_input[0] = 0

    def arrays(costs: ForwardCosts) -> RecursionArrays:
        return RecursionArrays(
            activation=nearest,
            fresh=fresh,
            least_input=least_input,
            gradient=recursion.gradient + costs.held,
            elapsed=costs.elapsed,
            transit=costs.transit,
            start=costs.start,
            end=costs.end,
            saved=costs.saved,
            extra=costs.extra,
            number=costs.number,
            keep_floor=costs.keep_floor,
        )

    again = arrays(recursion.again)
    first = again if recursion.first is recursion.again else arrays(recursion.first)
    return ArraysByKind(first, again)


def has_options(by_kind: ArraysByKind) -> bool:
    """Return whether the chain has several options, or costs by kind of forward, that matter."""
    first, again = by_kind
    return first is not again or len(again.saved) >= len(again.start)
