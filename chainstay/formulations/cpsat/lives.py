"""The hybrid constraint program's computations, lives and moves, and what its times mean."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from chainstay.formulations.cpsat.binding import Literal, Model
from chainstay.formulations.extent import Extent, Item
from chainstay.hybrid import HybridProblem
from chainstay.timetable import Time

__all__ = ["Computation", "Grains", "HybridProgram", "Life", "Moves"]

Grains: TypeAlias = Any
"""A whole number of grains: a variable of CP-SAT, an expression, or a number."""


class Computation(NamedTuple):
    """A place for a computation: literals of what it makes, a start, and its length if it runs.

    A backward has neither literal.
    """

    stage: int
    phase: int
    lap: int
    start: Grains
    end: Grains
    length: int
    plain: Literal | None
    saves: Literal | None

    @property
    def is_backward(self) -> bool:
        """Whether it runs in any case, backwards."""
        return self.plain is None and self.saves is None

    @property
    def runs(self) -> Grains:
        """A sum of literals: whether it runs."""
        if self.is_backward:
            return 1
        return sum(literal for literal in (self.plain, self.saves) if literal is not None)


class Life(NamedTuple):
    """Of a copy of an item on the device.

    Attributes:
        maker: Position of the computation that makes it; -1 for a prefetch, -2 for the input.
        made: From when it takes memory.
        ready: From when it can be read.
        end: When it goes.
        exists: Whether it does.
        span: From `made` to `end`.
        uses: Whether who reads or sends it does so.
        number: One for each life.
    """

    maker: int
    made: Grains
    ready: Grains
    end: Grains
    exists: Literal
    span: Any
    uses: list[Literal]
    number: int


@dataclass(slots=True)
class Moves:
    """Of an item: by level, whether it leaves; when; by life, whether that is sent; prefetches."""

    sent: list[Literal]
    start: Grains
    senders: list[Literal] = field(default_factory=list)
    prefetches: list[tuple[Literal, Grains]] = field(default_factory=list)


@dataclass(slots=True)
class HybridProgram:
    """The model and the meaning of its variables.

    Attributes:
        problem: What it states.
        extent: How much of it.
        horizon: Grains that no answer exceeds.
        grains: In a tick; or 1, and `ticks` in a grain.
        ticks: In a grain.
        empty: Computations that take no time.
        is_exact: Whether times need no rounding but that of empty computations.
        below: A makespan that can be reached.
        reads: By position of the computation: the life that a literal lets it read.
    """

    problem: HybridProblem
    extent: Extent
    model: Model
    horizon: int
    grains: int
    ticks: int
    empty: int
    is_exact: bool
    below: Time | None
    computations: list[Computation] = field(default_factory=list)
    lives: dict[Item, list[Life]] = field(default_factory=dict)
    moves: dict[Item, Moves] = field(default_factory=dict)
    reads: dict[int, list[tuple[Item, Life, Literal]]] = field(default_factory=dict)

    @property
    def makespan(self) -> Grains:
        """When the last backward ends."""
        return self.computations[-1].end

    @property
    def transfers(self) -> int:
        """How many there can be."""
        return sum(1 + len(moves.prefetches) for moves in self.moves.values())

    def length(self, ticks: int) -> int:
        """Grains that cover `ticks`, at least one."""
        return max(1, -(-ticks * self.grains // self.ticks))

    def moment(self, name: str = "") -> Grains:
        """A new variable in time."""
        return self.model.new_int_var(0, self.horizon, name)

    def live(self, item: Item, maker: int, made: Grains, ready: Grains, exists: Literal) -> None:
        """One more life of an item."""
        end = self.moment()
        self.model.add(end >= ready).only_enforce_if(exists)
        span = self.model.new_optional_interval_var(made, self.moment(), end, exists, "")
        number = sum(map(len, self.lives.values()))
        self.lives[item].append(Life(maker, made, ready, end, exists, span, [], number))

    def time(self, grains: int) -> Fraction:
        """What an answer of `grains` takes at most; exact where ticks are not rounded."""
        ticks = grains // self.grains if self.is_exact else grains * self.ticks
        return Fraction(ticks, self.problem.link.ticks)

    def bound(self, grains: int) -> Fraction:
        """What no answer in this extent is below, if none is below `grains` in the model."""
        if self.is_exact:
            return Fraction(-((self.empty - grains) // self.grains), self.problem.link.ticks)
        rounded = len(self.computations) + self.transfers
        return Fraction(max(0, grains - rounded) * self.ticks, self.problem.link.ticks)
