"""How much of a hybrid problem a model states, and what everything else takes at least.

A model has so many *passes* over the stages between two backwards, and so many prefetches of
each item. Some schedule among the fastest makes nothing in vain, so it runs the last stage's
forward once, and reads what it prefetches. If such a schedule is in no model of p passes, p
forwards in one phase come after one of the same or a later stage, and these are run again:
each takes the time of some stage but the last. If it prefetches an item r + 1 times, the link
is busy with that item r + 2 times, one after the other; and the item is read as often, which
only forwards that run again can do for ever.

So a bound on what is in the model, and the bound on what is not, bound every schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final, TypeAlias

from chainstay.hybrid import HybridProblem
from chainstay.timetable import Time, exact

__all__ = ["Extent", "Item", "items_of", "size_of"]

Item: TypeAlias = tuple[str, int]
"""``("a", i)``: activation ``a^i``; ``("b", i)``: what ``Fa`` of stage i saved."""

_NEVER: Final = Fraction(1 << 100)
_MOST_PASSES: Final = 4
_MOST_PREFETCHES: Final = 5


def items_of(problem: HybridProblem) -> list[Item]:
    """What can be stored and read: inputs of stages, and what stages save."""
    stages = range(len(problem.profile))
    return [("a", i) for i in stages] + [("b", i) for i in stages]


def size_of(problem: HybridProblem, item: Item) -> int:
    """Bytes of an item."""
    kind, i = item
    profile = problem.profile
    return profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What a model states.

    Attributes:
        passes: Over the stages between two backwards.
        prefetches: Of each item, at most.
    """

    passes: int = 1
    prefetches: int = 1

    def prefetches_of(self, problem: HybridProblem, item: Item, below: Time | None) -> int:
        """Prefetches of `item` that schedules faster than `below` can have a use for."""
        for count in range(self.prefetches):
            if below is not None and _least_with(problem, item, count + 1) >= below:
                return count
        return self.prefetches

    def outside(self, problem: HybridProblem, within: Extent | None = None) -> Time:
        """No schedule that is not in the model, but in `within`, is faster."""
        has_passes = within is not None and self.passes >= within.passes
        has_prefetches = within is not None and self.prefetches >= within.prefetches
        passes = _NEVER if has_passes else self._least_passes(problem)
        prefetches = _NEVER if has_prefetches else self._least_prefetches(problem)
        return exact(min(passes, prefetches))

    def grown(self, problem: HybridProblem, best: Time | None) -> Extent | None:
        """The next extent, if schedules faster than `best` may be outside of this one.

        One more pass, or one more prefetch of each item: what the fewer of are stated.
        """
        more_passes = replace(self, passes=self.passes + 1)
        more_prefetches = replace(self, prefetches=self.prefetches + 1)
        ways = [
            (self.passes, more_passes, self._least_passes(problem), _MOST_PASSES),
            (self.prefetches, more_prefetches, self._least_prefetches(problem), _MOST_PREFETCHES),
        ]
        useful = [
            (stated, number, grown)
            for number, (stated, grown, least, most) in enumerate(ways)
            if stated < most and least < (_NEVER if best is None else best)
        ]
        return min(useful, key=lambda way: way[:2])[2] if useful else None

    def _least_passes(self, problem: HybridProblem) -> Fraction:
        stages = problem.profile.stages
        if len(stages) == 1:
            return _NEVER
        shortest = min(stage.forward_time for stage in stages[:-1])
        return Fraction(problem.profile.least_time + self.passes * shortest)

    def _least_prefetches(self, problem: HybridProblem) -> Fraction:
        bounds = (
            _least_with(problem, item, self.prefetches + 1)
            for item in items_of(problem)
            if size_of(problem, item)
        )
        return min(bounds, default=_NEVER)


def _least_with(problem: HybridProblem, item: Item, count: int) -> Fraction:
    """What schedules with `count` prefetches of an item, each of them read, take at least."""
    kind, i = item
    stages, link = problem.profile.stages, problem.link
    size = size_of(problem, item)
    moving = (count + 1) * min(level.transfer_time(size) for level in link.levels)
    reader = i if kind == "a" else i + 1
    # Besides the first run of the forward that reads it, backwards read it: of its reader, and
    # of the stage that saved it.
    again = count - 1 - (1 if kind == "a" else 2)
    if reader >= len(stages) - 1:  # the last forward runs once, and one beyond it does not exist
        is_possible = again <= 0 if reader == len(stages) - 1 else count <= 1
        return moving if is_possible else _NEVER
    rerun = max(0, again) * stages[reader].forward_time
    return max(moving, Fraction(problem.profile.least_time + rerun))
