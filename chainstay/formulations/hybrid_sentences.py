"""Of the hybrid Pyomo model: what runs, reads and moves, and when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from chainstay.formulations.algebra import Constraint, Expression, Relation, listed
from chainstay.formulations.extent import Item, items_of
from chainstay.formulations.hybrid_places import HybridFormulation, Transfer

__all__ = ["SENTENCES"]


def computations_in_order(of: HybridFormulation) -> Constraint:
    """``start[k+1] >= end[k]``."""
    return listed(of.model.start[k + 1] >= of.end(k) for k in of.numbers[:-1])


def one_kind_each(of: HybridFormulation) -> Constraint:
    """``saves[k] + plain[k] <= 1``; at the end of a phase, only what is saved can be read."""
    model = of.model
    return listed(
        model.saves[k] + model.plain[k] <= 1
        if of.places[k].stage < of.places[k].phase
        else model.plain[k] == 0
        for k in model.saves
    )


def one_source_each(of: HybridFormulation) -> Constraint:
    """What runs reads one life of each thing that it needs."""
    model = of.model
    return listed(
        sum((model.reads[k, v] for v in found), start=0 * model.start[k]) == of.runs(k)
        for k in of.numbers
        for found in of.sources(k)
    )


def read_while_there(of: HybridFormulation) -> Constraint:
    """``ready[v] <= start[k]`` and ``gone[v] >= end[k]`` if ``reads[k,v]``; only what exists."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for k, v in model.reads:
            unread = late * (1 - model.reads[k, v])
            yield of.ready(v) <= model.start[k] + unread
            yield model.gone[v] >= of.end(k) - unread
            yield model.reads[k, v] <= of.exists(v)
            if of.lives[v].kind == "back":
                yield model.reads[k, v] <= model.early[v, k]

    return listed(rows())


def gone_after_it_is_made(of: HybridFormulation) -> Constraint:
    """``gone[v] >= ready[v]``; gradients and overheads when who holds them has ended."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for v, life in enumerate(of.lives):
            if life.kind == "back":
                yield model.gone[v] >= of.ready(v) - late * (1 - model.comes[v])
            else:
                yield model.gone[v] >= (of.ready(v) if of.until(v) < 0 else of.end(of.until(v)))

    return listed(rows())


def sent_once_from_a_copy(of: HybridFormulation) -> Constraint:
    """To one level, from one life, which is there until it has left."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for item in of.movable:
            sent, copies = sum(model.sent[item, level] for level in of.levels), of.copies(item)
            yield sent <= 1
            yield sum(model.sends[v] for v in copies) == sent
            for v in copies:
                unsent = late * (1 - model.sends[v])
                yield model.sends[v] <= of.exists(v)
                yield model.leaves[item] >= of.ready(v) - unsent
                yield model.gone[v] >= model.leaves[item] + of.moving(item) - unsent

    return listed(rows())


def back_after_it_left(of: HybridFormulation) -> Constraint:
    """Over the link that it left by, in the order of their numbers."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for v in of.backs:
            item = of.item(v)
            yield sum(model.over[v, level] for level in of.levels) == model.comes[v]
            for level in of.levels:
                yield model.over[v, level] <= model.sent[item, level]
            absent = late * (1 - model.comes[v])
            yield model.returns[v] >= model.leaves[item] + of.moving(item) - absent

    return listed(rows())


def back_for_a_reader(of: HybridFormulation) -> Constraint:
    """What leaves comes back, and what comes back is read."""
    model = of.model

    def rows() -> Iterator[Relation]:
        for item in of.movable:
            sent, copies = sum(model.sent[item, level] for level in of.levels), of.copies(item)
            backs = [v for v in copies if of.lives[v].kind == "back"]
            yield sent <= sum(model.comes[v] for v in backs)
            for v in backs:
                yield model.comes[v] <= sum(
                    model.reads[k, v] for k in of.numbers if (k, v) in model.reads
                )

    return listed(rows())


def one_copy_at_a_time(of: HybridFormulation) -> Constraint:
    """Of two lives of an item, one is gone before the other is made."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for item in items_of(of.problem):
            for v, w in combinations(of.copies(item), 2):
                absent = late * (2 - of.exists(v) - of.exists(w))
                if of.lives[w].kind != "back":
                    yield model.gone[v] <= of.made(w) + absent
                elif of.lives[v].kind == "back":
                    yield model.comes[w] <= model.comes[v]
                    yield model.gone[v] <= model.returns[w] + absent
                elif (k := of.lives[v].maker) < 0:
                    yield model.gone[v] <= model.returns[w] + absent
                else:
                    yield model.gone[v] <= model.returns[w] + absent + late * model.early[w, k]
                    yield model.gone[w] <= model.start[k] + absent + late * (1 - model.early[w, k])

    return listed(rows())


