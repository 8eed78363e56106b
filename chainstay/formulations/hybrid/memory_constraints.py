"""Constraints of the hybrid Pyomo model on memory, of the device and behind links."""

from __future__ import annotations

from collections.abc import Iterator

from chainstay.formulations.hybrid.truncation import item_bytes
from chainstay.formulations.hybrid.variables import HybridFormulation, Transfer
from chainstay.formulations.pyomo_types import Constraint, Expression, Relation, constraint_list

__all__ = ["MEMORY_CONSTRAINTS"]


def _order(formulation: HybridFormulation) -> dict[tuple[Transfer, Transfer], Expression]:
    """Return, by two transfers, whether the first one starts first."""
    order: dict[tuple[Transfer, Transfer], Expression] = {}
    for pair, (a, b) in enumerate(formulation.model.transfers_of_pairs):
        order[a, b] = formulation.model.first[pair]
        order[b, a] = 1 - formulation.model.first[pair]
    return order


def past_is_gone_and_not_read_again(formulation: HybridFormulation) -> Constraint:
    """A lifetime is past only if it is gone when e takes memory, and no reader comes after e.

    The variable is ``past[v,e]``.
    """
    model, late = formulation.model, formulation.horizon
    readers: dict[int, list[int]] = {}
    for k, v in model.reads:
        readers.setdefault(v, []).append(k)

    def rows() -> Iterator[Relation]:
        for v, kind, e in model.past:
            past = model.past[v, kind, e]
            when = model.start[e] if kind == "k" else model.returns[e]
            yield model.gone[v] <= when + late * (1 - past)
            if kind == "q" and (until := formulation.until(v)) >= 0:
                yield past + model.early[e, until] <= 1
            for k in readers.get(v, ()):
                if kind == "q":
                    yield past + model.reads[k, v] + model.early[e, k] <= 2
                elif k >= e:
                    yield past + model.reads[k, v] <= 1

    return constraint_list(rows())


def memory_of_computations(formulation: HybridFormulation) -> Constraint:
    """When a computation starts, all lifetimes that are not past and its own fit in the budget."""
    model, budget = formulation.model, formulation.problem.budget / formulation.size_unit

    def rows() -> Iterator[Relation]:
        for k in formulation.positions:
            used = 0 * model.start[k]
            for v, lifetime in enumerate(formulation.lifetimes):
                size = lifetime.size / formulation.size_unit
                if (
                    not size
                    or lifetime.maker > k
                    or (lifetime.kind == "overhead" and lifetime.maker < k)
                ):
                    continue
                there = model.early[v, k] if lifetime.kind == "back" else formulation.exists(v)
                used += size * there
                if (v, "k", k) in model.past:
                    used -= size * model.past[v, "k", k]
            yield used <= budget
        for v, kind, k in model.past:
            if kind == "k":
                is_back = formulation.lifetimes[v].kind == "back"
                yield model.past[v, kind, k] <= (
                    model.early[v, k] if is_back else formulation.exists(v)
                )

    return constraint_list(rows())


def there_unless_later_or_past(formulation: HybridFormulation) -> Constraint:
    """A lifetime takes memory at a prefetch unless it starts later or is past.

    ``there[v,w]`` says that it does, of lifetime v and prefetch w.
    """
    model, order = formulation.model, _order(formulation)

    def rows() -> Iterator[Relation]:
        for v, w in model.there:
            lifetime, past = formulation.lifetimes[v], model.past[v, "q", w]
            if lifetime.kind == "back":
                is_later: Expression = 1 - order[("back", v), ("back", w)]
            else:
                is_later = model.early[w, lifetime.maker] if lifetime.maker >= 0 else 0
            yield model.there[v, w] >= formulation.exists(v) - is_later - past

    return constraint_list(rows())


def memory_of_prefetches(formulation: HybridFormulation) -> Constraint:
    """When a prefetch starts, all lifetimes that are there and its own fit in the budget."""
    model, budget = formulation.model, formulation.problem.budget / formulation.size_unit
    total = sum(lifetime.size for lifetime in formulation.lifetimes) / formulation.size_unit

    def rows() -> Iterator[Relation]:
        for w in formulation.prefetches:
            used = formulation.lifetimes[w].size / formulation.size_unit
            used += sum(
                formulation.lifetimes[v].size / formulation.size_unit * model.there[v, other]
                for v, other in model.there
                if other == w
            )
            yield used <= budget + total * (1 - model.comes[w])

    return constraint_list(rows())


def held_until_returned(formulation: HybridFormulation) -> Constraint:
    """An item keeps its place behind a link until its last prefetch has ended."""
    model, late, order = formulation.model, 2 * formulation.horizon, _order(formulation)

    def rows() -> Iterator[Relation]:
        for i, j, level in (
            (*pair, level) for pair in formulation.pairs for level in formulation.limited_levels
        ):
            both = model.sent[i, level] + model.sent[j, level] - 2
            is_first = order[("out", i), ("out", j)]
            yield model.held[i, j, level] >= both + is_first - model.returned[i, j]
        for i, j in formulation.pairs:
            still = late * (1 - model.returned[i, j])
            yield model.leaves[j] >= model.leaves[i] + formulation.moving(i) - still
            for v in formulation.copies(i):
                if formulation.lifetimes[v].kind == "back":
                    absent = late * (1 - model.comes[v])
                    yield model.leaves[j] >= formulation.ready(v) - still - absent

    return constraint_list(rows())


def memory_behind_links(formulation: HybridFormulation) -> Constraint:
    """When an item leaves, what is stored behind the link and that item fit in its capacity."""
    model = formulation.model
    total = (
        sum(item_bytes(formulation.problem, item) for item in formulation.movable)
        / formulation.size_unit
    )

    def rows() -> Iterator[Relation]:
        for level in formulation.limited_levels:
            capacity = formulation.problem.link.levels[level].capacity
            assert capacity is not None, "it is limited"
            for j in formulation.movable:
                held = sum(
                    item_bytes(formulation.problem, i)
                    / formulation.size_unit
                    * model.held[i, j, level]
                    for i in formulation.movable
                    if i != j
                )
                own = item_bytes(formulation.problem, j) / formulation.size_unit
                yield held + own <= capacity / formulation.size_unit + total * (
                    1 - model.sent[j, level]
                )

    return constraint_list(rows())


MEMORY_CONSTRAINTS = (
    past_is_gone_and_not_read_again,
    memory_of_computations,
    there_unless_later_or_past,
    memory_of_prefetches,
    held_until_returned,
    memory_behind_links,
)
"""All constraint groups of this module."""
