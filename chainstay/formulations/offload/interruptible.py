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
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from chainstay.formulations.offload.variables import OffloadModel
from chainstay.formulations.pyomo_types import Expression, Relation, constraint_list, pyo
from chainstay.problems.offload import OffloadProblem
from chainstay.schedule import Op, OpKind
from chainstay.timetable import Move, Time, Timetable, exact

_DENOMINATORS: Final = range(1, 721)
_ERROR: Final = 1e-5
"""Error of a reported value, times the denominator tried, with which it counts as its fraction."""


@dataclass(frozen=True, slots=True)
class InterruptibleFormulation(OffloadModel):
    """A model that minimises ``model.idle``, in units, and the meaning of its variables.

    Attributes:
        horizon: Units for which no answer is idle longer.
    """

    horizon: int

    @property
    def needs(self) -> list[int]:
        """The excess of each computation above the budget when nothing is away, in units."""
        profile = self.problem.profile
        both = (*profile.forward_loads, *reversed(profile.backward_loads))
        return [self.units(load) - self.units(self.problem.budget) for load in both]

    def units(self, size: int) -> int:
        """Return the time that `size` bytes take on the link, in units."""
        return self.problem.link.transfer_ticks(size) // self.unit

    def size(self, j: int) -> int:
        """Return the size of activation j, in units of time on the link."""
        return self.units(self.problem.profile.activations[j])

    def outs(self, j: int) -> range:
        """Return the intervals in which j can leave: from when it is made to its backward."""
        return range(2 * j, 2 * (2 * self.stages - 1 - j) + 1)

    def backs(self, j: int) -> range:
        """Return the intervals in which j can come back: from when its forward has read it."""
        return range(2 * j + 2, 2 * (2 * self.stages - 1 - j) + 1)

    def length(self, q: int) -> Expression:
        """Return the length of interval q, in units."""
        return self.times[q // 2] if q % 2 else self.model.wait[q // 2]

    def away(self, k: int, q: int) -> Expression:
        """Return how much of activations 0 .. k-1 is away by the end of interval q, in units."""
        model = self.model
        return sum(
            sum(model.out[j, p] for p in self.outs(j) if p <= q)
            - sum(model.back[j, p] for p in self.backs(j) if p <= q)
            for j in self.movable
            if j < k
        )

    def decode(self) -> Timetable | None:
        """Return the values as fractions of one small denominator, ``None`` if they are not."""
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
        """Return whether whole activations move and intervals last; memory is not checked."""
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
        """Return the timetable of these values."""
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
    """Return the model of `problem`, whose link is half-duplex and without latency.

    Args:
        problem: A feasible problem.
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
    formulation = InterruptibleFormulation(model, problem, unit, horizon=-(-idle // unit))
    model.wait = pyo.Var(range(2 * formulation.stages), bounds=(0, formulation.horizon))
    share = pyo.UnitInterval if parts else pyo.Binary
    model.moves = pyo.Var(formulation.movable, domain=share)
    model.turned = pyo.Var(
        [(j, q) for j in formulation.movable for q in formulation.outs(j)], domain=share
    )
    for name, intervals in (("out", formulation.outs), ("back", formulation.backs)):
        indices = [(j, q) for j in formulation.movable for q in intervals(j)]
        model.add_component(name, pyo.Var(indices, domain=pyo.NonNegativeReals))
    for group in CONSTRAINTS:
        if not (parts and group is turning_points):
            model.add_component(group.__name__, constraint_list(group(formulation)))
    model.idle = pyo.Objective(expr=sum(model.wait[k] for k in range(2 * formulation.stages)))
    return formulation


def whole_activations(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """Activations move whole: ``Σ_q out[j,q] = Σ_q back[j,q] = size[j] moves[j]``."""
    model = formulation.model
    for j in formulation.movable:
        moved = formulation.size(j) * model.moves[j]
        yield sum(model.out[j, q] for q in formulation.outs(j)) == moved
        yield sum(model.back[j, q] for q in formulation.backs(j)) == moved


def back_what_has_left(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """No more has come back by the end of an interval than has left."""
    model = formulation.model
    return (
        sum(model.back[j, p] for p in formulation.backs(j) if p <= q)
        <= sum(model.out[j, p] for p in formulation.outs(j) if p <= q)
        for j in formulation.movable
        for q in formulation.backs(j)
    )


def turning_points(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """An activation leaves up to one interval and comes back from that one on."""
    model = formulation.model
    for j in formulation.movable:
        size = formulation.size(j)
        for q in formulation.outs(j):
            if q - 1 in formulation.outs(j):
                yield model.turned[j, q] >= model.turned[j, q - 1]
                yield model.out[j, q] <= size * (1 - model.turned[j, q - 1])
        for q in formulation.backs(j):
            yield model.back[j, q] <= size * model.turned[j, q]


def link_capacity(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """The transfers of an interval take at most as long as it lasts."""
    model = formulation.model
    for q in range(4 * formulation.stages):
        out = [model.out[j, q] for j in formulation.movable if q in formulation.outs(j)]
        back = [model.back[j, q] for j in formulation.movable if q in formulation.backs(j)]
        if out or back:
            yield sum(out + back) <= formulation.length(q)


def memory_at_starts(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """When computation k starts, its excess above the budget is away."""
    return (
        formulation.away(_readers(formulation, k), 2 * k) >= need
        for k, need in enumerate(formulation.needs)
        if need > 0
    )


def memory_at_ends(formulation: InterruptibleFormulation) -> Iterable[Relation]:
    """When computation k ends, its excess is still away: nothing has been freed yet."""
    return (
        formulation.away(_readers(formulation, k), 2 * k + 1) >= need
        for k, need in enumerate(formulation.needs)
        if need > 0
    )


def _readers(formulation: InterruptibleFormulation, k: int) -> int:
    """Return the index below which activations have been read when computation k runs."""
    return min(k, formulation.stages)


CONSTRAINTS: Final = (
    whole_activations,
    back_what_has_left,
    turning_points,
    link_capacity,
    memory_at_starts,
    memory_at_ends,
)
"""All constraint groups."""
