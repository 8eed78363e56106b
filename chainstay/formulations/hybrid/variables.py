"""Variables of the hybrid Pyomo model: computations and lifetimes, and how to read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from chainstay.formulations.hybrid.schedule_builder import (
    OFFLOAD_KINDS,
    PREFETCH_KINDS,
    ScheduleBuilder,
)
from chainstay.formulations.hybrid.truncation import Item, ModelSize, item_bytes, items_of
from chainstay.formulations.pyomo_types import Expression, Model, pyo
from chainstay.problems.hybrid import HybridProblem
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["ComputationSlot", "HybridFormulation", "Lifetime", "Transfer"]

Transfer: TypeAlias = tuple[str, Any]
"""``("out", item)`` or ``("back", number of the prefetch's life)``."""


class ComputationSlot(NamedTuple):
    """A forward that may run, or a backward.

    Attributes:
        stage: The stage that is computed.
        phase: The stage whose backward ends the phase.
        sweep: The number of the sweep within the phase; 0 for a backward.
        kind: A kind of forward, or the backward.
        time: Its duration, in the model's time units.
    """

    stage: int
    phase: int
    sweep: int
    kind: OpKind
    time: int

    @property
    def is_backward(self) -> bool:
        """True for a backward, which always runs."""
        return self.kind is OpKind.BACKWARD


class Lifetime(NamedTuple):
    """The time during which something takes memory of the device.

    Attributes:
        item: The item, ``None`` for gradients and overheads.
        maker: The position of the computation that takes the memory, or -1.
        size: Bytes.
        kind: ``"input"``, ``"plain"`` or ``"saved"`` for what a forward makes, ``"back"`` for a
            prefetch, ``"gradient"`` or ``"overhead"``.
    """

    item: Item | None
    maker: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class HybridFormulation:
    """A Pyomo model and the meaning of its variables.

    Attributes:
        model: Minimises ``model.makespan``, in units. Yours to write out or hand to any solver.
        problem: The problem that it states.
        model_size: How much of the problem it states.
        time_unit: Ticks of the link in a unit of the model's times.
        size_unit: Bytes in a unit of the model's sizes.
        horizon: Time units that no answer exceeds.
        computations: Computations, in order; their indices are called positions.
        lifetimes: Lifetimes, by number.
    """

    model: Model
    problem: HybridProblem
    model_size: ModelSize
    time_unit: int
    size_unit: int
    horizon: float
    computations: tuple[ComputationSlot, ...]
    lifetimes: tuple[Lifetime, ...]

    @property
    def positions(self) -> range:
        """The positions of computations."""
        return range(len(self.computations))

    @property
    def levels(self) -> range:
        """The levels of the link."""
        return range(len(self.problem.link.levels))

    @property
    def prefetches(self) -> list[int]:
        """The lifetimes that a prefetch begins."""
        return [v for v, lifetime in enumerate(self.lifetimes) if lifetime.kind == "back"]

    @property
    def movable(self) -> list[Item]:
        """The items that it can make sense to move."""
        return [item for item in items_of(self.problem) if item_bytes(self.problem, item)]

    @property
    def pairs(self) -> list[tuple[Item, Item]]:
        """The pairs of different items that share a limited memory behind a link."""
        items = self.movable if self.limited_levels else []
        return [(i, j) for i in items for j in items if i != j]

    @property
    def limited_levels(self) -> list[int]:
        """The levels whose capacity is limited."""
        return [k for k, link in enumerate(self.problem.link.levels) if link.capacity is not None]

    def item(self, v: int) -> Item:
        """Return the item that lifetime v is a copy of."""
        item = self.lifetimes[v].item
        assert item is not None, "gradients and overheads are no items"
        return item

    def copies(self, item: Item) -> list[int]:
        """Return the lifetimes of an item, as made; prefetches last, in their order."""
        return [v for v, lifetime in enumerate(self.lifetimes) if lifetime.item == item]

    def units(self, item: Item, level: int) -> int:
        """Return how long an item is on a link, in time units."""
        return (
            self.problem.link.transfer_ticks(item_bytes(self.problem, item), level)
            // self.time_unit
        )

    def moving(self, item: Item) -> Expression:
        """Return how long an item is on the link that it uses, in time units."""
        return sum(self.units(item, level) * self.model.sent[item, level] for level in self.levels)

    def runs(self, k: int) -> Expression:
        """Return whether computation k runs."""
        return 1 if self.computations[k].is_backward else self.model.saves[k] + self.model.plain[k]

    def end(self, k: int) -> Expression:
        """Return when computation k ends, in time units."""
        return self.model.start[k] + self.computations[k].time * self.runs(k)

    def exists(self, v: int) -> Expression:
        """Return whether lifetime v exists."""
        lifetime, model = self.lifetimes[v], self.model
        match lifetime.kind:
            case "plain":
                return model.plain[lifetime.maker]
            case "saved":
                return model.saves[lifetime.maker]
            case "back":
                return model.comes[v]
            case "overhead":
                return self.runs(lifetime.maker)
            case _:
                return 1

    def made(self, v: int) -> Expression:
        """Return when lifetime v takes memory, in time units."""
        lifetime = self.lifetimes[v]
        if lifetime.kind == "back":
            return self.model.returns[v]
        return self.model.start[lifetime.maker] if lifetime.maker >= 0 else 0

    def ready(self, v: int) -> Expression:
        """Return from when lifetime v can be read, in time units."""
        lifetime = self.lifetimes[v]
        if lifetime.kind == "back":
            return self.model.returns[v] + self.moving(self.item(v))
        return self.end(lifetime.maker) if lifetime.maker >= 0 else 0

    def until(self, v: int) -> int:
        """Return the computation through which a gradient or overhead is held; -1 for items."""
        lifetime = self.lifetimes[v]
        if lifetime.kind == "overhead":
            return lifetime.maker
        if lifetime.kind != "gradient":
            return -1
        later = (
            k for k in self.positions if k > lifetime.maker and self.computations[k].is_backward
        )
        return next(later, len(self.computations) - 1)

    def sources(self, k: int) -> list[list[int]]:
        """Return, for each thing that computation k reads, the lifetimes that it may read."""
        computation = self.computations[k]
        inputs: list[Item] = [("a", computation.stage)]
        inputs += [("b", computation.stage - 1)] if computation.stage else []
        wanted = [inputs] + [[("b", computation.stage)]] * computation.is_backward
        return [
            [v for item in items for v in self.copies(item) if self.lifetimes[v].maker < k]
            for items in wanted
        ]

    def decode(self) -> Schedule:
        """Return the schedule that the variables describe."""
        builder = ScheduleBuilder(dict(self._items()))
        for k, computation in enumerate(self.computations):
            kind = OpKind.BACKWARD if computation.is_backward else None
            if kind is None and _is_on(self.model.saves[k]):
                kind = OpKind.FORWARD_KEEP_ALL
            if kind is None and _is_on(self.model.plain[k]):
                kind = OpKind.FORWARD_KEEP_INPUT
            if kind is not None:
                builder.add((k, 1), Op(kind, computation.stage), self._touched_by(k))
        for item in self.movable:
            self._note_transfers(builder, item)
        return builder.schedule()

    def _items(self) -> Iterator[tuple[int, Item]]:
        """Yield the lifetimes of items, each with its item."""
        for v, lifetime in enumerate(self.lifetimes):
            if lifetime.item is not None:
                yield v, lifetime.item

    def _touched_by(self, k: int) -> list[int]:
        """Return the lifetimes that computation k makes or reads."""
        read = [v for other, v in self.model.reads if other == k and _is_on(self.model.reads[k, v])]
        made = [
            v
            for v, lifetime in enumerate(self.lifetimes)
            if lifetime.kind in ("plain", "saved")
            and lifetime.maker == k
            and _is_on(self.exists(v))
        ]
        return read + made

    def _note_transfers(self, builder: ScheduleBuilder, item: Item) -> None:
        model, (kind, i) = self.model, item
        for level in self.levels:
            if not _is_on(model.sent[item, level]):
                continue
            (sender,) = (
                v for v in self.copies(item) if v in model.sends and _is_on(model.sends[v])
            )
            time, maker = pyo.value(model.leaves[item]), self.lifetimes[sender].maker
            later = (k for k in self.positions if pyo.value(model.start[k]) >= time - _CLOSE)
            computation = max(next(later, len(self.computations)), maker + 1)
            if self.lifetimes[sender].kind == "back":
                computation = max(computation, self._place_of(sender))
            builder.add((computation, 0, time, 0), Op(OFFLOAD_KINDS[level][kind], i), [sender])
        for v in self.copies(item):
            if v in model.comes and _is_on(model.comes[v]):
                when = (self._place_of(v), 0, pyo.value(model.returns[v]), 1)
                builder.add(when, Op(PREFETCH_KINDS[kind], i), [v])

    def _place_of(self, v: int) -> int:
        """Return the first computation that prefetch v comes before."""
        early = (k for k in self.positions if _is_on(self.model.early[v, k]))
        return next(early, len(self.computations))


def _is_on(variable: Expression) -> bool:
    """Return the value of a binary variable."""
    return bool(round(pyo.value(variable)) == 1)


_CLOSE: Final = 1e-4
"""Time units below which two times count as one."""
