"""The variables of the constraint program: which forwards run, what is stored when.

Time is cut into phases: phase ``k`` ends with ``B`` of stage ``k`` and holds the gradient
``δ^{k+1}``. In a phase, stages ``0 .. k`` take their turn once each, in this order; at its
turn a stage may run as ``Fa``, ``Fc`` or ``Fn``. Indices count from 0 as everywhere. What
``Fa`` leaves is one of the stage's records (`Records`); one that keeps several stages is made at
the turn of its first one, and its ``B`` ends the phase of its last one. The phases that it
skips are *joined* to that one: nothing happens in them.

==========================  =============================================================
variable (Boolean)          meaning
==========================  =============================================================
``ran(form, k, j)``         stage j runs as ``Fc`` or ``Fn`` at its turn in phase k
``kept(k, record)``         ``Fa`` makes `record` in phase k
``stored(when, k, i)``      ``a^i`` is stored at a moment of phase k: at its `START`; at the
                            `TURN` of stage i, just before it runs; at its `END`, when
                            ``B`` runs
``recorded(when, k, record)``  `record` is stored at a moment of phase k; at its `TURN`: just
                            after the turn of its first stage
==========================  =============================================================

``a^0`` is always stored, nothing else is when the first phase, ``n - 1``, starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from chainstay.formulations.chain.records import Record, Records
from chainstay.formulations.cpsat.ortools_backend import Literal, Model
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, OpKind

FORMS: Final = (OpKind.FORWARD_KEEP_ALL, OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_DROP)
"""Forms of a forward, in the order in which they run at one turn."""


class TimePoint(Enum):
    """Points in time within a phase."""

    START = auto()
    TURN = auto()
    END = auto()


Key: TypeAlias = tuple[str | OpKind | TimePoint | int, ...]
"""The meaning of a variable: its name, and the indices of the table above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainVariables:
    """All variables of a chain, by meaning.

    Attributes:
        model: Owner of the variables.
        records: What may be recorded, of which chain.
        discards: Which operations may remove data.
        drops: Whether discards may come in the middle of a phase.
        by_key: The variables by meaning; what is always or never so has none.
        always: The constant for what is always so.
        never: The constant for what is never so.
    """

    model: Model
    records: Records
    discards: Discards
    drops: bool
    by_key: dict[Key, Literal] = field(default_factory=dict)
    always: Literal = field(init=False)
    never: Literal = field(init=False)

    def __post_init__(self) -> None:
        for key in self._keys():
            self.by_key[key] = self.model.new_bool_var("")
        object.__setattr__(self, "always", self.model.new_constant(1))
        object.__setattr__(self, "never", self.model.new_constant(0))

    @property
    def profile(self) -> ChainProfile:
        """The chain."""
        return self.records.profile

    @property
    def phases(self) -> range:
        """All phases, in the order of time."""
        return range(len(self.profile) - 1, -1, -1)

    @property
    def turns(self) -> list[tuple[int, int]]:
        """All pairs of phase and stage, in the order of time."""
        return [(k, j) for k in self.phases for j in range(k + 1)]

    def fitting(self, k: int, records: Iterable[Record]) -> list[Record]:
        """Return those of some records that can be there in phase k."""
        return [record for record in records if record.last <= k]

    def ran(self, form: OpKind, k: int, j: int) -> Literal:
        """Return whether stage j runs as `form`, ``Fc`` or ``Fn``, in phase k."""
        return self.by_key.get(("ran", form, k, j), self.never)

    def kept(self, k: int, record: Record) -> Literal:
        """Return whether `record` is made in phase k."""
        return self.by_key.get(("kept", k, *record.key), self.never)

    def runs(self, k: int, j: int) -> list[Literal]:
        """Return the literals of all ways to run stage j in phase k, alone or with others."""
        records = self.fitting(k, self.records.covering(j))
        return [self.kept(k, record) for record in records] + self.made(k, j)

    def made(self, k: int, j: int) -> list[Literal]:
        """Return the literals of all ways to make the output of stage j by itself in phase k."""
        return [self.ran(form, k, j) for form in FORMS[1:]]

    def stored(self, when: TimePoint, k: int, i: int) -> Literal:
        """Return whether ``a^i`` is stored at a time point of phase k."""
        return self.by_key.get(("stored", when, k, i), self.never if i else self.always)

    def recorded(self, when: TimePoint, k: int, record: Record) -> Literal:
        """Return whether `record` is stored at a time point of phase k."""
        return self.by_key.get(("recorded", when, k, *record.key), self.never)

    def holding(self, when: TimePoint, k: int, i: int) -> list[Literal]:
        """Return the literals of all that may hold ``a^i`` in phase k: itself, and records."""
        records = self.fitting(k, self.records.ending(i - 1))
        return [self.stored(when, k, i), *(self.recorded(when, k, record) for record in records)]

    def joined(self, k: int) -> list[Literal]:
        """Return literals of which one holds if no phase k happens, none otherwise."""
        crossing = self.records.crossing(k)
        return [self.recorded(TimePoint.END, record.last, record) for record in crossing]

    def is_first(self, k: int) -> bool:
        """Return whether k is the first phase, in which every stage has its first run."""
        return k == len(self.profile) - 1

    def _keys(self) -> Iterator[Key]:
        """Yield the meanings that need a variable."""
        for k, i in self.turns:
            is_first, records = self.is_first(k), self.fitting(k, self.records.starting(i))
            times = [when for when in TimePoint if not (is_first and when is TimePoint.START)]
            made = (record for record in records if record.is_made(first=is_first))
            yield from (("kept", k, *record.key) for record in made)
            if i < k:
                yield "ran", OpKind.FORWARD_KEEP_INPUT, k, i
            if 0 < i < k:
                yield "ran", OpKind.FORWARD_DROP, k, i
            yield from (("stored", when, k, i) for when in times if i)
            yield from (("recorded", when, k, *r.key) for r in records for when in times)
