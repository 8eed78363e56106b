r"""Homogeneous joins, exactly: the dynamic program of [BHPS20] on one table.

Every schedule needs each backward once and the turn once, so only forwards are counted. For
branches of which the last ``q_j`` steps are ahead of their checkpoints, and c slots::

    T_c(q) = min over branches m and 1 <= i <= q_m of
                 i + T_{c-1}(q - i e_m) + Opt_0(i - 1, c - Σ_{j≠m} b_j)
    T_c(0) = 0 if c >= k                                                      (the turn)

The cut runs branch m from its checkpoint i steps on, keeps what it finds there, solves the
rest, and then runs those i steps backward, while every other branch j that has been cut, or
whose gradient is to be kept, holds one gradient.

*Deviation.* The paper keeps a vector b next to q. From ``b = keep``, ``b_j = 1`` exactly if
``q_j < ℓ_j`` or ``keep_j``, so one table per c is enough, and level c needs level c - 1 only.
Equation (3) is read with ``1 <= i <= l``.

*Symmetric branches* (same length, same flag) are merged: the cuts of one of them, with two of
its axes exchanged, are the cuts of another.

*With a tail* after the join (not in the paper), ``R(q, p, c, d)``: p tail steps remain, the
join step first, and with ``d = 1`` the gradient of the last one's output is held. Besides
cuts of branches there are cuts of the tail at i: all branches run to their ends from their
checkpoints, which stay, and the tail on to step i, where the rest of it is solved at once::

    R(q, p, c, d) = min( cuts as above,
                         Σ q + i + tail steps i..p-1 with c - k slots + R(q, i, c, 1) )
    R(0, p, c, d) = the tail as a chain with c - k + 1 slots

with room for k checkpoints, the outputs of branches that have ``q_j > 0``, and d gradients.

========  ========================
paper     here
========  ========================
``ℓ, k``  ``lengths``, ``len(lengths)``
``c``     ``slots``
``q``     the index of a table
========  ========================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import unfold
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.problems.arguments import require_kind, require_whole
from chainstay.problems.binomial import IMPOSSIBLE, reversal
from chainstay.profiles import HomogeneousJoin, kept_gradients
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs
from chainstay.solution import Family

Counts: TypeAlias = NDArray[np.int64]
_Key: TypeAlias = tuple[int, int]
"""Tail steps that remain, and whether their last gradient is held (1) or not (0)."""
_Entry: TypeAlias = tuple[tuple[int, ...], int, int, int]
"""The arguments ``q, p, d, c`` of an entry."""
_LARGEST_TABLE: Final = 2**28
"""The most entries of all tables together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinCurve:
    """The least makespan of a homogeneous join for every number of slots: a falling staircase.

    Attributes:
        slots: Numbers of slots, from the least feasible one to the one with which nothing is
            recomputed.
        makespans: The least makespan for each of them, in ns.
    """

    slots: range
    makespans: tuple[int, ...]
    _program: SlotProgram = field(repr=False)

    def makespan(self, slots: int) -> int:
        """Return the least makespan with so many slots, in ns.

        Raises:
            InfeasibleBudgetError: Fewer slots than the first.
        """
        return self.makespans[self._index(slots)]

    def schedule(self, slots: int) -> Schedule:
        """Return a schedule that attains `makespan`, without solving again.

        Raises:
            InfeasibleBudgetError: Fewer slots than the first.
        """
        return self._program.schedule(self.slots[self._index(slots)])

    def _index(self, slots: int) -> int:
        require_whole(slots)
        first = self.slots[0]
        if slots < first:
            raise self._program.infeasible(slots, first)
        return min(slots - first, len(self.slots) - 1)


def join_curve(profile: HomogeneousJoin, *, keep: Sequence[bool] | None = None) -> JoinCurve:
    """Return the optima of a homogeneous join for all numbers of slots, from one run.

    Args:
        profile: A join from `JoinProfile.homogeneous`.
        keep: The paper's b: for each branch, whether its input's gradient stays until the end.

    Raises:
        InvalidProfileError: `keep` does not fit the join, or its tables would not fit in memory.

    Example:
        >>> from chainstay.profiles import JoinProfile
        >>> join = JoinProfile.homogeneous((4, 10, 12), forward_time=1, backward_time=1,
        ...                                turn_time=1)
        >>> curve = join_curve(join)
        >>> [curve.makespan(c) for c in (7, 8, 9, 10, 11, 29)]
        [88, 81, 74, 72, 71, 53]
    """
    require_kind(profile, HomogeneousJoin)
    program = SlotProgram(profile, kept_gradients(profile, keep))
    last = profile.enough_slots
    program.extend(last)
    first = program.least_slots()
    slots = range(first, last + 1)
    return JoinCurve(slots=slots, makespans=tuple(map(program.makespan, slots)), _program=program)


