"""The hybrid Pyomo model's places, lives and variables, and how to read them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from chainstay.formulations.algebra import Expression, Model, pyo
from chainstay.formulations.extent import Extent, Item, items_of, size_of
from chainstay.formulations.happenings import BACK, SENT, Happenings
from chainstay.hybrid import HybridProblem
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["HybridFormulation", "Life", "Place", "Transfer"]

Transfer: TypeAlias = tuple[str, Any]
"""``("out", item)`` or ``("back", number of the prefetch's life)``."""


class Place(NamedTuple):
    """A place for a computation: its stage, the backward that ends its phase, and its time."""

    stage: int
    phase: int
    lap: int
    kind: OpKind
    time: int

    @property
    def is_backward(self) -> bool:
        """Whether it runs in any case, backwards."""
        return self.kind is OpKind.BACKWARD


class Life(NamedTuple):
    """What holds memory: an item or ``None``, the computation that takes it or -1, and a kind."""

    item: Item | None
    maker: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class HybridFormulation:
    """A Pyomo model and the meaning of its variables.

    Attributes:
        model: Minimises ``model.makespan``, in units. Yours to write out or hand to any solver.
        problem: What it states.
        extent: How much of it.
        unit: Ticks of the link in a unit of the model's times.
        size_unit: Bytes in a unit of the model's sizes.
        horizon: No answer takes longer, in units of time.
        places: Of computations, in order.
        lives: By number. ``kind`` is ``"input"``, ``"plain"`` or ``"saved"`` for what a forward
            makes, ``"back"`` for a prefetch, ``"gradient"`` or ``"overhead"``.
    """

    model: Model
    problem: HybridProblem
    extent: Extent
    unit: int
    size_unit: int
    horizon: float
    places: tuple[Place, ...]
    lives: tuple[Life, ...]

    @property
    def numbers(self) -> range:
        """Of computations."""
        return range(len(self.places))

    @property
    def levels(self) -> range:
        """Of links."""
        return range(len(self.problem.link.levels))

    @property
    def backs(self) -> list[int]:
        """Lives that a prefetch begins."""
        return [v for v, life in enumerate(self.lives) if life.kind == "back"]

    @property
    def movable(self) -> list[Item]:
        """Items that it can make sense to move."""
        return [item for item in items_of(self.problem) if size_of(self.problem, item)]

    @property
    def pairs(self) -> list[tuple[Item, Item]]:
        """Of different items that share a limited place behind a link."""
        items = self.movable if self.limited else []
        return [(i, j) for i in items for j in items if i != j]

    @property
    def limited(self) -> list[int]:
        """Levels of limited capacity."""
        return [k for k, link in enumerate(self.problem.link.levels) if link.capacity is not None]

    def item(self, v: int) -> Item:
        """What life v is a copy of."""
        item = self.lives[v].item
        assert item is not None, "gradients and overheads are no items"
        return item

    def copies(self, item: Item) -> list[int]:
        """Lives of an item, as made; prefetches last, in their order."""
        return [v for v, life in enumerate(self.lives) if life.item == item]

    def units(self, item: Item, level: int) -> int:
        """How long an item is on a link."""
        return self.problem.link.transfer_ticks(size_of(self.problem, item), level) // self.unit

    def moving(self, item: Item) -> Expression:
        """How long it is on the link that it uses."""
        return sum(self.units(item, level) * self.model.sent[item, level] for level in self.levels)

    def runs(self, k: int) -> Expression:
        """Whether computation k runs."""
        return 1 if self.places[k].is_backward else self.model.saves[k] + self.model.plain[k]

    def end(self, k: int) -> Expression:
        """When computation k ends."""
        return self.model.start[k] + self.places[k].time * self.runs(k)

    def exists(self, v: int) -> Expression:
        """Whether life v does."""
        life, model = self.lives[v], self.model
        match life.kind:
            case "plain":
                return model.plain[life.maker]
            case "saved":
                return model.saves[life.maker]
            case "back":
                return model.comes[v]
            case "overhead":
                return self.runs(life.maker)
            case _:
                return 1

    def made(self, v: int) -> Expression:
        """When life v takes memory."""
        life = self.lives[v]
        if life.kind == "back":
            return self.model.returns[v]
        return self.model.start[life.maker] if life.maker >= 0 else 0

    def ready(self, v: int) -> Expression:
        """From when life v can be read."""
        life = self.lives[v]
        if life.kind == "back":
            return self.model.returns[v] + self.moving(self.item(v))
        return self.end(life.maker) if life.maker >= 0 else 0

    def until(self, v: int) -> int:
        """The computation through which a gradient or overhead is held; -1 for items."""
        life = self.lives[v]
        if life.kind == "overhead":
            return life.maker
        if life.kind != "gradient":
            return -1
        later = (k for k in self.numbers if k > life.maker and self.places[k].is_backward)
        return next(later, len(self.places) - 1)

    def sources(self, k: int) -> list[list[int]]:
        """Of each thing that computation k reads, the lives that it may read."""
        place = self.places[k]
        inputs: list[Item] = [("a", place.stage)]
        inputs += [("b", place.stage - 1)] if place.stage else []
        wanted = [inputs] + [[("b", place.stage)]] * place.is_backward
        return [
            [v for item in items for v in self.copies(item) if self.lives[v].maker < k]
            for items in wanted
        ]

    def decode(self) -> Schedule:
        """The program list that the variables describe."""
        happenings = Happenings(dict(self._items()))
        for k, place in enumerate(self.places):
            kind = OpKind.BACKWARD if place.is_backward else None
            if kind is None and _is_on(self.model.saves[k]):
                kind = OpKind.FORWARD_KEEP_ALL
            if kind is None and _is_on(self.model.plain[k]):
                kind = OpKind.FORWARD_KEEP_INPUT
            if kind is not None:
                happenings.note((k, 1), Op(kind, place.stage), self._touched_by(k))
        for item in self.movable:
            self._note_transfers(happenings, item)
        return happenings.schedule()

    def _items(self) -> Iterator[tuple[int, Item]]:
        for v, life in enumerate(self.lives):
            if life.item is not None:
                yield v, life.item

    def _touched_by(self, k: int) -> list[int]:
        read = [v for other, v in self.model.reads if other == k and _is_on(self.model.reads[k, v])]
        made = [
            v
            for v, life in enumerate(self.lives)
            if life.kind in ("plain", "saved") and life.maker == k and _is_on(self.exists(v))
        ]
        return read + made

    def _note_transfers(self, happenings: Happenings, item: Item) -> None:
        model, (kind, i) = self.model, item
        for level in self.levels:
            if not _is_on(model.sent[item, level]):
                continue
            (sender,) = (
                v for v in self.copies(item) if v in model.sends and _is_on(model.sends[v])
            )
            time, maker = pyo.value(model.leaves[item]), self.lives[sender].maker
            later = (k for k in self.numbers if pyo.value(model.start[k]) >= time - _CLOSE)
            place = max(next(later, len(self.places)), maker + 1)
            if self.lives[sender].kind == "back":
                place = max(place, self._place_of(sender))
            happenings.note((place, 0, time, 0), Op(SENT[level][kind], i), [sender])
        for v in self.copies(item):
            if v in model.comes and _is_on(model.comes[v]):
                when = (self._place_of(v), 0, pyo.value(model.returns[v]), 1)
                happenings.note(when, Op(BACK[kind], i), [v])

    def _place_of(self, v: int) -> int:
        """The first computation that prefetch v comes before."""
        early = (k for k in self.numbers if _is_on(self.model.early[v, k]))
        return next(early, len(self.places))


def _is_on(variable: Expression) -> bool:
    """The value of a binary."""
    return bool(round(pyo.value(variable)) == 1)


_CLOSE: Final = 1e-4
"""Of two times, to be one."""
