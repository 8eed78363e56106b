"""One choice of what a stage keeps for its backward, and of what it makes again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chainstay.profiles.operators import Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The operators of a stage that are kept, and those that are made again.

    Attributes:
        kept_bytes: The bytes of what is kept, the stage's own output left out.
        replay_time: What making the rest again takes, in ns.
        replayed: Positions of the operators that are run again.
        redrawn: Positions of those of which only the noise is made again.
    """

    kept_bytes: int
    replay_time: int
    replayed: frozenset[int] = frozenset()
    redrawn: frozenset[int] = frozenset()

    @property
    def drops(self) -> bool:
        """Whether anything is made again, so that something may be dropped."""
        return bool(self.replayed or self.redrawn)

    def is_of(self, operators: Sequence[Operator]) -> bool:
        """Whether it is about these operators, and they can be run again as it says."""
        replayable = {n for n, operator in enumerate(operators) if operator.is_replayable}
        redrawable = {n for n, operator in enumerate(operators) if operator.is_redrawable}
        return self.replayed <= replayable and self.redrawn <= redrawable
