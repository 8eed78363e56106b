"""Recomputing and offloading as a public Pyomo model, for whole transfers and tiny chains.

Computations have fixed positions: between two backwards, sweeps over the stages, each forward of
which may run. Memory is taken by *lifetimes*: of items that a forward makes or a prefetch brings
back, and of gradients and overheads. Whatever takes memory, a computation or a prefetch,
finds all lifetimes there that started before it, unless they are gone. The order between
prefetches and computations is a variable, so that what takes no time holds memory all the same.

================  ====================================================================
variable          meaning
================  ====================================================================
``saves[k]``      computation k runs as ``Fa``; ``plain[k]``: as ``Fc`` (or ``Fn``)
``start[k]``      when computation k starts
``gone[v]``       when the memory of lifetime v is free
``reads[k,v]``    computation k reads lifetime v
``sends[v]``      lifetime v is sent; ``sent[i,l]``: item i goes over link l
``leaves[i]``     when the transfer of item i from the device starts
``comes[v]``      prefetch v takes place; ``returns[v]``: when it starts
``over[v,l]``     prefetch v comes over link l
``early[v,k]``    prefetch v takes memory before computation k does
``first[a,b]``    transfer a starts before transfer b
``past[v,e]``     lifetime v is gone before e takes memory
``held[i,j,l]``   item i is stored behind link l when item j leaves over it
================  ====================================================================
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Final

from chainstay.formulations.hybrid.constraints import SCHEDULE_CONSTRAINTS
from chainstay.formulations.hybrid.memory_constraints import MEMORY_CONSTRAINTS
from chainstay.formulations.hybrid.truncation import ModelSize, item_bytes, items_of
from chainstay.formulations.hybrid.variables import (
    ComputationSlot,
    HybridFormulation,
    Lifetime,
    Transfer,
)
from chainstay.formulations.pyomo_types import pyo
from chainstay.problems.hybrid import HybridProblem
from chainstay.schedule import OpKind
from chainstay.timetable import Time

__all__ = ["CONSTRAINTS", "HybridFormulation", "build"]

CONSTRAINTS: Final = (*SCHEDULE_CONSTRAINTS, *MEMORY_CONSTRAINTS)
"""All constraint groups; leave one out, and some instance has too fast an answer."""


def build(
    problem: HybridProblem, model_size: ModelSize, *, known: Time | None = None
) -> HybridFormulation:
    """Return the model of `problem`, whose transfers are integral.

    Args:
        problem: A feasible problem.
        model_size: How much of it to state.
        known: A makespan that can be reached; no slower answer is in the model.
    """
    profile, link = problem.profile, problem.link
    moving = [
        link.transfer_ticks(item_bytes(problem, item), level)
        for item in items_of(problem)
        for level in range(len(link.levels))
        if item_bytes(problem, item)
    ]
    ticks = [
        time * link.ticks for s in profile.stages for time in (s.forward_time, s.backward_time)
    ]
    unit = math.gcd(*ticks, *moving) or 1
    computations = _computations(problem, model_size, unit)
    longest = Fraction(sum(computation.time for computation in computations) * unit)
    longest += (1 + model_size.prefetches) * sum(moving)
    if known is not None:
        longest = min(longest, Fraction(known * link.ticks))
    lifetimes = _lifetimes(problem, model_size, computations)
    rooms = [level.capacity or 0 for level in link.levels]
    formulation = HybridFormulation(
        model=pyo.ConcreteModel(name="hybrid"),
        problem=problem,
        model_size=model_size,
        time_unit=unit,
        size_unit=math.gcd(*(lifetime.size for lifetime in lifetimes), problem.budget, *rooms) or 1,
        horizon=float(longest / unit),
        computations=computations,
        lifetimes=lifetimes,
    )
    _add_variables(formulation)
    for group in CONSTRAINTS:
        formulation.model.add_component(group.__name__, group(formulation))
    formulation.model.makespan = pyo.Objective(expr=formulation.end(len(computations) - 1))
    return formulation


def _computations(
    problem: HybridProblem, model_size: ModelSize, unit: int
) -> tuple[ComputationSlot, ...]:
    """Return all computations, their times in units."""
    stages, ticks = problem.profile.stages, problem.link.ticks
    computations: list[ComputationSlot] = []
    for phase in reversed(range(len(stages))):
        for sweep in range(model_size.sweeps):
            computations += [
                ComputationSlot(
                    i, phase, sweep, OpKind.FORWARD_KEEP_ALL, stages[i].forward_time * ticks // unit
                )
                for i in range(phase + 1)
            ]
        computations.append(
            ComputationSlot(
                phase, phase, 0, OpKind.BACKWARD, stages[phase].backward_time * ticks // unit
            )
        )
    return tuple(computations)


def _lifetimes(
    problem: HybridProblem, model_size: ModelSize, computations: tuple[ComputationSlot, ...]
) -> tuple[Lifetime, ...]:
    """Return all lifetimes, by number."""
    profile = problem.profile
    lifetimes = [Lifetime(("a", 0), -1, profile.input_bytes, "input")]
    lifetimes.append(Lifetime(None, -1, profile.gradient_bytes(len(profile)), "gradient"))
    for k, computation in enumerate(computations):
        i, stage = computation.stage, profile.stages[computation.stage]
        overhead = stage.forward_overhead_bytes
        if computation.is_backward:
            overhead = stage.backward_overhead_bytes
            lifetimes.append(Lifetime(None, k, profile.gradient_bytes(i), "gradient"))
        else:
            lifetimes.append(Lifetime(("b", i), k, stage.saved_bytes, "saved"))
            if i < computation.phase:
                lifetimes.append(Lifetime(("a", i + 1), k, stage.output_bytes, "plain"))
        lifetimes.append(Lifetime(None, k, overhead, "overhead"))
    for item in items_of(problem):
        if size := item_bytes(problem, item):
            lifetimes += [Lifetime(item, -1, size, "back")] * model_size.prefetches
    return tuple(lifetimes)


def _add_variables(formulation: HybridFormulation) -> None:
    model, until = formulation.model, (0, formulation.horizon)
    forwards = [
        k for k, computation in enumerate(formulation.computations) if not computation.is_backward
    ]
    items = [
        v
        for v, lifetime in enumerate(formulation.lifetimes)
        if lifetime.item in formulation.movable
    ]
    model.start = pyo.Var(formulation.positions, bounds=until)
    model.saves = pyo.Var(forwards, domain=pyo.Binary)
    model.plain = pyo.Var(forwards, domain=pyo.Binary)
    model.gone = pyo.Var(range(len(formulation.lifetimes)), bounds=until)
    model.reads = pyo.Var(
        sorted(
            {
                (k, v)
                for k in formulation.positions
                for found in formulation.sources(k)
                for v in found
            }
        ),
        domain=pyo.Binary,
    )
    model.sent = pyo.Var(
        [(i, level) for i in formulation.movable for level in formulation.levels], domain=pyo.Binary
    )
    model.sends = pyo.Var(items, domain=pyo.Binary)
    model.leaves = pyo.Var(formulation.movable, bounds=until)
    model.comes = pyo.Var(formulation.prefetches, domain=pyo.Binary)
    model.returns = pyo.Var(formulation.prefetches, bounds=until)
    model.over = pyo.Var(
        [(v, level) for v in formulation.prefetches for level in formulation.levels],
        domain=pyo.Binary,
    )
    model.early = pyo.Var(
        [(v, k) for v in formulation.prefetches for k in formulation.positions], domain=pyo.Binary
    )
    events: list[tuple[int, str, int]] = []
    for v, lifetime in enumerate(formulation.lifetimes):
        if lifetime.size:
            if lifetime.kind != "overhead":
                after = max(lifetime.maker, formulation.until(v))
                events += [(v, "k", k) for k in formulation.positions if k > after]
            events += [(v, "q", w) for w in formulation.prefetches if w != v]
    model.past = pyo.Var(events, domain=pyo.Binary)
    model.there = pyo.Var([(v, e) for v, kind, e in events if kind == "q"], bounds=(0, 1))
    transfers: list[Transfer] = [("out", item) for item in formulation.movable]
    transfers += [("back", v) for v in formulation.prefetches]
    model.pairs = pyo.Set(initialize=range(len(transfers) * (len(transfers) - 1) // 2))
    model.first = pyo.Var(model.pairs, domain=pyo.Binary)
    model.transfers_of_pairs = list(combinations(transfers, 2))
    model.held = pyo.Var(
        [(i, j, level) for i, j in formulation.pairs for level in formulation.limited_levels],
        bounds=(0, 1),
    )
    model.returned = pyo.Var(formulation.pairs, domain=pyo.Binary)
