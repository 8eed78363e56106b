r"""Interruptible offloading as a mixed-integer program over turning points: Problem 2 exactly.

Time is cut where computations start and end: interval ``2k`` is the wait before computation
k, ``2k + 1`` its run. Between two cuts only amounts matter: offloads first, then prefetches,
so memory is largest at the cuts. An activation is offloaded until its *turning point* and
prefetched after it. Everything is in ticks of the link, bytes as the time they take.

==============  ======================================================================
variable        meaning
==============  ======================================================================
``wait[k]``     idle time before computation k
``moves[j]``    activation j is offloaded and prefetched
``turned[j,q]`` all of it has left by the end of interval q
``out[j,q]``    how much of it leaves in interval q
``back[j,q]``   how much of it comes back in interval q
==============  ======================================================================

With ``parts``, any part of an activation may move: the fractional relaxation, which Greedy
solves and this checks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from chainstay.formulations.algebra import Constraint, Expression, Relation, listed, pyo
from chainstay.formulations.course import Course
from chainstay.offloading import OffloadProblem
from chainstay.schedule import Op, OpKind
from chainstay.timetable import Move, Time, Timetable, exact

__all__ = ["GROUPS", "InterruptibleFormulation", "build"]

_DENOMINATORS: Final = range(1, 721)
_ERROR: Final = 1e-5
"""Of a value that a solver reports, times the denominator tried, to be taken for its fraction."""


@dataclass(frozen=True, slots=True)
class InterruptibleFormulation(Course):
    """A Pyomo model and the meaning of its variables.

    Attributes:
        model: Minimises ``model.idle``, in units.
        problem, unit: As in `Course`.
        horizon: No answer is idle for longer, in units.
    """

    horizon: int

    @property
    def needs(self) -> list[int]:
        """What each computation has above the budget when nothing is away, in units."""
        profile = self.problem.profile
        both = (*profile.forward_loads, *reversed(profile.backward_loads))
        return [self.units(load) - self.units(self.problem.budget) for load in both]

    def units(self, size: int) -> int:
        """The time that `size` bytes take on the link."""
        return self.problem.link.transfer_ticks(size) // self.unit

    def size(self, j: int) -> int:
        """Of activation j."""
        return self.units(self.problem.profile.activations[j])

    def outs(self, j: int) -> range:
        """Intervals in which j can leave: from when it is made to its backward."""
        return range(2 * j, 2 * (2 * self.stages - 1 - j) + 1)

    def backs(self, j: int) -> range:
        """Intervals in which j can come back: from when its forward has read it."""
        return range(2 * j + 2, 2 * (2 * self.stages - 1 - j) + 1)

    def length(self, q: int) -> Expression:
        """Of interval q."""
        return self.times[q // 2] if q % 2 else self.model.wait[q // 2]

    def away(self, k: int, q: int) -> Expression:
        """What is away of activations 0 .. k-1 by the end of interval q."""
        model = self.model
        return sum(
            sum(model.out[j, p] for p in self.outs(j) if p <= q)
            - sum(model.back[j, p] for p in self.backs(j) if p <= q)
            for j in self.movable
            if j < k
        )

    def decode(self) -> Timetable | None:
        """The values as exact fractions of one small denominator, if they are such."""
        model = self.model
        values = {
            (variable.parent_component().local_name, variable.index()): float(pyo.value(variable))
            for name in ("wait", "out", "back")
            for variable in model.component(name).values()
        }
        for denominator in _DENOMINATORS:
            scaled = {key: value * denominator for key, value in values.items()}
            if all(abs(v - round(v)) <= _ERROR * denominator for v in scaled.values()):
                found = {key: Fraction(round(v), denominator) for key, v in scaled.items()}
                if self._holds(found):
                    return self._timetable(found)
        return None

    def _holds(self, values: dict[tuple[str, object], Fraction]) -> bool:
        """Whether whole activations move and intervals last; memory is up to the referee."""
        for j in self.movable:
            out = sum(values["out", (j, q)] for q in self.outs(j))
            back = sum(values["back", (j, q)] for q in self.backs(j))
            if out != back or (out not in (0, self.size(j)) and self.model.moves[j].is_binary()):
                return False
        for q in range(4 * self.stages):
            used = sum(values.get((n, (j, q)), 0) for n in ("out", "back") for j in self.movable)
            if used > (self.times[q // 2] if q % 2 else values["wait", q // 2]):
                return False
        return True

    def _timetable(self, values: dict[tuple[str, object], Fraction]) -> Timetable:
        scale = Fraction(self.unit, self.problem.link.ticks)
        starts: list[Time] = []
        moves: list[Move] = []
        clock = Fraction(0)
        for q in range(4 * self.stages):
            if q % 2:
                starts.append(exact(clock * scale))
            now = clock
            for name, kind in _KINDS.items():
                for j in self.movable if kind is OpKind.OFFLOAD_ACTIVATION else self.movable[::-1]:
                    if amount := values.get((name, (j, q)), 0):
                        move = Move(Op(kind, j), exact(now * scale), exact((now + amount) * scale))
                        moves.append(move)
                        now += amount
            clock += self.times[q // 2] if q % 2 else values["wait", q // 2]
        return Timetable(tuple(starts), tuple(moves))


_KINDS: Final = {"out": OpKind.OFFLOAD_ACTIVATION, "back": OpKind.PREFETCH_ACTIVATION}


def build(
    problem: OffloadProblem, *, parts: bool = False, known: Time | None = None
) -> InterruptibleFormulation:
    """State `problem`, whose link is half-duplex and without latency.

    Args:
        problem: Feasible.
        parts: Whether a part of an activation may move.
        known: A makespan that can be reached; no slower answer is in the model.
    """
    profile, link = problem.profile, problem.link
    times = [u * link.ticks for u in (*profile.forward_times, *profile.backward_times)]
    sizes = (*profile.activations, *profile.gradients, problem.budget)
    overheads = (*profile.forward_overheads, *profile.backward_overheads)
    unit = math.gcd(*times, *map(link.transfer_ticks, (*sizes, *overheads))) or 1
    idle = 2 * sum(map(link.transfer_ticks, profile.activations))
    if known is not None:
        idle = min(idle, math.ceil((known - profile.least_time) * link.ticks))
    model = pyo.ConcreteModel(name="interruptible")
    of = InterruptibleFormulation(model, problem, unit, horizon=-(-idle // unit))
    model.wait = pyo.Var(range(2 * of.stages), bounds=(0, of.horizon))
    share = pyo.UnitInterval if parts else pyo.Binary
    model.moves = pyo.Var(of.movable, domain=share)
    model.turned = pyo.Var([(j, q) for j in of.movable for q in of.outs(j)], domain=share)
    for name, intervals in (("out", of.outs), ("back", of.backs)):
        indices = [(j, q) for j in of.movable for q in intervals(j)]
        model.add_component(name, pyo.Var(indices, domain=pyo.NonNegativeReals))
    for group in GROUPS:
        if not (parts and group is turning_points):
            model.add_component(group.__name__, group(of))
    model.idle = pyo.Objective(expr=sum(model.wait[k] for k in range(2 * of.stages)))
    return of


def whole_activations(of: InterruptibleFormulation) -> Constraint:
    """``Σ_q out[j,q] = Σ_q back[j,q] = size[j] moves[j]``."""
    model = of.model

    def rows() -> Iterator[Relation]:
        for j in of.movable:
            moved = of.size(j) * model.moves[j]
            yield sum(model.out[j, q] for q in of.outs(j)) == moved
            yield sum(model.back[j, q] for q in of.backs(j)) == moved

    return listed(rows())


def back_what_has_left(of: InterruptibleFormulation) -> Constraint:
    """By the end of every interval, at most what has left has come back."""
    model = of.model
    return listed(
        sum(model.back[j, p] for p in of.backs(j) if p <= q)
        <= sum(model.out[j, p] for p in of.outs(j) if p <= q)
        for j in of.movable
        for q in of.backs(j)
    )


def turning_points(of: InterruptibleFormulation) -> Constraint:
    """It leaves up to an interval, comes back from that one on, and does not turn again."""
    model = of.model

    def rows() -> Iterator[Relation]:
        for j in of.movable:
            size = of.size(j)
            for q in of.outs(j):
                if q - 1 in of.outs(j):
                    yield model.turned[j, q] >= model.turned[j, q - 1]
                    yield model.out[j, q] <= size * (1 - model.turned[j, q - 1])
            for q in of.backs(j):
                yield model.back[j, q] <= size * model.turned[j, q]

    return listed(rows())


def link_capacity(of: InterruptibleFormulation) -> Constraint:
    """What moves in an interval takes at most as long as it lasts."""
    model = of.model

    def rows() -> Iterator[Relation]:
        for q in range(4 * of.stages):
            out = [model.out[j, q] for j in of.movable if q in of.outs(j)]
            back = [model.back[j, q] for j in of.movable if q in of.backs(j)]
            if out or back:
                yield sum(out + back) <= of.length(q)

    return listed(rows())


def memory_at_starts(of: InterruptibleFormulation) -> Constraint:
    """When computation k starts, what it has above the budget is away."""
    return listed(
        of.away(_readers(of, k), 2 * k) >= need for k, need in enumerate(of.needs) if need > 0
    )


def memory_at_ends(of: InterruptibleFormulation) -> Constraint:
    """And still when it ends, before it frees anything."""
    return listed(
        of.away(_readers(of, k), 2 * k + 1) >= need for k, need in enumerate(of.needs) if need > 0
    )


def _readers(of: InterruptibleFormulation, k: int) -> int:
    """Activations below this index have been read by their forwards when computation k runs."""
    return min(k, of.stages)


GROUPS: Final = (
    whole_activations,
    back_what_has_left,
    turning_points,
    link_capacity,
    memory_at_starts,
    memory_at_ends,
)
"""The sentences of the model."""
