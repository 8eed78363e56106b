r"""Offloading whole activations as a public Pyomo model, for whole transfers.

Binaries say what moves, in which order the link serves transfers, in which slot of the
course of computations a prefetch starts, and what is away when something takes memory; times
follow from them by rows with a large constant (the horizon). Slot ``2k`` is while
computation k runs, ``2k + 1`` between it and the next. Practical to about eight stages;
`chainstay.formulations.cpsat.offload` states the same for CP-SAT, which goes much further.
`variables` says what each variable means, and reads the schedule from their values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import combinations
from typing import Final

from chainstay.formulations.offload.variables import BACK, OUT, OffloadFormulation, Transfer
from chainstay.formulations.pyomo_types import Expression, Relation, constraint_list, pyo
from chainstay.problems.offload import OffloadProblem

__all__ = ["CONSTRAINTS", "OffloadFormulation", "build"]


def build(problem: OffloadProblem, *, known: Fraction | int | None = None) -> OffloadFormulation:
    """Return the model of `problem`, whose transfers are integral.

    Args:
        problem: A feasible problem.
        known: A makespan that can be reached; no slower answer is in the model.
    """
    profile, link = problem.profile, problem.link
    sizes = (*profile.activations, *profile.gradients)
    overheads = (*profile.forward_overheads, *profile.backward_overheads)
    moving = [link.transfer_ticks(x) for x in profile.activations[: len(profile) - 1] if x]
    times = [u * link.ticks for u in (*profile.forward_times, *profile.backward_times)]
    unit = math.gcd(*times, *moving) or 1
    longest = Fraction(sum(times) + 2 * sum(moving))
    if known is not None:
        longest = min(longest, Fraction(known * link.ticks))
    model = pyo.ConcreteModel(name="offload")
    formulation = OffloadFormulation(
        model=model,
        problem=problem,
        unit=unit,
        size_unit=math.gcd(*sizes, *overheads, problem.budget, link.capacity or 0) or 1,
        horizon=float(longest / unit),
    )
    _add_variables(formulation)
    for group in CONSTRAINTS:
        model.add_component(group.__name__, constraint_list(group(formulation)))
    model.makespan = pyo.Objective(expr=formulation.end(2 * formulation.stages - 1))
    return formulation


def _add_variables(formulation: OffloadFormulation) -> None:
    model, numbers = formulation.model, range(2 * formulation.stages)
    until = (0, formulation.horizon)
    model.start = pyo.Var(numbers, bounds=until)
    for name in ("leaves", "gone", "returns"):
        model.add_component(name, pyo.Var(formulation.movable, bounds=until))
    model.moves = pyo.Var(formulation.movable, domain=pyo.Binary)
    model.slot = pyo.Var(
        [(j, q) for j in formulation.movable for q in formulation.slots(j)], domain=pyo.Binary
    )
    needy = [
        k
        for k in numbers
        if formulation.loads[k] * formulation.size_unit > formulation.problem.budget
    ]
    model.away = pyo.Var(
        [(j, k) for k in needy for j in formulation.movable if j < k < formulation.backward(j)],
        domain=pyo.Binary,
    )
    model.out = pyo.Var(
        [(i, j) for i in formulation.movable for j in formulation.movable if i != j],
        domain=pyo.Binary,
    )
    is_limited = formulation.problem.link.capacity is not None
    apart = [
        (a, b)
        for a, b in combinations(formulation.transfers, 2)
        if a[1] != b[1]
        and (a[0] is b[0] or is_limited or not formulation.problem.link.is_full_duplex)
    ]
    model.held = pyo.Var(
        [(i, j) for i in formulation.movable for j in formulation.movable if i != j and is_limited],
        domain=pyo.Binary,
    )
    model.pairs = pyo.Set(initialize=range(len(apart)))
    model.first = pyo.Var(model.pairs, domain=pyo.Binary)
    model.transfers_of_pairs = apart


def computations_in_order(formulation: OffloadFormulation) -> Iterable[Relation]:
    """Computations run one after another: ``start[k+1] >= end[k]``."""
    return (
        formulation.model.start[k + 1] >= formulation.end(k)
        for k in range(2 * formulation.stages - 1)
    )


def made_before_it_leaves(formulation: OffloadFormulation) -> Iterable[Relation]:
    """An offload starts after the activation is made: ``leaves[j] >= end[j-1]``."""
    return (formulation.model.leaves[j] >= formulation.end(j - 1) for j in formulation.movable if j)


def gone_when_moved_and_read(formulation: OffloadFormulation) -> Iterable[Relation]:
    """Memory is free once an activation has left and its forward has read it.

    ``gone[j] >= leaves[j] + moving[j] moves[j]`` and ``gone[j] >= end[j]``.
    """
    model = formulation.model
    return (
        model.gone[j] >= earliest
        for j in formulation.movable
        for earliest in (
            model.leaves[j] + formulation.moving(j) * model.moves[j],
            formulation.end(j),
        )
    )


def returns_after_it_is_gone(formulation: OffloadFormulation) -> Iterable[Relation]:
    """A prefetch starts after the memory was free: ``returns[j] >= gone[j]`` if it moves."""
    model = formulation.model
    return (
        model.returns[j] >= model.gone[j] - formulation.horizon * (1 - model.moves[j])
        for j in formulation.movable
    )


def back_before_its_backward(formulation: OffloadFormulation) -> Iterable[Relation]:
    """A prefetch ends before its backward: ``returns[j] + moving[j] <= start[B_j]`` if it moves."""
    model = formulation.model
    late = 2 * formulation.horizon
    return (
        model.returns[j] + formulation.moving(j)
        <= model.start[formulation.backward(j)] + late * (1 - model.moves[j])
        for j in formulation.movable
    )


def one_transfer_at_a_time(formulation: OffloadFormulation) -> Iterable[Relation]:
    """Two transfers that use the link do not overlap."""
    model, late = formulation.model, 2 * formulation.horizon
    for pair, (a, b) in enumerate(model.transfers_of_pairs):
        if formulation.problem.link.is_full_duplex and a[0] is not b[0]:
            continue
        unused = 2 - model.moves[a[1]] - model.moves[b[1]]
        yield formulation.begin(b) + late * (1 - model.first[pair] + unused) >= formulation.begin(
            a
        ) + formulation.moving(a[1])
        yield formulation.begin(a) + late * (model.first[pair] + unused) >= formulation.begin(
            b
        ) + formulation.moving(b[1])


def one_slot_each(formulation: OffloadFormulation) -> Iterable[Relation]:
    """Each prefetch starts in one slot: ``Σ_q slot[j,q] = moves[j]``."""
    model = formulation.model
    return (
        sum(model.slot[j, q] for q in formulation.slots(j)) == model.moves[j]
        for j in formulation.movable
    )


def slots_are_in_time(formulation: OffloadFormulation) -> Iterable[Relation]:
    """A prefetch starts while its slot lasts."""
    model = formulation.model
    for j in formulation.movable:
        for q in formulation.slots(j):
            elsewhere = formulation.horizon * (1 - model.slot[j, q])
            k, is_between = divmod(q, 2)
            begin = formulation.end(k) if is_between else model.start[k]
            end = model.start[k + 1] if is_between else formulation.end(k)
            yield model.returns[j] >= begin - elsewhere
            yield model.returns[j] <= end + elsewhere


def away_is_gone_and_not_back(formulation: OffloadFormulation) -> Iterable[Relation]:
    """An activation that is away is gone, and comes back in slot 2k or a later one."""
    model = formulation.model
    for j, k in model.away:
        yield model.gone[j] <= model.start[k] + formulation.horizon * (1 - model.away[j, k])
        yield model.away[j, k] <= sum(
            (model.slot[j, q] for q in formulation.slots(j) if q >= 2 * k),
            start=0 * model.moves[j],
        )


def out_is_gone_and_later_back(formulation: OffloadFormulation) -> Iterable[Relation]:
    """An activation that is out is gone when j returns, and the link serves j's return first."""
    model = formulation.model
    order: dict[tuple[int, int], Expression] = {}
    for pair, (a, b) in enumerate(model.transfers_of_pairs):
        if a[0] is BACK and b[0] is BACK:
            order[a[1], b[1]] = model.first[pair]
            order[b[1], a[1]] = 1 - model.first[pair]
    for i, j in model.out:
        yield model.out[i, j] <= model.moves[i]
        yield model.out[i, j] <= order[j, i]
        yield model.gone[i] <= model.returns[j] + formulation.horizon * (1 - model.out[i, j])


