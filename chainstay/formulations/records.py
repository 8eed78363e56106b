"""The records that the programs by phases choose from: what ``Fa`` of a stage may leave.

A record is made under one option of its stage. The first phase runs every stage: the loss
reads what the stage before it made, and nothing but ``a^0`` is there at first. In a phase, stages
run in increasing order, so the first run of a stage is the first of those in the first phase,
and every run of a later phase is a repetition. What an option's forward costs follows from
the phase, therefore; where its backward costs other times after a first run, there are two
records, one that only the first phase makes and one that only later ones make. The branches and
the tail of a join are chains with the same records.

Options that never pay are left out (`StageOption.replaces`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from chainstay.profiles import ChainProfile, StageOption
from chainstay.profiles.stage import replacement
from chainstay.schedule import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of one stage or several, which ``Fa`` makes under one option.

    Attributes:
        stage: The first stage that it keeps.
        number: Its position among the records of that stage.
        option: Number of the option in the profile.
        costs: The option.
        first: Whether only first runs make it (True) or only repetitions (False); None if it
            does not matter.
    """

    stage: int
    number: int
    option: int
    costs: StageOption
    first: bool | None

    @property
    def key(self) -> tuple[int, int]:
        """First stage and number: what tells it from the others."""
        return self.stage, self.number

    @property
    def last(self) -> int:
        """The last stage that it keeps; its backward takes the gradient of that stage's output."""
        return self.stage + self.costs.stages - 1

    @property
    def backward_time(self) -> int:
        """Time of its backward, in ns."""
        return self.costs.run(first=self.first is not False).backward_time

    @property
    def consumed(self) -> frozenset[Item]:
        """Everything that its backward removes: itself, its input, and what is within."""
        inputs = (Item("a", i) for i in range(self.stage, self.last + 1))
        return frozenset({Item("b", self.stage), *inputs})

    def is_made(self, *, first: bool) -> bool:
        """Return whether a first run makes it, or a repetition."""
        return self.first is None or self.first is first


@dataclass(frozen=True)
class Records:
    """All records of a chain.

    Attributes:
        profile: The chain.
        is_whole: Whether the chain ends with the loss, which runs in the first phase only.
    """

    profile: ChainProfile
    is_whole: bool = True

    @cached_property
    def all(self) -> tuple[Record, ...]:
        """Every record, by its first stage."""
        return tuple(record for i in range(len(self.profile)) for record in self._of_stage(i))

    def starting(self, i: int) -> tuple[Record, ...]:
        """Return the records whose first stage is `i`."""
        return self._starting.get(i, ())

    def ending(self, i: int) -> tuple[Record, ...]:
        """Return the records whose last stage is `i`: those that contain ``a^{i+1}``."""
        return self._ending.get(i, ())

    def covering(self, i: int) -> tuple[Record, ...]:
        """Return the records that keep stage `i`, alone or with others."""
        return self._covering.get(i, ())

    def crossing(self, k: int) -> tuple[Record, ...]:
        """Return the records that keep stages `k` and ``k + 1``."""
        return tuple(record for record in self.covering(k) if record.last > k)

    @cached_property
    def least_backward_time(self) -> int:
        """The time of all backwards if every stage is kept alone, in the fastest way, in ns."""
        return sum(self._least_backward)

    def backward_excess(self, record: Record) -> int:
        """Return the ns that a record's backward takes beyond its part of the least time.

        Negative where several stages together take less.
        """
        return record.backward_time - sum(self._least_backward[record.stage : record.last + 1])

    @cached_property
    def time_unit(self) -> int:
        """Greatest common divisor of the times of forwards and of these differences, in ns."""
        excesses = (self.backward_excess(record) for record in self.all)
        kept = (run.time for record in self.all for run in record.costs.runs)
        dropped = (run.time for stage in self.profile.stages for run in stage.dropped_runs)
        return math.gcd(*excesses, *kept, *dropped) or 1

    @cached_property
    def _least_backward(self) -> list[int]:
        singles = (
            [record for record in self.starting(i) if record.stage == record.last]
            for i in range(len(self.profile))
        )
        return [min(record.backward_time for record in records) for records in singles]

    def named(self, stage: int, option: int, *, first: bool) -> Record | None:
        """Return the record of an option, or the one that replaces it; None if there is neither."""
        if stage >= len(self.profile) or option >= len(self.profile.stages[stage].all_options):
            return None
        kept = self._replacements[stage][option]
        matches = (record for record in self.starting(stage) if record.option == kept)
        return next((record for record in matches if record.is_made(first=first)), None)

    @cached_property
    def _starting(self) -> dict[int, tuple[Record, ...]]:
        return self._grouped(lambda record: range(record.stage, record.stage + 1))

    @cached_property
    def _ending(self) -> dict[int, tuple[Record, ...]]:
        return self._grouped(lambda record: range(record.last, record.last + 1))

    @cached_property
    def _covering(self) -> dict[int, tuple[Record, ...]]:
        return self._grouped(lambda record: range(record.stage, record.last + 1))

    def _grouped(self, stages: Callable[[Record], range]) -> dict[int, tuple[Record, ...]]:
        return {
            i: tuple(record for record in self.all if i in stages(record))
            for i in range(len(self.profile))
        }

    @cached_property
    def _replacements(self) -> list[list[int]]:
        """The option that does for each option of each stage: itself, or a better one."""
        return [
            [replacement(stage.all_options, k) for k in range(len(stage.all_options))]
            for stage in self.profile.stages
        ]

    def _of_stage(self, i: int) -> Iterator[Record]:
        number = 0
        for k, option in enumerate(self.profile.stages[i].all_options):
            if self._replacements[i][k] != k:
                continue
            is_last = self.is_whole and i + option.stages == len(self.profile)
            first_run, later_run = option.runs
            is_one = is_last or first_run.backward_time == later_run.backward_time
            for first in (None,) if is_one else (True, False):
                yield Record(stage=i, number=number, option=k, costs=option, first=first)
                number += 1