class SlotProgram:
    """The tables of all numbers of slots so far, and the schedules in them.

    Args:
        profile: The join.
        keep: For each branch, whether the gradient of its input stays until the end.

    Complexity:
        For each table, with N = Π (ℓ_j + 1): O(N Σ ℓ_j) time in Σ ℓ_j array operations; tables
        of a tail of p steps are p + 1 such.
    """

    def __init__(self, profile: HomogeneousJoin, keep: tuple[bool, ...]) -> None:
        self._profile, self._keep = profile, keep
        self._lengths, self._tail = profile.lengths, profile.tail_length
        self._shape = tuple(length + 1 for length in self._lengths)
        self._keys: list[_Key] = [(p, 1) for p in range(1, self._tail + 1)] + [(self._tail, 0)]
        self._levels: list[dict[_Key, Counts]] = []
        self._alone: SlotProgram | None = None
        if self._tail:
            tail = HomogeneousJoin(
                lengths=(self._tail,), forward_time=1, backward_time=0, turn_time=0
            )
            self._alone = SlotProgram(tail, (False,))
        self._ahead = sum(np.indices(self._shape)) if self._tail else np.zeros(())
        self._running = sum(index > 0 for index in np.indices(self._shape)) if self._tail else 0
        self._reversals = _forwards_table(max((*self._lengths, self._tail, 1)), 2)

    def extend(self, slots: int) -> None:
        """Fill the tables up to so many slots.

        Raises:
            InvalidProfileError: They would not fit in memory.
        """
        entries = len(self._keys) * int(np.prod([float(n) for n in self._shape]))
        if entries * (slots + 1) > _LARGEST_TABLE:
            raise InvalidProfileError(
                f"lengths {self._lengths} with {slots} slots need {entries * (slots + 1):.2g} "
                f"table entries, at most {_LARGEST_TABLE:.2g}; solve with fewer slots, or ask "
                "waterfilling_bound for a lower bound"
            )
        if len(self._reversals) <= slots:
            self._reversals = _forwards_table(self._reversals.shape[1] - 1, slots)
        if self._alone is not None:
            self._alone.extend(slots)
        while len(self._levels) <= slots:
            self._levels.append(self._level(len(self._levels)))

    def makespan(self, slots: int) -> int:
        """Return the least makespan with so many slots, which must be enough, in ns."""
        return self._profile.makespan(self._forwards(slots))

    def is_feasible(self, slots: int) -> bool:
        """Return whether so many slots are enough for any schedule."""
        return self._forwards(slots) < IMPOSSIBLE

    def least_slots(self) -> int:
        """Return the least feasible number of slots, the paper's c_min."""
        slots = len(self._lengths)
        while not self.is_feasible(slots):
            slots += 1
        return slots

    def infeasible(self, slots: int, required: int) -> InfeasibleBudgetError:
        """Return the error for too few slots."""
        return InfeasibleBudgetError(
            budget=slots,
            required=required,
            stages=self._profile.stages,
            family=Family.SINGLE_TURN,
            network="join",
            unit="slots",
        )

    def schedule(self, slots: int) -> Schedule:
        """Return an optimal schedule with so many slots, which must be enough."""
        self.extend(slots)
        return self.solved(self._lengths, self._tail, slots)

    def _forwards(self, slots: int) -> int:
        """Return the least number of forwards with so many slots."""
        self.extend(slots)
        return self.forwards_of(self._lengths, slots)

    def _level(self, c: int) -> dict[_Key, Counts]:
        """Return the tables for c slots, shorter tails first."""
        level: dict[_Key, Counts] = {}
        for p, d in self._keys:
            table = np.full(self._shape, IMPOSSIBLE, dtype=np.int64)
            if c >= len(self._lengths):
                table[(0,) * len(self._lengths)] = self._at_join(p, d, c)
                if c > 0:
                    self._cut_branches(table, self._levels[c - 1][p, d], c)
                for i, cost in self._tail_cuts(p, d, c):
                    has_room = self._running <= c - len(self._lengths) - d
                    behind = level[i, 1] + self._ahead + cost
                    np.minimum(table, behind, out=table, where=has_room)
            level[p, d] = np.minimum(table, IMPOSSIBLE)
        return level

    def _at_join(self, p: int, d: int, c: int) -> int:
        """Return the forwards once every branch is at its end, all outputs held."""
        if p == 0:
            return 0
        slots = c - len(self._lengths) + 1
        return int(self._reversals[slots, p]) if d else self._chain_forwards(p, slots)

    def _chain_forwards(self, steps: int, slots: int) -> int:
        """Return the forwards of the last `steps` tail steps, their input in one of the slots."""
        assert self._alone is not None, "only tails end with a chain"
        return self._alone.forwards_of((steps,), slots)

    def _tail_cuts(self, p: int, d: int, c: int) -> Iterator[tuple[int, int]]:
        """Yield where to cut the tail, and the forwards of that besides those of the branches."""
        slots = c - len(self._lengths)
        for i in range(1, p + (1 - d)):
            behind = self._reversals[slots, p - i] if d else self._chain_forwards(p - i, slots)
            yield i, i + int(behind)

    def _cut_branches(self, table: Counts, previous: Counts, c: int) -> None:
        """Lower `table` to the best cut of any branch; `previous` is the table of c - 1 slots."""
        classes: dict[tuple[int, bool], list[int]] = {}
        for m, kind in enumerate(zip(self._lengths, self._keep, strict=True)):
            classes.setdefault(kind, []).append(m)
        for (length, _), alike in classes.items():
            if length == 0:
                continue
            cuts = self._cuts_of(alike[0], previous, c)
            for m in alike:
                np.minimum(table, np.swapaxes(cuts, alike[0], m), out=table)

    def _cuts_of(self, m: int, previous: Counts, c: int) -> Counts:
        """Return the best cut of branch m, for every q."""
        rest = np.ascontiguousarray(np.moveaxis(previous, m, 0))
        best = np.full_like(rest, IMPOSSIBLE)
        scratch = np.empty_like(rest)
        free = np.maximum(c - self._gradients_beside(m), 0)
        for i in range(1, len(rest)):
            ahead = np.add(rest[:-i], i + self._reversals[free, i], out=scratch[i:])
            np.minimum(best[i:], ahead, out=best[i:])
        return np.moveaxis(best, 0, m)

    def _gradients_beside(self, m: int) -> Counts:
        """Return how many gradients branches other than m hold, for every q without ``q_m``."""
        count = np.zeros((), dtype=np.int64)
        for j, length in enumerate(self._lengths):
            if j != m:
                is_held = np.arange(length + 1) < length
                count = np.add.outer(count, (is_held | self._keep[j]).astype(np.int64))
        return count

    def forwards_of(self, q: tuple[int, ...], c: int) -> int:
        """Return the least forwards of ``T_c(q)``; the tables of c slots must be filled."""
        return int(self._levels[c][self._tail, 0][q])

    def solved(self, q: tuple[int, ...], p: int, c: int) -> Schedule:
        """Return the schedule of ``T_c(q)`` with p tail steps, found again by its value."""
        return unfold((q, p, 0, c), self._decided)

    def _decided(self, entry: _Entry) -> Iterator[Op | _Entry]:
        """Yield what an entry consists of, in order."""
        q, p, d, c = entry
        target, k = int(self._levels[c][p, d][q]), len(self._lengths)
        if not any(q) and target == self._at_join(p, d, c):
            slots = c - k + 1
            yield from reversal(None, 0, p, slots) if d else self._chain(p, slots)
            return
        for m, i in ((j, i) for j, n in enumerate(q) for i in range(1, n + 1)):
            left = (*q[:m], q[m] - i, *q[m + 1 :])
            beside = sum(q[j] < self._lengths[j] or self._keep[j] for j in range(k) if j != m)
            behind = int(self._levels[c - 1][p, d][left])
            if target == i + behind + int(self._reversals[max(c - beside, 0), i]):
                start = self._lengths[m] - q[m]
                yield from forwards_dropping_inputs(start, start + i - 1, m)
                yield left, p, d, c - 1
                yield from reversal(m, start, i, c - beside)
                return
        for i, cost in self._tail_cuts(p, d, c):
            has_room = c >= k + sum(n > 0 for n in q) + d
            if has_room and target == cost + sum(q) + int(self._levels[c][i, 1][q]):
                yield from self._through_the_join(q, i)
                yield from reversal(None, i, p - i, c - k) if d else self._chain(p - i, c - k)
                yield q, i, 1, c
                return

    def _through_the_join(self, q: tuple[int, ...], i: int) -> Iterator[Op]:
        """Yield the operations that run all branches to their ends and the tail to step i."""
        for m, steps in enumerate(q):
            end = self._lengths[m]
            yield from forwards_dropping_inputs(end - steps, end - 1, m)
        yield Op(OpKind.FORWARD_KEEP_INPUT, 0)
        for m, steps in enumerate(q):
            if steps:
                yield Op(OpKind.DISCARD_ACTIVATION, self._lengths[m], m)
        for step in range(1, i):
            yield Op(OpKind.FORWARD_DROP, step)

    def _chain(self, steps: int, slots: int) -> Iterator[Op]:
        """Yield the operations of the last `steps` tail steps and the turn."""
        if steps == 0:
            yield Op(OpKind.TURN)
            return
        assert self._alone is not None, "only tails end with a chain"
        for op in self._alone.solved((steps,), 0, slots):
            yield op if op.kind is OpKind.TURN else Op(op.kind, op.stage)


def _forwards_table(steps: int, slots: int) -> Counts:
    """Return `least_reversal_forwards` for all arguments up to these.

    With c > 2 slots, the r-th repeat is needed ``binom(c - 3 + r, r)`` times.

    Returns:
        Shape (slots + 1, steps + 1), at [c, n]: for n steps and c slots, 0 for no step.
    """
    table = np.full((slots + 1, steps + 1), IMPOSSIBLE, dtype=np.int64)
    table[:, 0], table[2:, 1] = 0, 0
    for c in range(3, slots + 1):
        repeats, r = list[int](), 0
        while len(repeats) < steps:
            repeats += [r] * min(comb(c - 3 + r, r), steps - len(repeats))
            r += 1
        table[c, 1:] = np.cumsum(repeats)
    return table
