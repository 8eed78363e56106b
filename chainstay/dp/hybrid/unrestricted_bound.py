"""A lower bound on every schedule that recomputes and offloads, whatever its transfers.

What is on the host only, at a time t of a schedule of makespan T, left before t and comes
back after t if it is ever needed: at most ``β min(t, T - t) <= β T / 2`` bytes, in both
directions of any link. On a device with so much more memory the same computations run
without a link. So T is at least the bound on schedules without transfers in
``M + β T / 2`` bytes (`chainstay.dp.bounds.unrestricted_bound`): the least such T is the bound.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

from chainstay.dp.bounds.unrestricted_bound import unrestricted_bound
from chainstay.profiles import ChainProfile, Link


def hybrid_bound(profile: ChainProfile, budget: int, link: Link) -> int:
    """Return a time that no schedule within `budget` bytes is below, in the profile's time units.

    Complexity:
        O(n^2 log T) for makespans T.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=4, backward_time=8, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> hybrid_bound(chain, 90, Link(bandwidth=Fraction(1, 4)))
        53
    """

    def without_link(makespan: int) -> int:
        away = int(Fraction(link.bandwidth) * makespan / 2)
        return unrestricted_bound(profile, budget + away)

    shortest = profile.least_time
    makespans = range(shortest, max(shortest, unrestricted_bound(profile, budget)))
    least = shortest + bisect_left(makespans, x=True, key=lambda time: without_link(time) <= time)
    if least == shortest:
        return least
    # Makespans between least - 1 and least may do, too, where the bound allows that.
    return max(least - 1, without_link(least))
