"""The size of a model of a hybrid problem, and a bound on the schedules that it leaves out.

A model has so many *sweeps* over the stages between two backwards, and so many prefetches of
each item. Some schedule among the fastest makes nothing in vain, so it runs the last stage's
forward once, and reads what it prefetches. If such a schedule is in no model of p sweeps, p
forwards in one phase come after one of the same or a later stage, and these are run again:
each takes the time of some stage but the last. If it prefetches an item r + 1 times, the link
is busy with that item r + 2 times, one after the other; and the item is read as often, which
only forwards that run again can do for ever.

So a bound on what is in the model, and the bound on what is not, bound every schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from chainstay.problems.hybrid import HybridProblem
from chainstay.schedule import Item
from chainstay.timetable import Time, exact

_NEVER: Final = Fraction(1 << 100)
_MOST_SWEEPS: Final = 4
_MOST_PREFETCHES: Final = 5


def items_of(problem: HybridProblem) -> list[Item]:
    """Return what can be stored and read: inputs of stages, and what stages save."""
    return [Item(kind, i) for kind in "ab" for i in range(len(problem.profile))]


def item_bytes(problem: HybridProblem, item: Item) -> int:
    """Return the bytes of an item."""
    kind, i = item
    profile = problem.profile
    return profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """The size of a model.

    Attributes:
        sweeps: Sweeps over the stages between two backwards.
        prefetches: The most prefetches of each item.
    """

    sweeps: int = 1
    prefetches: int = 1

    def useful_prefetches(self, problem: HybridProblem, item: Item, below: Time | None) -> int:
        """Return how many prefetches of `item` schedules faster than `below` can have a use for."""
        for count in range(self.prefetches):
            if below is not None and _least_with(problem, item, count + 1) >= below:
                return count
        return self.prefetches

    def bound_outside(self, problem: HybridProblem, within: ModelSize | None = None) -> Time:
        """Return a time that no schedule outside of the model, but in `within`, is below."""
        has_all_sweeps = within is not None and self.sweeps >= within.sweeps
        has_all_prefetches = within is not None and self.prefetches >= within.prefetches
        sweeps = _NEVER if has_all_sweeps else self._least_more_sweeps(problem)
        prefetches = _NEVER if has_all_prefetches else self._least_prefetches(problem)
        return exact(min(sweeps, prefetches))

    def enlarged(self, problem: HybridProblem, best: Time | None) -> ModelSize | None:
        """Return the next size, if schedules faster than `best` may be outside of this one.

        It has one more sweep, or one more prefetch of each item: of which there are fewer.
        """
        more_sweeps = replace(self, sweeps=self.sweeps + 1)
        more_prefetches = replace(self, prefetches=self.prefetches + 1)
        options = [
            (self.sweeps, more_sweeps, self._least_more_sweeps(problem), _MOST_SWEEPS),
            (self.prefetches, more_prefetches, self._least_prefetches(problem), _MOST_PREFETCHES),
        ]
        useful = [
            (stated, number, grown)
            for number, (stated, grown, least, most) in enumerate(options)
            if stated < most and least < (_NEVER if best is None else best)
        ]
        return min(useful, key=lambda option: option[:2])[2] if useful else None

    def _least_more_sweeps(self, problem: HybridProblem) -> Fraction:
        """Return a time that no schedule with more sweeps is below."""
        stages = problem.profile.stages
        if len(stages) == 1:
            return _NEVER
        shortest = min(stage.forward_time for stage in stages[:-1])
        return Fraction(problem.profile.least_time + self.sweeps * shortest)

    def _least_prefetches(self, problem: HybridProblem) -> Fraction:
        """Return a time that no schedule with more prefetches of an item is below."""
        bounds = (
            _least_with(problem, item, self.prefetches + 1)
            for item in items_of(problem)
            if item_bytes(problem, item)
        )
        return min(bounds, default=_NEVER)


def _least_with(problem: HybridProblem, item: Item, count: int) -> Fraction:
    """Return a time that schedules with `count` prefetches of an item, each read, are not below."""
    kind, i = item
    stages, link = problem.profile.stages, problem.link
    size = item_bytes(problem, item)
    moving = (count + 1) * link.transfer_time(size)
    reader = i if kind == "a" else i + 1
    # Besides the first run of the forward that reads it, backwards read it: of its reader, and
    # of the stage that saved it.
    again = count - 1 - (1 if kind == "a" else 2)
    if reader >= len(stages) - 1:  # the last forward runs once, and one beyond it does not exist
        is_possible = again <= 0 if reader == len(stages) - 1 else count <= 1
        return moving if is_possible else _NEVER
    rerun = max(0, again) * stages[reader].forward_time
    return max(moving, Fraction(problem.profile.least_time + rerun))
