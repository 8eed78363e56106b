"""Constraints of the hybrid Pyomo model on what runs, reads and moves, and when."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise

from chainstay.formulations.hybrid.truncation import Item, items_of
from chainstay.formulations.hybrid.variables import HybridFormulation, Transfer
from chainstay.formulations.pyomo_types import Constraint, Expression, Relation, constraint_list

__all__ = ["SCHEDULE_CONSTRAINTS"]


def computations_in_order(formulation: HybridFormulation) -> Constraint:
    """Computations run one after another: ``start[k+1] >= end[k]``."""
    return constraint_list(
        formulation.model.start[k + 1] >= formulation.end(k) for k in formulation.positions[:-1]
    )


def one_kind_each(formulation: HybridFormulation) -> Constraint:
    """A forward runs in one form: ``saves[k] + plain[k] <= 1``.

    At the end of a phase, only what is saved can be read.
    """
    model = formulation.model
    return constraint_list(
        model.saves[k] + model.plain[k] <= 1
        if formulation.computations[k].stage < formulation.computations[k].phase
        else model.plain[k] == 0
        for k in model.saves
    )


def one_source_each(formulation: HybridFormulation) -> Constraint:
    """A computation that runs reads one lifetime of each thing that it needs."""
    model = formulation.model
    return constraint_list(
        sum((model.reads[k, v] for v in found), start=0 * model.start[k]) == formulation.runs(k)
        for k in formulation.positions
        for found in formulation.sources(k)
    )


def read_while_there(formulation: HybridFormulation) -> Constraint:
    """A lifetime lasts while it is read, if it exists.

    ``ready[v] <= start[k]`` and ``gone[v] >= end[k]`` if ``reads[k,v]``.
    """
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for k, v in model.reads:
            unread = late * (1 - model.reads[k, v])
            yield formulation.ready(v) <= model.start[k] + unread
            yield model.gone[v] >= formulation.end(k) - unread
            yield model.reads[k, v] <= formulation.exists(v)
            if formulation.lifetimes[v].kind == "back":
                yield model.reads[k, v] <= model.early[v, k]

    return constraint_list(rows())


def gone_after_it_is_made(formulation: HybridFormulation) -> Constraint:
    """A lifetime ends after its start: ``gone[v] >= ready[v]``.

    Gradients and overheads end when the computation that holds them has ended.
    """
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for v, lifetime in enumerate(formulation.lifetimes):
            if lifetime.kind == "back":
                yield model.gone[v] >= formulation.ready(v) - late * (1 - model.comes[v])
            else:
                yield model.gone[v] >= (
                    formulation.ready(v)
                    if formulation.until(v) < 0
                    else formulation.end(formulation.until(v))
                )

    return constraint_list(rows())


def sent_once_from_a_copy(formulation: HybridFormulation) -> Constraint:
    """An item is sent to one level at most, from one lifetime, which lasts until it has left."""
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for item in formulation.movable:
            sent, copies = (
                sum(model.sent[item, level] for level in formulation.levels),
                formulation.copies(item),
            )
            yield sent <= 1
            yield sum(model.sends[v] for v in copies) == sent
            for v in copies:
                unsent = late * (1 - model.sends[v])
                yield model.sends[v] <= formulation.exists(v)
                yield model.leaves[item] >= formulation.ready(v) - unsent
                yield model.gone[v] >= model.leaves[item] + formulation.moving(item) - unsent

    return constraint_list(rows())


def back_after_it_left(formulation: HybridFormulation) -> Constraint:
    """A prefetch comes over the link by which the item left, after it has left."""
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for v in formulation.prefetches:
            item = formulation.item(v)
            yield sum(model.over[v, level] for level in formulation.levels) == model.comes[v]
            for level in formulation.levels:
                yield model.over[v, level] <= model.sent[item, level]
            absent = late * (1 - model.comes[v])
            yield model.returns[v] >= model.leaves[item] + formulation.moving(item) - absent

    return constraint_list(rows())


def back_for_a_reader(formulation: HybridFormulation) -> Constraint:
    """Every item that leaves comes back, and every prefetch is read."""
    model = formulation.model

    def rows() -> Iterator[Relation]:
        for item in formulation.movable:
            sent, copies = (
                sum(model.sent[item, level] for level in formulation.levels),
                formulation.copies(item),
            )
            prefetches = [v for v in copies if formulation.lifetimes[v].kind == "back"]
            yield sent <= sum(model.comes[v] for v in prefetches)
            for v in prefetches:
                yield model.comes[v] <= sum(
                    model.reads[k, v] for k in formulation.positions if (k, v) in model.reads
                )

    return constraint_list(rows())


def one_copy_at_a_time(formulation: HybridFormulation) -> Constraint:
    """Two lifetimes of an item do not overlap."""
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for item in items_of(formulation.problem):
            for v, w in combinations(formulation.copies(item), 2):
                absent = late * (2 - formulation.exists(v) - formulation.exists(w))
                if formulation.lifetimes[w].kind != "back":
                    yield model.gone[v] <= formulation.made(w) + absent
                elif formulation.lifetimes[v].kind == "back":
                    yield model.comes[w] <= model.comes[v]
                    yield model.gone[v] <= model.returns[w] + absent
                elif (k := formulation.lifetimes[v].maker) < 0:
                    yield model.gone[v] <= model.returns[w] + absent
                else:
                    yield model.gone[v] <= model.returns[w] + absent + late * model.early[w, k]
                    yield model.gone[w] <= model.start[k] + absent + late * (1 - model.early[w, k])

    return constraint_list(rows())


def prefetches_have_their_place(formulation: HybridFormulation) -> Constraint:
    """A prefetch starts, and is issued, on the side of computation k that ``early[v,k]`` says."""
    model, late = formulation.model, formulation.horizon

    def rows() -> Iterator[Relation]:
        for v in formulation.prefetches:
            for k in formulation.positions:
                yield model.early[v, k] <= model.comes[v]
                yield model.returns[v] <= model.start[k] + late * (1 - model.early[v, k])
                is_later = model.comes[v] - model.early[v, k]
                yield model.returns[v] >= model.start[k] - late * (1 - is_later)
            for k, following in pairwise(formulation.positions):
                yield model.early[v, k] <= model.early[v, following]

    return constraint_list(rows())


def plain_input_before_saved(formulation: HybridFormulation) -> Constraint:
    """A reader waits for a plain input that is on its way, rather than read the saved form."""
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for k, v in model.reads:
            lifetime = formulation.lifetimes[v]
            if lifetime.item != ("b", formulation.computations[k].stage - 1):
                continue
            for w in formulation.copies(("a", formulation.computations[k].stage)):
                if formulation.lifetimes[w].kind == "back":
                    elsewhere = 2 - model.reads[k, v] - model.early[w, k]
                    yield formulation.ready(w) <= model.start[k] + late * elsewhere

    return constraint_list(rows())


def one_transfer_at_a_time(formulation: HybridFormulation) -> Constraint:
    """Two transfers on one link (or one direction of it) do not overlap."""
    model, late = formulation.model, 2 * formulation.horizon

    def rows() -> Iterator[Relation]:
        for pair, (a, b) in enumerate(model.transfers_of_pairs):
            if a[0] == b[0] == "back":
                absent = late * (2 - model.comes[a[1]] - model.comes[b[1]])
                is_first = model.first[pair]
                yield model.returns[b[1]] >= model.returns[a[1]] - absent - late * (1 - is_first)
                yield model.returns[a[1]] >= model.returns[b[1]] - absent - late * is_first
            for level, link in enumerate(formulation.problem.link.levels):
                if link.is_full_duplex and a[0] != b[0]:
                    continue
                elsewhere = late * (2 - _uses(formulation, a, level) - _uses(formulation, b, level))
                for one, other, is_later in (
                    (a, b, 1 - model.first[pair]),
                    (b, a, model.first[pair]),
                ):
                    ends = _begins(formulation, one) + formulation.units(
                        _moved(formulation, one), level
                    )
                    yield _begins(formulation, other) >= ends - elsewhere - late * is_later

    return constraint_list(rows())


def _moved(formulation: HybridFormulation, transfer: Transfer) -> Item:
    """Return the item that a transfer moves."""
    kind, which = transfer
    return which if kind == "out" else formulation.item(which)


def _begins(formulation: HybridFormulation, transfer: Transfer) -> Expression:
    """Return when a transfer starts."""
    kind, which = transfer
    return formulation.model.leaves[which] if kind == "out" else formulation.model.returns[which]


def _uses(formulation: HybridFormulation, transfer: Transfer, level: int) -> Expression:
    """Return whether a transfer uses a level of the link."""
    kind, which = transfer
    return (
        formulation.model.sent[which, level]
        if kind == "out"
        else formulation.model.over[which, level]
    )


SCHEDULE_CONSTRAINTS = (
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
"""All constraint groups of this module. "Every forward runs" and "the input stays" are implied by
the constraints on what is read.
"""
