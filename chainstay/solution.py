"""A solver's claim about a schedule, and the solution that the simulator makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol, Self

from chainstay import documents
from chainstay.errors import InvalidSolutionError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.timetable import Time
from chainstay.units import format_bound, format_bytes, format_time


class Family(StrEnum):
    """The set of schedules that a lower bound speaks about.

    Each lies within the next, where both are of the same networks.

    Attributes:
        CANONICAL_PERSISTENT: Joins only: persistent on every branch and the tail, and the
            branches' backwards in the reverse order of their last checkpoints.
        PERSISTENT: Once kept, a value stays until its backward ([BEHJS24], Definition 4.1), and
            every forward that drops or keeps an input is followed at once by a forward of the next
            stage.
        WEAKLY_PERSISTENT: Saved data stay until their backward; a checkpoint may move forward.
        SINGLE_SWEEP: Between two backwards, forwards run in increasing stage order.
        SINGLE_TURN: Homogeneous joins only: every schedule that runs the turn once.
        OFFLOAD_FIRST: Offloading only: all offloads, by increasing index, end before the first
            prefetch starts; prefetches by decreasing index.
        TWICE: Recomputing with transfers only: between two backwards at most two sweeps of
            forwards in increasing stage order, and at most two prefetches of each item.
        ALL: Every valid schedule under the rules for discards in force: no restriction.
    """

    CANONICAL_PERSISTENT = "canonical persistent"
    PERSISTENT = "persistent"
    WEAKLY_PERSISTENT = "weakly persistent"
    SINGLE_SWEEP = "single-sweep"
    SINGLE_TURN = "single-turn"
    OFFLOAD_FIRST = "offload-before-prefetch"
    TWICE = "at-most-twice"
    ALL = "all"


_BREADTH: Final = tuple(Family)
_PERSISTENT: Final = (Family.PERSISTENT, Family.WEAKLY_PERSISTENT)
"""Families in which what is kept lasts until its backward, or moves on by ``Fn``.