def held_unless_back_or_later(formulation: OffloadFormulation) -> Iterable[Relation]:
    """An activation is held unless it has come back before j leaves, or leaves after it."""
    model, late = formulation.model, 2 * formulation.horizon
    order: dict[tuple[Transfer, Transfer], Expression] = {}
    for pair, (a, b) in enumerate(model.transfers_of_pairs):
        order[a, b] = model.first[pair]
        order[b, a] = 1 - model.first[pair]
    for i, j in model.held:
        is_back = order[(BACK, i), (OUT, j)]
        unused = 2 - model.moves[i] - model.moves[j]
        yield model.held[i, j] + unused >= order[(OUT, i), (OUT, j)] - is_back
        yield model.leaves[j] + late * (1 - is_back + unused) >= (
            model.returns[i] + formulation.moving(i)
        )


def memory_of_the_host(formulation: OffloadFormulation) -> Iterable[Relation]:
    """When j leaves, what is stored on the host and j fit in its capacity."""
    model, capacity = formulation.model, formulation.problem.link.capacity
    if capacity is None:
        return ()
    room = capacity / formulation.size_unit
    return (
        formulation.size(j) * model.moves[j]
        + sum(formulation.size(i) * model.held[i, j] for i in formulation.movable if i != j)
        <= room
        for j in formulation.movable
    )


