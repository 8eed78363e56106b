"""A lower bound for homogeneous joins at once at any size: waterfilling over cuts.

Every schedule of the recurrence in `slots` is a sequence of T cuts and the turn. The t-th cut has
``c - t + 2 - P_t`` slots for its steps to run backward, where ``P_t`` branches hold a
gradient by then, its own included; and i steps cost ``i + Opt_0(i - 1, ·)`` forwards, whose
increments do not fall (`chainstay.problems.binomial`). Letting the cuts share all ``Σ ℓ`` steps
as they like, whatever branch they belong to, and new branches begin as late as they can, the
cheapest increments are filled up first. The least of that over T is a bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

from chainstay.problems.arguments import require_kind, require_whole
from chainstay.profiles import HomogeneousJoin, kept_gradients


def waterfilling_bound(
    profile: HomogeneousJoin, slots: int, *, keep: Sequence[bool] | None = None
) -> int | None:
    """Return a time, in ns, that no schedule within `slots` is below; None if nothing fits at all.

    With a tail after the join, the bound only counts every step once.

    Args:
        profile: A join from `JoinProfile.homogeneous`.
        slots: The budget, in slots.
        keep: The paper's b: for each branch, whether its input's gradient stays until the end.

    Raises:
        InvalidProfileError: `keep` does not fit the join.

    Example:
        >>> from chainstay.profiles import JoinProfile
        >>> join = JoinProfile.homogeneous((4, 10, 12), forward_time=1, backward_time=1,
        ...                                turn_time=1)
        >>> [waterfilling_bound(join, slots) for slots in (4, 9, 29)]
        [None, 73, 53]
    """
    require_kind(profile, HomogeneousJoin)
    require_whole(slots)
    flags = kept_gradients(profile, keep)
    steps = sum(profile.lengths)
    if profile.tail_length or steps == 0:
        return profile.least_time if slots >= len(flags) else None
    most_cuts = min(slots - len(flags), steps)
    cut_branches = sum(length > 0 for length in profile.lengths)
    held = [length > 0 or flag for length, flag in zip(profile.lengths, flags, strict=True)]
    found = [
        forwards
        for cuts in range(cut_branches, most_cuts + 1)
        if (forwards := _filled(steps, _slots_of(cuts, slots, sum(flags), sum(held)))) is not None
    ]
    return profile.makespan(min(found)) if found else None


def _slots_of(cuts: int, slots: int, kept: int, held: int) -> list[int]:
    """Return the slots that each cut has for running backward, at most."""
    gradients = [max(1, kept, held - (cuts - t)) for t in range(1, cuts + 1)]
    return [slots - t + 2 - held_then for t, held_then in enumerate(gradients, start=1)]


def _filled(steps: int, slots: list[int]) -> int | None:
    """Return the least forwards if cuts with these slots share `steps`; None if they cannot."""
    if min(slots) < 2:
        return None
    total, left = steps, steps - len(slots)  # the first step of a cut needs one forward
    if left and max(slots) == 2:
        return None
    repeats = 0
    while left:
        repeats += 1
        here = min(left, sum(comb(c - 3 + repeats, repeats) for c in slots if c > 2))
        total += here * repeats
        left -= here
    return total
