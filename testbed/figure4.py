r"""Figure 4 of [BEHJS24]: the chains on which persistent schedules are up to half slower.

Stages from 0, `k` = n - 2. The outputs have 1, then n times 3, then 4, then 0 bytes; saved
data and gradients have as many; forwards of stages 0 and 1 take k and 2, all else nothing;
the budget is 15. A persistent schedule pays for stage 1 before nearly every backward (k + 2 n
= 3 n - 2). *Drifting* lets go of ``a^1`` and holds ``a^2`` instead, which saves these runs but
costs stage 0 once more: 2 k + 6 = 2 n + 2. The ratio tends to 3/2.

*Nothing is faster than min(2 k + 6, k + 2 n)*, for n >= 3, k >= 2 and the discards "table1"
and "tape" (the paper prints 2 k + 4 for the first: it forgets that ``Fa1`` runs, too). Let
stage 0 run x times and stage 1 y times.

1. ``B(n+1)`` needs 14 of the 15 bytes, so of 3 bytes or more only its own input is left after
   it, and ``B(n)`` needs ``a^n``: y >= 2. With x >= 3 that is 3 k + 4 >= 2 k + 6.
2. x = 2, y = 2: the second run of stage 1 comes between ``B(n+1)`` and ``B(n)`` and is the
   ``Fa1`` for ``B1``. Its 3 bytes and its input's 1 stay (dropping the input takes an ``Fn1``),
   and ``B(n)`` needs 12 beside them: 16 > 15. So x = 2 has y >= 3, and costs 2 k + 6.
3. x = 1: the only run of stage 0 is the ``Fa0`` for ``B0``, whose byte stays. Each ``B(j)``,
   j = n+1 .. 3, needs 12 or more of the other 14, so no ``a^(j-1)`` outlives it, and stage 1
   runs again for ``B(j-1)``: with its first run y >= n, which costs k + 2 n.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from chainstay import DP, ChainProfile, Schedule, Stage, simulate

__all__ = ["BUDGET", "Row", "drifting_schedule", "figure4_chain", "measure"]

BUDGET = 15


@dataclass(frozen=True, kw_only=True)
class Row:
    """One instance: the best persistent makespan and the best of all."""

    n: int
    persistent: int
    optimum: int

    @property
    def ratio(self) -> Fraction:
        """What persistence costs."""
        return Fraction(self.persistent, self.optimum)


def figure4_chain(n: int, k: int) -> ChainProfile:
    """The instance with `n` outputs of 3 bytes and a first forward that takes `k`."""
    times = {0: k, 1: 2}
    stages = [
        Stage(
            name=f"F{stage}",
            forward_time=times.get(stage, 0),
            output_bytes=size,
            saved_bytes=size,
            gradient_bytes=size,
        )
        for stage, size in enumerate([1, *[3] * n, 4, 0])
    ]
    return ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=tuple(stages))


def drifting_schedule(n: int) -> Schedule:
    """Keep ``a^1`` in the first pass, ``a^2`` in its place on the way back: 2 k + 6.

    Example:
        >>> str(drifting_schedule(4))
        'Fc0 Fc1 Fn2 Fn3 Fn4 Fa5 Fa6 B6 B5 Fn1 Fc2 Fn3 Fa4 B4 Fa2 Fa3 B3 B2 Fa0 Fa1 B1 B0'
    """
    words = ["Fc0 Fc1", *(f"Fn{stage}" for stage in range(2, n + 1))]
    words += [f"Fa{n + 1} Fa{n + 2} B{n + 2} B{n + 1} Fn1"]
    for stage in range(n, 3, -1):
        words += ["Fc2", *(f"Fn{between}" for between in range(3, stage))]
        words += [f"Fa{stage} B{stage}"]
    return Schedule.parse(" ".join([*words, "Fa2 Fa3 B3 B2 Fa0 Fa1 B1 B0"]))


def measure(n: int) -> Row:
    """Persistent optimum by `DP`, unrestricted one by the drifting schedule, replayed."""
    profile = figure4_chain(n, n - 2)
    drifting = simulate(profile, drifting_schedule(n))
    if drifting.peak_bytes > BUDGET:
        raise AssertionError(f"n = {n}: drifting needs {drifting.peak_bytes} of {BUDGET} bytes")
    return Row(n=n, persistent=DP()(profile, BUDGET).makespan, optimum=drifting.makespan)
