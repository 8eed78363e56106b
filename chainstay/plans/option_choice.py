"""Options of a plan's schedule: what each runs again, so that it can be made for that model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from chainstay.documents import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionChoice:
    """An option of a stage, by the operators that its backward runs again.

    Attributes:
        stage: The stage, or the first of those that it keeps together. Stages of a join count
            branch by branch, and then the tail.
        option: Its number in the profile, from 1.
        replayed: Positions among the stage's operators of those that are run again.
        redrawn: Positions of those of which only the noise is made again.
    """

    stage: int
    option: int
    replayed: tuple[int, ...]
    redrawn: tuple[int, ...]

    @classmethod
    def from_fields(cls, document: Fields) -> Self:
        """Read the JSON object of a choice."""
        return cls(
            stage=document.integer("stage"),
            option=document.integer("option"),
            replayed=document.integers("replayed"),
            redrawn=document.integers("redrawn"),
        )
