"""Of the hybrid Pyomo model: what is in memory, on the device and behind links."""

from __future__ import annotations

from collections.abc import Iterator

from chainstay.formulations.algebra import Constraint, Expression, Relation, listed
from chainstay.formulations.extent import size_of
from chainstay.formulations.hybrid_places import HybridFormulation, Transfer

__all__ = ["MEMORY"]


def _order(of: HybridFormulation) -> dict[tuple[Transfer, Transfer], Expression]:
    """By two transfers: whether the first starts first."""
    order: dict[tuple[Transfer, Transfer], Expression] = {}
    for pair, (a, b) in enumerate(of.model.transfers_of_pairs):
        order[a, b] = of.model.first[pair]
        order[b, a] = 1 - of.model.first[pair]
    return order


def past_is_gone_and_not_read_again(of: HybridFormulation) -> Constraint:
    """``past[v,e]`` only if v is gone when e takes memory, and no reader comes after e."""
    model, late = of.model, of.horizon
    readers: dict[int, list[int]] = {}
    for k, v in model.reads:
        readers.setdefault(v, []).append(k)

    def rows() -> Iterator[Relation]:
        for v, kind, e in model.past:
            past = model.past[v, kind, e]
            when = model.start[e] if kind == "k" else model.returns[e]
            yield model.gone[v] <= when + late * (1 - past)
            if kind == "q" and (until := of.until(v)) >= 0:
                yield past + model.early[e, until] <= 1
            for k in readers.get(v, ()):
                if kind == "q":
                    yield past + model.reads[k, v] + model.early[e, k] <= 2
                elif k >= e:
                    yield past + model.reads[k, v] <= 1

    return listed(rows())


def memory_of_computations(of: HybridFormulation) -> Constraint:
    """What was taken before, and is not past, and its own are at most the budget."""
    model, budget = of.model, of.problem.budget / of.size_unit

    def rows() -> Iterator[Relation]:
        for k in of.numbers:
            used = 0 * model.start[k]
            for v, life in enumerate(of.lives):
                size = life.size / of.size_unit
                if not size or life.maker > k or (life.kind == "overhead" and life.maker < k):
                    continue
                there = model.early[v, k] if life.kind == "back" else of.exists(v)
                used += size * there
                if (v, "k", k) in model.past:
                    used -= size * model.past[v, "k", k]
            yield used <= budget
        for v, kind, k in model.past:
            if kind == "k":
                is_back = of.lives[v].kind == "back"
                yield model.past[v, kind, k] <= (model.early[v, k] if is_back else of.exists(v))

    return listed(rows())


def there_unless_later_or_past(of: HybridFormulation) -> Constraint:
    """``there[v,w]`` when prefetch w takes memory, if v has taken its own and is not past."""
    model, order = of.model, _order(of)

    def rows() -> Iterator[Relation]:
        for v, w in model.there:
            life, past = of.lives[v], model.past[v, "q", w]
            if life.kind == "back":
                is_later: Expression = 1 - order[("back", v), ("back", w)]
            else:
                is_later = model.early[w, life.maker] if life.maker >= 0 else 0
            yield model.there[v, w] >= of.exists(v) - is_later - past

    return listed(rows())


def memory_of_prefetches(of: HybridFormulation) -> Constraint:
    """What is there when it starts, and its own, are at most the budget."""
    model, budget = of.model, of.problem.budget / of.size_unit
    total = sum(life.size for life in of.lives) / of.size_unit

    def rows() -> Iterator[Relation]:
        for w in of.backs:
            used = of.lives[w].size / of.size_unit
            used += sum(
                of.lives[v].size / of.size_unit * model.there[v, other]
                for v, other in model.there
                if other == w
            )
            yield used <= budget + total * (1 - model.comes[w])

    return listed(rows())


def held_until_returned(of: HybridFormulation) -> Constraint:
    """An item keeps its place behind a link until its last prefetch has ended."""
    model, late, order = of.model, 2 * of.horizon, _order(of)

    def rows() -> Iterator[Relation]:
        for i, j, level in ((*pair, level) for pair in of.pairs for level in of.limited):
            both = model.sent[i, level] + model.sent[j, level] - 2
            is_first = order[("out", i), ("out", j)]
            yield model.held[i, j, level] >= both + is_first - model.returned[i, j]
        for i, j in of.pairs:
            still = late * (1 - model.returned[i, j])
            yield model.leaves[j] >= model.leaves[i] + of.moving(i) - still
            for v in of.copies(i):
                if of.lives[v].kind == "back":
                    absent = late * (1 - model.comes[v])
                    yield model.leaves[j] >= of.ready(v) - still - absent

    return listed(rows())


def memory_behind_links(of: HybridFormulation) -> Constraint:
    """What has its place there when an item leaves, and that item, are at most the capacity."""
    model = of.model
    total = sum(size_of(of.problem, item) for item in of.movable) / of.size_unit

    def rows() -> Iterator[Relation]:
        for level in of.limited:
            capacity = of.problem.link.levels[level].capacity
            assert capacity is not None, "it is limited"
            for j in of.movable:
                held = sum(
                    size_of(of.problem, i) / of.size_unit * model.held[i, j, level]
                    for i in of.movable
                    if i != j
                )
                own = size_of(of.problem, j) / of.size_unit
                yield held + own <= capacity / of.size_unit + total * (1 - model.sent[j, level])

    return listed(rows())


MEMORY = (
    past_is_gone_and_not_read_again,
    memory_of_computations,
    there_unless_later_or_past,
    memory_of_prefetches,
    held_until_returned,
    memory_behind_links,
)
"""All of these."""
