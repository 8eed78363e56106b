"""A lower bound on the makespan of every schedule there is, whatever it may discard.

The dynamic programs are optimal within a family of schedules; this says how much anything
outside of it could gain at most. ``docs/derivations/unrestricted-bound.md`` has the proof: a
stage runs forward once only if what its first run saved stays until its backward. Under option k
that takes ``ā_i^k`` bytes and ``w_i^k`` ns; any other stage takes ``twice_i`` ns at least, a first
run and all of a later one. So with ``x_i^k = 1`` for the former

    maximise  Σ (twice_i - w_i^k) x_i^k   subject to   Σ_{i<j} ā_i^k x_i^k <= M - a^0 - need_j,

one constraint for each j, where ``need_j`` is what stage j takes at least, in the first sweep and
in its backward. The constraints are nested, so the fractional optimum is greedy by time per byte,
over the segments of each stage's concave hull. Where options keep several stages, only the last
constraint is used (`_bound_with_spans`).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array
from chainstay.problems.arguments import require_kind, require_whole
from chainstay.profiles import ChainProfile, Stage

_FINE: Final = 2**16
"""Parts of a nanosecond in which times and prices are counted where options keep several stages."""


def unrestricted_bound(profile: ChainProfile, budget: int) -> int:
    """Return a bound, in ns, on every schedule within `budget` bytes, under any rules for discards.

    Complexity:
        O(n^2) for each option.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> unrestricted_bound(chain, 90), unrestricted_bound(chain, 1_000)
        (14, 12)
    """
    require_kind(profile, ChainProfile)
    require_whole(budget)
    options = [stage.all_options for stage in profile.stages]
    if any(option.stages > 1 for ways in options for option in ways):
        return _bound_with_spans(profile, budget)
    twice = [_twice(stage) for stage in profile.stages]
    kept = [[option.first.total_time for option in ways] for ways in options]
    least = [min(time, *times) for time, times in zip(twice, kept, strict=True)]
    # left[k] bytes are for saved data of stages up to k: stage k + 1 and later ones run, too
    room = budget - profile.input_bytes - _needs(profile)
    left = np.minimum.accumulate(room[:0:-1])[::-1]
    segments = [
        segment
        for i, ways in enumerate(options[:-1])
        for segment in _segments(i, [(o.saved_bytes, twice[i] - o.first.total_time) for o in ways])
    ]
    spared = Fraction(0)
    for segment in sorted(segments, key=_Segment.bytes_per_ns):
        i = segment.stage
        taken = max(0, min(segment.size, int(left[i:].min())))
        left[i:] -= taken
        spared += segment.time * (Fraction(taken, segment.size) if segment.size else 1)
    return max(sum(least), sum(twice[:-1]) + least[-1] - int(spared))


class _Segment(NamedTuple):
    """A piece of a stage's concave hull: the ns that so many bytes more spare."""

    stage: int
    size: int
    time: int

    def bytes_per_ns(self) -> Fraction:
        """Return the bytes for each ns spared."""
        return Fraction(self.size, self.time)


def _segments(stage: int, points: list[tuple[int, int]]) -> list[_Segment]:
    """Return the concave hull of points (bytes, ns spared) and the origin, by falling slope."""
    hull: list[_Segment] = []
    size, time = 0, 0
    for more_size, more_time in sorted(points, key=lambda point: (point[0], -point[1])):
        if more_time <= time:
            continue
        segment = _Segment(stage, more_size - size, more_time - time)
        while hull and hull[-1].bytes_per_ns() >= segment.bytes_per_ns():
            last = hull.pop()
            segment = _Segment(stage, last.size + segment.size, last.time + segment.time)
        hull.append(segment)
        size, time = more_size, more_time
    return hull


def _twice(stage: Stage) -> int:
    """Return the least ns of a stage that is not kept by its first run."""
    runs = (stage.dropped(first=True), *(option.first for option in stage.all_options))
    again = (option.run(first=False) for option in stage.all_options)
    return min(run.time for run in runs) + min(run.total_time for run in again)


def _needs(profile: ChainProfile) -> Array:
    """Return the bytes that each stage takes at least, in the first sweep and in its backward."""
    p = profile.arrays()
    needs = []
    for i, stage in enumerate(profile.stages):
        dropped = int(p.fresh[i, i + 1]) + stage.dropped(first=True).overhead_bytes
        kept = (o.saved_bytes + o.first.overhead_bytes for o in stage.all_options)
        saved = min(o.saved_bytes + o.backward_overhead_bytes for o in stage.all_options)
        forward = int(p.gradient[-1]) + min(dropped, *kept)
        needs.append(max(forward, saved + int(p.gradients[i])))
    return np.array(needs, dtype=np.int64)


def _bound_with_spans(profile: ChainProfile, budget: int) -> int:
    """Return the bound where options keep several stages: a shortest path, with memory priced.

    The records whose backward runs cover the chain. One whose stages all run first in its ``Fa`` is
    there at the first backward, beside the record of the loss, so at price p it costs
    ``w + p ā`` less p times the bytes that are left for all of them. Of any other record some
    stage ran before, and so did its first stage, by a forward that ends in no backward: that costs
    a share `_shares` of it for each stage that ran.
    """
    shares, last = _shares(profile), len(profile)
    needs, early, late = [], [], []
    gradient = [profile.gradient_bytes(i) for i in range(last + 1)]
    for s, stage in enumerate(profile.stages):
        for option in stage.all_options:
            end, time = s + option.stages, option.first.total_time * _FINE
            again = option.run(first=False).total_time * _FINE + sum(shares[s:end])
            late.append((s, end, min(time + shares[s], again), 0))
            early.append((s, end, time, option.saved_bytes if end < last else 0))
            if end == last:  # gradients that pass through count once
                both = max(gradient[s], gradient[last])
                needs.append(option.saved_bytes + option.backward_overhead_bytes + both)
    room = budget - profile.input_bytes - min(needs)
    edges = sorted(early + late, reverse=True)
    low, high = 0, 2 * sum(time for _, _, time, _ in late)
    best, _ = _cheapest_path(edges, last, 0)
    while low < high:  # the bound is concave in the price, with slope held - room
        price = (low + high) // 2
        time, held = _cheapest_path(edges, last, price)
        best = max(best, time - price * room)
        if held > room:
            low = price + 1
        else:
            high = price
    return max(profile.least_time, -(-best // _FINE))


def _cheapest_path(
    edges: list[tuple[int, int, int, int]], last: int, price: int
) -> tuple[int, int]:
    """Return the least ``time + price * bytes`` of records that cover all stages, and its bytes.

    Args:
        edges: First stage, stage after the last, time and bytes of records, last stages first.
        last: The number of stages.
        price: Of a byte, in units of time.
    """
    cost: list[tuple[int, int]] = [(-1, 0)] * last + [(0, 0)]
    for s, end, time, size in edges:
        total = cost[end][0] + time + price * size
        if cost[s][0] < 0 or total < cost[s][0]:
            cost[s] = (total, cost[end][1] + size)
    return cost[0]


def _shares(profile: ChainProfile) -> list[int]:
    """Return a time for each stage such that no forward takes less than its stages' times.

    In units of ``1 / _FINE`` ns.
    """
    shares = [_FINE * min(run.time for run in stage.dropped_runs) for stage in profile.stages]
    for s, stage in enumerate(profile.stages):
        for option in stage.all_options:
            end, time = s + option.stages, min(run.time for run in option.runs)
            if (total := sum(shares[s:end])) > time * _FINE:
                shares[s:end] = [share * time * _FINE // total for share in shares[s:end]]
    return shares