def prefetches_have_their_place(of: HybridFormulation) -> Constraint:
    """``early[v,k]`` says on which side of computation k prefetch v is issued, and starts."""
    model, late = of.model, of.horizon

    def rows() -> Iterator[Relation]:
        for v in of.backs:
            for k in of.numbers:
                yield model.early[v, k] <= model.comes[v]
                yield model.returns[v] <= model.start[k] + late * (1 - model.early[v, k])
                is_later = model.comes[v] - model.early[v, k]
                yield model.returns[v] >= model.start[k] - late * (1 - is_later)
            for k, following in pairwise(of.numbers):
                yield model.early[v, k] <= model.early[v, following]

    return listed(rows())


def plain_input_before_saved(of: HybridFormulation) -> Constraint:
    """Where both forms of an input are there, the plain one is read, so it is awaited."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for k, v in model.reads:
            life = of.lives[v]
            if life.item != ("b", of.places[k].stage - 1):
                continue
            for w in of.copies(("a", of.places[k].stage)):
                if of.lives[w].kind == "back":
                    elsewhere = 2 - model.reads[k, v] - model.early[w, k]
                    yield of.ready(w) <= model.start[k] + late * elsewhere

    return listed(rows())


def one_transfer_at_a_time(of: HybridFormulation) -> Constraint:
    """Of two on one link (or one direction of it), one ends before the other starts."""
    model, late = of.model, 2 * of.horizon

    def rows() -> Iterator[Relation]:
        for pair, (a, b) in enumerate(model.transfers_of_pairs):
            if a[0] == b[0] == "back":
                absent = late * (2 - model.comes[a[1]] - model.comes[b[1]])
                is_first = model.first[pair]
                yield model.returns[b[1]] >= model.returns[a[1]] - absent - late * (1 - is_first)
                yield model.returns[a[1]] >= model.returns[b[1]] - absent - late * is_first
            for level, link in enumerate(of.problem.link.levels):
                if link.is_full_duplex and a[0] != b[0]:
                    continue
                elsewhere = late * (2 - _uses(of, a, level) - _uses(of, b, level))
                for one, other, is_later in (
                    (a, b, 1 - model.first[pair]),
                    (b, a, model.first[pair]),
                ):
                    ends = _begins(of, one) + of.units(_moved(of, one), level)
                    yield _begins(of, other) >= ends - elsewhere - late * is_later

    return listed(rows())


def _moved(of: HybridFormulation, transfer: Transfer) -> Item:
    kind, which = transfer
    return which if kind == "out" else of.item(which)


def _begins(of: HybridFormulation, transfer: Transfer) -> Expression:
    kind, which = transfer
    return of.model.leaves[which] if kind == "out" else of.model.returns[which]


def _uses(of: HybridFormulation, transfer: Transfer, level: int) -> Expression:
    kind, which = transfer
    return of.model.sent[which, level] if kind == "out" else of.model.over[which, level]


SENTENCES = (
    computations_in_order,
    one_kind_each,
    one_source_each,
    read_while_there,
    gone_after_it_is_made,
    sent_once_from_a_copy,
    back_after_it_left,
    back_for_a_reader,
    one_copy_at_a_time,
    prefetches_have_their_place,
    plain_input_before_saved,
    one_transfer_at_a_time,
)
"""All of these. That every forward runs and the input stays follows: they are read."""
