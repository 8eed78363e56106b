"""A lower bound on the makespan of every schedule there is, whatever it may discard.

The dynamic programs are optimal within a family of schedules; this says how much anything
outside of it could gain at most. ``docs/derivations/unrestricted-bound.md`` has the proof: a
stage runs forward once only if its saved data stay from the first sweep to its backward,
so with ``x_i = 1`` for such stages

    maximise  Σ u_f[i] x_i   subject to   Σ_{i<k} ā_i x_i <= M - a^0 - need_k   for all k,

where ``need_k`` is what stage k takes at least, in the first sweep and in its backward. The
constraints are nested, so the fractional optimum is greedy by forward time per byte.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from chainstay.profiles import ChainProfile

__all__ = ["unrestricted_bound"]


def unrestricted_bound(profile: ChainProfile, budget: int) -> int:
    """Return a bound, in ns, on every schedule within `budget` bytes, under any rules for discards.

    Complexity:
        O(n^2).

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
        >>> unrestricted_bound(chain, 90), unrestricted_bound(chain, 1_000)
        (14, 12)
    """
    arrays = profile.arrays()
    backward = arrays.saved + arrays.backward_overhead + arrays.gradients
    made = np.minimum(arrays.saved, np.diagonal(arrays.fresh, 1))
    need = np.maximum(backward, arrays.gradient[-1] + made + arrays.forward_overhead)
    # left[k] bytes are for saved data of stages up to k: stage k + 1 and later ones run, too
    left = np.minimum.accumulate((budget - profile.input_bytes - need)[:0:-1])[::-1]
    time, saved = arrays.forward_time[:-1], arrays.saved[:-1]
    spared = Fraction(0)
    for i in sorted(range(len(time)), key=lambda i: _bytes_per_ns(int(saved[i]), int(time[i]))):
        taken = max(0, min(int(saved[i]), int(left[i:].min())))
        left[i:] -= taken
        spared += int(time[i]) * (Fraction(taken, int(saved[i])) if saved[i] else 1)
    return profile.least_time + max(0, int(time.sum()) - int(spared))


def _bytes_per_ns(size: int, time: int) -> Fraction | float:
    return Fraction(size, time) if time else np.inf
