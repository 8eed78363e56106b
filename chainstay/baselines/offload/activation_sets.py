"""The sets of activations that other tools move: the rules of vDNN and AutoSwap.

*vDNN* ([RGCZK16]) moves what is far from being needed for long beside its size: ratios of
forward time to bytes, every threshold, the activations above it and every second of them.

*AutoSwap* ([ZYHLM19]) scores activations by how long they are not needed (duration), that
times their bytes (area), and both weighted by how far memory is above the budget meanwhile.
Each score is brought to 0 .. 1, they are mixed with weights on a grid, and the best
activations are taken until they make up for what the peak has above the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, product
from typing import Final

from chainstay.problems.ordered_no_wait import OrderedNoWait

_GRID: Final = 4
"""Weights are multiples of a quarter: 35 mixtures of four scores."""


def vdnn_sets(ordered: OrderedNoWait) -> Iterator[frozenset[int]]:
    """Yield the empty set and, for every threshold, all above it, and every second of these."""
    times = ordered.problem.profile.forward_times
    ratio = {j: Fraction(times[j], ordered.sizes[j]) for j in ordered.movable}
    yield frozenset()
    for threshold in sorted(set(ratio.values())):
        above = [j for j in ordered.movable if ratio[j] >= threshold]
        yield frozenset(above)
        yield frozenset(above[0::2])
        yield frozenset(above[1::2])


def autoswap_sets(ordered: OrderedNoWait) -> Iterator[frozenset[int]]:
    """Yield, for every mixture of the four scores, the best activations that suffice."""
    profile, movable = ordered.problem.profile, ordered.movable
    excess = profile.peak_bytes - ordered.problem.budget
    scores = [_between_0_and_1(score) for score in _scores(ordered)]
    for weights in product(range(_GRID + 1), repeat=len(scores)):
        if sum(weights) != _GRID:
            continue
        mixed = [
            sum((w * s[index] for w, s in zip(weights, scores, strict=True)), Fraction(0))
            for index in range(len(movable))
        ]
        chosen, left = [], excess
        for index in sorted(range(len(movable)), key=lambda index: (-mixed[index], index)):
            if left <= 0:
                break
            chosen.append(movable[index])
            left -= ordered.sizes[movable[index]]
        yield frozenset(chosen)


def first_sets(ordered: OrderedNoWait) -> Iterator[frozenset[int]]:
    """Yield the first 0, 1, 2, … activations."""
    movable = ordered.movable
    for count in range(len(movable) + 1):
        yield frozenset(movable[:count])


def host_fitting_sets(ordered: OrderedNoWait) -> Iterator[frozenset[int]]:
    """Yield sets that fit in a limited host: runs from each activation on, and the largest."""
    if ordered.problem.link.capacity is None:
        return
    movable = ordered.movable
    orders = [movable[start:] for start in range(len(movable))]
    orders.append(sorted(movable, key=lambda j: -ordered.sizes[j]))
    for order in orders:
        chosen: set[int] = set()
        for j in order:
            if not ordered.exceeds_host(chosen | {j}):
                chosen.add(j)
        yield frozenset(chosen)


def _scores(ordered: OrderedNoWait) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return duration, area, and both weighted by bytes above the budget, of what can move."""
    times = [*ordered.times[0], *reversed(ordered.times[1])]
    excess = [max(0, need) for need in (*ordered.needs[0], *reversed(ordered.needs[1]))]
    clock = [0, *accumulate(times)]
    overload = [0, *accumulate(time * above for time, above in zip(times, excess, strict=True))]

    def absent(totals: Sequence[int], j: int) -> int:
        """Return how much `totals` grows between the end of F_j and the start of B_j."""
        return totals[len(times) - 1 - j] - totals[j + 1]

    duration = [absent(clock, j) for j in ordered.movable]
    weighted = [absent(overload, j) for j in ordered.movable]
    sizes = [ordered.sizes[j] for j in ordered.movable]
    areas = [d * size for d, size in zip(duration, sizes, strict=True)]
    weighted_areas = [w * size for w, size in zip(weighted, sizes, strict=True)]
    return duration, areas, weighted, weighted_areas


def _between_0_and_1(scores: Sequence[int]) -> list[Fraction]:
    low, span = min(scores, default=0), max(scores, default=0) - min(scores, default=0)
    return [Fraction(score - low, span) if span else Fraction(0) for score in scores]