Under Table 1 they need no discards. With a tape they are larger where an option needs no input,
which may then be dropped; under free discards all saved data may lose its input, and stages may
then run out of order.
"""


@dataclass(frozen=True, slots=True)
class Scope:
    """A set of schedules: those of a family that the rules for discards allow."""

    family: Family
    discards: Discards

    def includes(self, other: Scope) -> bool:
        """Return whether every schedule of `other` is known to be one of these."""
        if self == Scope(Family.ALL, Discards.FREE):
            return True  # free discards allow whatever others do
        if other.family is Family.CANONICAL_PERSISTENT and self.family is not other.family:
            return self.family is Family.ALL and self.discards is other.discards
        if _BREADTH.index(other.family) > _BREADTH.index(self.family):
            return False
        if other.family in _PERSISTENT and other.discards is Discards.FREE:
            return self.discards is Discards.FREE and self.family in _PERSISTENT
        if other.discards is Discards.TAPE and self.discards is Discards.TABLE1:
            return False
        return other.discards is self.discards or other.family in _PERSISTENT


class Status(StrEnum):
    """The proof state of a solution: optimal, or feasible."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A solver's claim: a schedule, its makespan, and a lower bound on schedules of `family`.

    Attributes:
        schedule: The schedule.
        makespan: Its total time in ns, as the solver counted it.
        lower_bound: Time in ns that no schedule of `family` within the budget goes below.
        family: The schedules that `lower_bound` covers.
        discards: The rules under which the schedule is valid and the bound holds.

    Raises:
        InvalidSolutionError: `family` or `discards` is something else.
    """

    schedule: Schedule
    makespan: int
    lower_bound: int
    family: Family
    discards: Discards = Discards.TABLE1

    def __post_init__(self) -> None:
        for name, kind in (("family", Family), ("discards", Discards)):
            if not isinstance(found := getattr(self, name), kind):
                raise InvalidSolutionError(
                    f"{name} of a claim is {found!r}, must be a {kind.__name__}, such as "
                    f"{kind.__name__}.{list(kind)[-1].name}"
                )

    @property
    def scope(self) -> Scope:
        """The schedules that `lower_bound` covers."""
        return Scope(self.family, self.discards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A certified claim: every number but the bound was recomputed by the simulator.

    Attributes:
        schedule: The schedule.
        makespan: Its total time, in ns.
        peak_bytes: The most memory it needs, in bytes; at most `budget`.
        budget: The budget it was made for, in bytes.
        lower_bound: Time in ns that no schedule of `family` within the budget goes below.
        family: The schedules that `lower_bound` covers.
        discards: The rules under which the schedule is valid and the bound holds.
        method: The solver and its settings.
        solve_seconds: Wall time of the solver, in seconds.
        unrestricted_bound: Time in ns that no schedule at all within the budget goes below,
            whatever its family and the rules for discards.
        document: Kind and version of its JSON documents.
        techniques: What all schedules that bounds are about do, as in " with offloading only";
            empty if they may do anything.

    Raises:
        InvalidSolutionError: The peak exceeds the budget or a bound the makespan.
    """

    schedule: Schedule
    makespan: Time
    peak_bytes: int
    budget: int
    lower_bound: Time
    family: Family
    method: str
    solve_seconds: float
    discards: Discards = Discards.TABLE1
    unrestricted_bound: Time = 0
    document: ClassVar[tuple[str, int]] = ("solution", 1)
    techniques: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not 0 <= self.peak_bytes <= self.budget:
            raise InvalidSolutionError(
                f"peak_bytes is {self.peak_bytes}, must be from 0 to the budget of {self.budget}"
            )
        for name in ("lower_bound", "unrestricted_bound"):
            if not 0 <= (bound := getattr(self, name)) <= self.makespan:
                raise InvalidSolutionError(
                    f"{name} is {bound}, must be from 0 to the makespan of {self.makespan}"
                )

    @property
    def is_optimal(self) -> bool:
        """True if it is proved that no schedule of `family` is faster."""
        return self.makespan == self.lower_bound

    @property
    def status(self) -> Status:
        """`Status.OPTIMAL` when proved so, else `Status.FEASIBLE`."""
        return Status.OPTIMAL if self.is_optimal else Status.FEASIBLE

    @property
    def gap(self) -> float:
        """The share of the makespan by which it may exceed the optimum of `family`."""
        return self._excess(self.lower_bound)

    @property
    def unrestricted_gap(self) -> float:
        """The share of the makespan that any schedule at all could save at most."""
        return self._excess(self.unrestricted_bound)

    def _excess(self, bound: Time) -> float:
        return float((self.makespan - bound) / self.makespan) if self.makespan else 0.0

    @property
    def covered(self) -> str:
        """The schedules that `lower_bound` covers, in words."""
        is_named = self.family is Family.ALL and not self.techniques
        rules = f" with {self.discards} discards"
        is_named |= self.discards is not Discards.TABLE1
        return f"{self.family} schedules{self.techniques}{rules if is_named else ''}"

    @property
    def covers_everything(self) -> bool:
        """Whether these are all schedules of its techniques, under whatever rules for discards."""
        is_free = self.discards is Discards.FREE or bool(self.techniques)
        return self.family is Family.ALL and is_free

    @property
    def proof(self) -> str:
        """What is proved about it, in words."""
        proof = (
            f"proved optimal among {self.covered}"
            if self.is_optimal
            else f"at most {format_bound(self.gap)} above the optimum among {self.covered}"
        )
        if self.unrestricted_bound > 0 and not self.covers_everything:
            most = format_bound(self.unrestricted_gap)
            proof += f"; no schedule{self.techniques or ' at all'} saves more than {most} of that"
        return proof

    def describe(self) -> str:
        """Return one sentence for people: makespan, peak, proof and family.

        Example:
            >>> Solution(schedule=Schedule.parse("Fa0 B0"), makespan=2_000_000, peak_bytes=2048,
            ...          budget=4096, lower_bound=2_000_000, family=Family.PERSISTENT,
            ...          method="dp", solve_seconds=0.1).describe()
            '2 ms at a peak of 2.00 KiB of 4.00 KiB: proved optimal among persistent schedules'

        Where it is known how much all other schedules could gain, that follows.
        """
        return (
            f"{format_time(self.makespan)} at a peak of {format_bytes(self.peak_bytes)} "
            f"of {format_bytes(self.budget)}: {self.proof}"
        )

    def __str__(self) -> str:
        return self.describe()

    def to_json(self) -> str:
        """Return the solution as a JSON document; `from_json` gives an equal solution back."""
        return documents.dump(*self.document, self._to_fields())

    def _to_fields(self) -> dict[str, object]:
        """Return the fields of a document of this class."""
        return self._common_fields(lambda time: time) | {"discards": self.discards}

    def _common_fields(self, written: Callable[[Time], object]) -> dict[str, object]:
        """Return the fields that documents of all solutions have, with times as `written`."""
        return {
            "schedule": str(self.schedule),
            "makespan": written(self.makespan),
            "peak_bytes": self.peak_bytes,
            "budget": self.budget,
            "lower_bound": written(self.lower_bound),
            "unrestricted_bound": written(self.unrestricted_bound),
            "family": self.family,
            "method": self.method,
            "solve_seconds": self.solve_seconds,
        }

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes. Nothing in it is believed: replay it before use.

        Raises:
            InvalidSolutionError: Malformed, of another kind or version, or contradictory.
            InvalidScheduleError: Its schedule does not parse.
            InvalidProfileError: It has transfers, and its link is none.
        """
        with documents.parse(text, *cls.document, InvalidSolutionError) as document:
            return cls(**cls._from_fields(document))

    @classmethod
    def _from_fields(cls, document: documents.Fields) -> dict[str, Any]:
        """Return the attributes that a document of this class holds."""
        discards = Discards(document.choice("discards", Discards))
        return cls._common_attributes(document, document.integer) | {"discards": discards}

    @staticmethod
    def _common_attributes(
        document: documents.Fields, time: Callable[[str], Time]
    ) -> dict[str, Any]:
        """Return the attributes that all solutions have; `time` reads a field that is one."""
        return {
            "schedule": Schedule.parse(document.string("schedule")),
            "makespan": time("makespan"),
            "peak_bytes": document.integer("peak_bytes"),
            "budget": document.integer("budget"),
            "lower_bound": time("lower_bound"),
            "unrestricted_bound": time("unrestricted_bound"),
            "family": Family(document.choice("family", Family)),
            "method": document.string("method"),
            "solve_seconds": document.number("solve_seconds"),
        }


class Method(Protocol):
    """A method that solves chains: `DP`, `MIP`, or your own callable, checked like ours.

    Raises:
        InfeasibleBudgetError: When called: no schedule of its family fits in the budget.
        SolverLimitError: When called: its limit was reached with nothing to show.
    """

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return a schedule of `profile` within `budget` bytes; `hint` is a known schedule."""
        ...
