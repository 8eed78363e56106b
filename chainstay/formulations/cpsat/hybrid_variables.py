"""Variables of the hybrid constraint program: computations, lifetimes and transfers."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeAlias

from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.ortools_backend import Literal, Model
from chainstay.problems.hybrid import HybridProblem
from chainstay.schedule import Item
from chainstay.timetable import Time

TimeUnits: TypeAlias = Any
"""A whole number of time units: a variable of CP-SAT, an expression, or a number."""


class ComputationInterval(NamedTuple):
    """A forward that may run, or a backward.

    Attributes:
        stage: The stage that is computed.
        phase: The stage whose backward ends the phase.
        sweep: The number of the sweep within the phase; 0 for a backward.
        start: When it starts, in time units.
        end: When it ends, in time units.
        duration: Time units that it takes if it runs.
        plain: Whether it runs as ``Fc``; ``None`` for a backward, and at the end of a phase.
        saves: Whether it runs as ``Fa``; ``None`` for a backward.
    """

    stage: int
    phase: int
    sweep: int
    start: TimeUnits
    end: TimeUnits
    duration: int
    plain: Literal | None
    saves: Literal | None

    @property
    def is_backward(self) -> bool:
        """True for a backward, which always runs."""
        return self.plain is None and self.saves is None

    @property
    def runs(self) -> TimeUnits:
        """A sum of literals that is 1 if it runs, else 0."""
        if self.is_backward:
            return 1
        return sum(literal for literal in (self.plain, self.saves) if literal is not None)


class LifetimeInterval(NamedTuple):
    """The time during which one copy of an item takes memory of the device.

    Attributes:
        maker: Position of the computation that makes it; -1 for a prefetch, -2 for the input.
        made: When it takes memory, in time units.
        ready: The time from which on it can be read, in time units.
        end: When its memory is free, in time units.
        exists: Whether there is such a copy.
        span: The interval from `made` to `end`.
        uses: Whether it is read or sent, one literal for each possible reader or transfer.
        number: The number of the lifetime among all lifetimes.
    """

    maker: int
    made: TimeUnits
    ready: TimeUnits
    end: TimeUnits
    exists: Literal
    span: Any
    uses: list[Literal]
    number: int


@dataclass(slots=True)
class ItemTransfers:
    """The transfers of one item.

    Attributes:
        sent: Whether the item is offloaded.
        start: When the offload starts, in time units.
        senders: By lifetime, whether that copy is offloaded.
        prefetches: For each prefetch, whether it takes place and when it starts.
    """

    sent: Literal
    start: TimeUnits
    senders: list[Literal] = field(default_factory=list)
    prefetches: list[tuple[Literal, TimeUnits]] = field(default_factory=list)


@dataclass(slots=True)
class HybridProgram:
    """A CP-SAT model and the meaning of its variables.

    Attributes:
        problem: The problem that it states.
        model_size: How much of the problem it states.
        model: The CP-SAT model.
        horizon: Time units that no answer exceeds.
        units_per_tick: Time units in a tick of the link; 1 where `ticks_per_unit` is larger.
        ticks_per_unit: Ticks in a time unit; 1 where `units_per_tick` is larger.
        instant_computations: How many computations take no time.
        is_exact: Whether times are rounded only for computations that take no time.
        known_makespan: A makespan that can be reached, in the profile's time units.
        computations: All computations, in order.
        lifetimes: The lifetimes of each item.
        transfers: The transfers of each item that can move.
        reads: By position of the computation, the lifetimes that it may read, each with its item
            and the literal that says so.
    """

    problem: HybridProblem
    model_size: ModelSize
    model: Model
    horizon: int
    units_per_tick: int
    ticks_per_unit: int
    instant_computations: int
    is_exact: bool
    known_makespan: Time | None
    computations: list[ComputationInterval] = field(default_factory=list)
    lifetimes: dict[Item, list[LifetimeInterval]] = field(default_factory=dict)
    transfers: dict[Item, ItemTransfers] = field(default_factory=dict)
    reads: dict[int, list[tuple[Item, LifetimeInterval, Literal]]] = field(default_factory=dict)

    @property
    def makespan(self) -> TimeUnits:
        """The end of the last backward, in time units."""
        return self.computations[-1].end

    @property
    def most_transfers(self) -> int:
        """The most transfers that an answer can have."""
        return sum(1 + len(transfers.prefetches) for transfers in self.transfers.values())

    def covering_units(self, ticks: int) -> int:
        """Return the time units that cover `ticks`, at least one."""
        return max(1, -(-ticks * self.units_per_tick // self.ticks_per_unit))

    def new_time(self, name: str = "") -> TimeUnits:
        """Return a new variable for a time."""
        return self.model.new_int_var(0, self.horizon, name)

    def add_lifetime(
        self, item: Item, maker: int, made: TimeUnits, ready: TimeUnits, exists: Literal
    ) -> None:
        """Add a lifetime of `item`; the arguments are those of `LifetimeInterval`."""
        end = self.new_time()
        self.model.add(end >= ready).only_enforce_if(exists)
        span = self.model.new_optional_interval_var(made, self.new_time(), end, exists, "")
        number = sum(map(len, self.lifetimes.values()))
        lifetime = LifetimeInterval(maker, made, ready, end, exists, span, [], number)
        self.lifetimes[item].append(lifetime)

    def to_time(self, units: int) -> Fraction:
        """Return the profile's time that an answer of so many units takes at most.

        It is exact where ticks are not rounded.
        """
        ticks = units // self.units_per_tick if self.is_exact else units * self.ticks_per_unit
        return Fraction(ticks, self.problem.link.ticks)

    def bound(self, units: int) -> Fraction:
        """Return the profile's time that no answer of this size is below.

        `units` is a lower bound on the objective of the model.
        """
        ticks_in_time = self.problem.link.ticks
        if self.is_exact:
            ticks = -((self.instant_computations - units) // self.units_per_tick)
            return Fraction(ticks, ticks_in_time)
        rounded = len(self.computations) + self.most_transfers
        return Fraction(max(0, units - rounded) * self.ticks_per_unit, ticks_in_time)
