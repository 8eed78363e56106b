"""Stages of a chain: each takes a state and gives the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from chainstay.runtime.stage.states import State


class Part(Protocol):
    """The computation of a stage: a pure function but for what it says it writes and draws."""

    @property
    def text(self) -> str:
        """A text of the computation, for a digest."""
        ...

    @property
    def reads(self) -> tuple[int, ...]:
        """Positions of the shared values that it reads."""
        ...

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the shared values that it changes in place."""
        ...

    @property
    def draws_random(self) -> bool:
        """Whether it may draw random numbers from torch's generators."""
        ...

    @property
    def changes_input(self) -> bool:
        """Whether it changes its incoming state in place."""
        ...

    @property
    def fills_what_it_saved(self) -> bool:
        """Whether an operator of its saves a tensor and then writes it."""
        ...

    def __call__(self, state: State, shared: Sequence[Any]) -> State:
        """The next state.

        Args:
            state: The output of the part before.
            shared: The values that all stages may read: tensors, and numbers.
        """
        ...


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage: parts that run one after another.

    Attributes:
        name: The stage's name, for people; the names of fused parts are joined by ``+``.
        parts: One, or several that must not be cut apart.
        is_loss: Whether it is the loss behind the model's last stage.
    """

    name: str
    parts: tuple[Part, ...]
    is_loss: bool = False

    def __call__(self, state: State, shared: Sequence[Any] = ()) -> State:
        """The next state; what passes through is the same object."""
        for part in self.parts:
            state = part(state, shared)
        return state

    @property
    def reads(self) -> tuple[int, ...]:
        """Positions of the shared values that it reads, each once."""
        return tuple(dict.fromkeys(position for part in self.parts for position in part.reads))

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the shared values that it changes in place, each once."""
        return tuple(dict.fromkeys(position for part in self.parts for position in part.written))

    @property
    def tied(self) -> tuple[int, ...]:
        """Positions of the shared values that its parts share with parts before them."""
        found = (position for part in self.parts for position in getattr(part, "tied", ()))
        return tuple(dict.fromkeys(found))

    @property
    def may_draw_random(self) -> bool:
        """Whether it may draw random numbers from torch's generators."""
        return any(part.draws_random for part in self.parts)

    @property
    def changes_input(self) -> bool:
        """Whether it changes its incoming state in place."""
        return self.parts[0].changes_input

    @property
    def fills_what_it_saved(self) -> bool:
        """Whether an operator of its saves a tensor and then writes it."""
        return any(part.fills_what_it_saved for part in self.parts)

    @property
    def is_sharded(self) -> bool:
        """Whether its parameters are spread over several processes."""
        return any(getattr(part, "is_sharded", False) for part in self.parts)

    def title(self, index: int) -> str:
        """Return the title in messages of this stage, stage `index` of its chain."""
        return "the loss" if self.is_loss else f"stage {index} ({self.name})"

    def fused_with(self, successor: ChainStage) -> ChainStage:
        """This stage and the next as one."""
        return ChainStage(f"{self.name}+{successor.name}", self.parts + successor.parts)