def memory_of_computations(formulation: OffloadFormulation) -> Iterable[Relation]:
    """The memory of a computation is within the budget.

    ``load[k] - Σ_j size[j] away[j,k] <= budget``.
    """
    model, budget = formulation.model, formulation.problem.budget / formulation.size_unit
    needy = sorted({k for _, k in model.away})
    return (
        formulation.loads[k]
        - sum(
            formulation.size(j) * model.away[j, k]
            for j in formulation.movable
            if (j, k) in model.away
        )
        <= budget
        for k in needy
    )


def memory_of_prefetches(formulation: OffloadFormulation) -> Iterable[Relation]:
    """The memory in use in the slot of a prefetch, less what is out, is at most the budget."""
    model, budget = formulation.model, formulation.problem.budget / formulation.size_unit
    for j in formulation.movable:
        used = sum(
            (formulation.rests[q // 2] if q % 2 else formulation.loads[q // 2]) * model.slot[j, q]
            for q in formulation.slots(j)
        )
        out = sum(formulation.size(i) * model.out[i, j] for i in formulation.movable if i != j)
        yield used - out <= budget


CONSTRAINTS: Final = (
    computations_in_order,
    made_before_it_leaves,
    gone_when_moved_and_read,
    returns_after_it_is_gone,
    back_before_its_backward,
    one_transfer_at_a_time,
    one_slot_each,
    slots_are_in_time,
    away_is_gone_and_not_back,
    out_is_gone_and_later_back,
    memory_of_computations,
    memory_of_prefetches,
    held_unless_back_or_later,
    memory_of_the_host,
)
"""All constraint groups; leave one out, and some instance has too fast an answer."""
