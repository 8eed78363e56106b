r"""Recomputing and offloading as a public Pyomo model, for whole transfers and tiny chains.

Computations have fixed places: between two backwards, passes over the stages, each forward of
which may run. What is in memory has *lives*: items that a forward makes or a prefetch brings
back, and besides gradients and overheads. Whatever takes memory, a computation or a prefetch,
finds all lives there that were taken before it, unless they are gone. The order between
prefetches and computations is a variable, so that what takes no time holds memory all the same.

================  ====================================================================
variable          meaning
================  ====================================================================
``saves[k]``      computation k runs as ``Fa``; ``plain[k]``: as ``Fc`` (or ``Fn``)
``start[k]``      when computation k starts
``gone[v]``       when the memory of life v is free
``reads[k,v]``    computation k reads life v
``sends[v]``      life v is what is sent; ``sent[i,l]``: item i goes over link l
``leaves[i]``     when the transfer of item i from the device starts
``comes[v]``      prefetch v takes place; ``returns[v]``: when it starts
``over[v,l]``     prefetch v comes over link l
``early[v,k]``    prefetch v takes memory before computation k does
``first[a,b]``    transfer a starts before transfer b
``past[v,e]``     life v is gone before e takes memory
``held[i,j,l]``   item i has its place behind link l when item j leaves over it
================  ====================================================================
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Final

from chainstay.formulations.algebra import pyo
from chainstay.formulations.extent import Extent, items_of, size_of
from chainstay.formulations.hybrid_memory import MEMORY
from chainstay.formulations.hybrid_places import HybridFormulation, Life, Place, Transfer
from chainstay.formulations.hybrid_sentences import SENTENCES
from chainstay.hybrid import HybridProblem
from chainstay.schedule import OpKind
from chainstay.timetable import Time

__all__ = ["GROUPS", "HybridFormulation", "build"]

GROUPS: Final = (*SENTENCES, *MEMORY)
"""The sentences of the model; leave one out, and some instance has too fast an answer."""


def build(
    problem: HybridProblem, extent: Extent, *, known: Time | None = None
) -> HybridFormulation:
    """State `problem`, whose transfers are integral.

    Args:
        problem: Feasible.
        extent: How much of it to state.
        known: A makespan that can be reached; no slower answer is in the model.
    """
    profile, link = problem.profile, problem.link
    moving = [
        link.transfer_ticks(size_of(problem, item), level)
        for item in items_of(problem)
        for level in range(len(link.levels))
        if size_of(problem, item)
    ]
    ticks = [
        time * link.ticks for s in profile.stages for time in (s.forward_time, s.backward_time)
    ]
    unit = math.gcd(*ticks, *moving) or 1
    places = _places(problem, extent, unit)
    longest = Fraction(sum(place.time for place in places) * unit)
    longest += (1 + extent.prefetches) * sum(moving)
    if known is not None:
        longest = min(longest, Fraction(known * link.ticks))
    lives = _lives(problem, extent, places)
    rooms = [level.capacity or 0 for level in link.levels]
    of = HybridFormulation(
        model=pyo.ConcreteModel(name="hybrid"),
        problem=problem,
        extent=extent,
        unit=unit,
        size_unit=math.gcd(*(life.size for life in lives), problem.budget, *rooms) or 1,
        horizon=float(longest / unit),
        places=places,
        lives=lives,
    )
    _add_variables(of)
    for group in GROUPS:
        of.model.add_component(group.__name__, group(of))
    of.model.makespan = pyo.Objective(expr=of.end(len(places) - 1))
    return of


def _places(problem: HybridProblem, extent: Extent, unit: int) -> tuple[Place, ...]:
    stages, ticks = problem.profile.stages, problem.link.ticks
    places: list[Place] = []
    for phase in reversed(range(len(stages))):
        for lap in range(extent.passes):
            places += [
                Place(
                    i, phase, lap, OpKind.FORWARD_KEEP_ALL, stages[i].forward_time * ticks // unit
                )
                for i in range(phase + 1)
            ]
        places.append(
            Place(phase, phase, 0, OpKind.BACKWARD, stages[phase].backward_time * ticks // unit)
        )
    return tuple(places)


def _lives(problem: HybridProblem, extent: Extent, places: tuple[Place, ...]) -> tuple[Life, ...]:
    profile = problem.profile
    lives = [Life(("a", 0), -1, profile.input_bytes, "input")]
    lives.append(Life(None, -1, profile.gradient_bytes(len(profile)), "gradient"))
    for k, place in enumerate(places):
        i, stage = place.stage, profile.stages[place.stage]
        overhead = stage.forward_overhead_bytes
        if place.is_backward:
            overhead = stage.backward_overhead_bytes
            lives.append(Life(None, k, profile.gradient_bytes(i), "gradient"))
        else:
            lives.append(Life(("b", i), k, stage.saved_bytes, "saved"))
            if i < place.phase:
                lives.append(Life(("a", i + 1), k, stage.output_bytes, "plain"))
        lives.append(Life(None, k, overhead, "overhead"))
    for item in items_of(problem):
        if size := size_of(problem, item):
            lives += [Life(item, -1, size, "back")] * extent.prefetches
    return tuple(lives)


def _add_variables(of: HybridFormulation) -> None:
    model, until = of.model, (0, of.horizon)
    forwards = [k for k, place in enumerate(of.places) if not place.is_backward]
    items = [v for v, life in enumerate(of.lives) if life.item in of.movable]
    model.start = pyo.Var(of.numbers, bounds=until)
    model.saves = pyo.Var(forwards, domain=pyo.Binary)
    model.plain = pyo.Var(forwards, domain=pyo.Binary)
    model.gone = pyo.Var(range(len(of.lives)), bounds=until)
    model.reads = pyo.Var(
        sorted({(k, v) for k in of.numbers for found in of.sources(k) for v in found}),
        domain=pyo.Binary,
    )
    model.sent = pyo.Var([(i, level) for i in of.movable for level in of.levels], domain=pyo.Binary)
    model.sends = pyo.Var(items, domain=pyo.Binary)
    model.leaves = pyo.Var(of.movable, bounds=until)
    model.comes = pyo.Var(of.backs, domain=pyo.Binary)
    model.returns = pyo.Var(of.backs, bounds=until)
    model.over = pyo.Var([(v, level) for v in of.backs for level in of.levels], domain=pyo.Binary)
    model.early = pyo.Var([(v, k) for v in of.backs for k in of.numbers], domain=pyo.Binary)
    events: list[tuple[int, str, int]] = []
    for v, life in enumerate(of.lives):
        if life.size:
            if life.kind != "overhead":
                after = max(life.maker, of.until(v))
                events += [(v, "k", k) for k in of.numbers if k > after]
            events += [(v, "q", w) for w in of.backs if w != v]
    model.past = pyo.Var(events, domain=pyo.Binary)
    model.there = pyo.Var([(v, e) for v, kind, e in events if kind == "q"], bounds=(0, 1))
    transfers: list[Transfer] = [("out", item) for item in of.movable]
    transfers += [("back", v) for v in of.backs]
    model.pairs = pyo.Set(initialize=range(len(transfers) * (len(transfers) - 1) // 2))
    model.first = pyo.Var(model.pairs, domain=pyo.Binary)
    model.transfers_of_pairs = list(combinations(transfers, 2))
    model.held = pyo.Var(
        [(i, j, level) for i, j in of.pairs for level in of.limited], bounds=(0, 1)
    )
    model.returned = pyo.Var(of.pairs, domain=pyo.Binary)
