"""Stages of a chain: each takes a state and gives the next."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from chainstay.runtime.stage.states import State, layouts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of a computation: what it reads and changes besides its result.

    Attributes:
        reads: Positions of the shared values that it reads, each once.
        written: Positions of the shared values that it changes in place, each once.
        draws_random: Whether it may draw random numbers from torch's generators.
        changes_input: Whether it changes its incoming state in place.
        fills_what_it_saved: Whether an operator of its saves a tensor and then writes it.
        tied: Positions of what it reads that a stage before it reads, too.
        draws_on_host: If it draws random numbers, whether some are of the CPU's generator.
    """

    reads: tuple[int, ...] = ()
    written: tuple[int, ...] = ()
    draws_random: bool = False
    changes_input: bool = False
    fills_what_it_saved: bool = False
    tied: tuple[int, ...] = ()
    draws_on_host: bool = True

    @classmethod
    def together(cls, several: Sequence[Effects]) -> Effects:
        """Return the effects of several computations that run one behind another.

        Of their incoming states, only the first is that of all.
        """
        if len(several) == 1:
            return several[0]
        return cls(
            reads=tuple(dict.fromkeys(position for own in several for position in own.reads)),
            written=tuple(dict.fromkeys(position for own in several for position in own.written)),
            draws_random=any(own.draws_random for own in several),
            changes_input=bool(several) and several[0].changes_input,
            fills_what_it_saved=any(own.fills_what_it_saved for own in several),
            tied=tuple(dict.fromkeys(position for own in several for position in own.tied)),
            draws_on_host=any(own.draws_random and own.draws_on_host for own in several),
        )

    @property
    def only_read(self) -> tuple[int, ...]:
        """Positions of the shared values that it reads and does not change."""
        return tuple([position for position in self.reads if position not in self.written])

    @property
    def are_noticed(self) -> bool:
        """Whether other threads may notice them."""
        return self.draws_random or bool(self.written)


NO_EFFECTS: Final = Effects()


class Part(Protocol):
    """The computation of a stage: a pure function but for its effects."""

    @property
    def text(self) -> str:
        """A text of the computation, for a digest."""
        ...

    @property
    def effects(self) -> Effects:
        """Return the effects of the computation."""
        ...

    def __call__(self, state: State, shared: Sequence[Any]) -> State:
        """The next state; `shared` are tensors and numbers that all stages may read."""
        ...


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage: parts that run one after another.

    Attributes:
        name: The stage's name, for people; the names of fused parts are joined by ``+``.
        parts: One, or several that must not be cut apart; none where it passes its input on.
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
    def effects(self) -> Effects:
        """The effects of all parts."""
        return Effects.together([part.effects for part in self.parts])

    @property
    def is_sharded(self) -> bool:
        """Whether its parameters are spread over several processes."""
        return any(getattr(part, "is_sharded", False) for part in self.parts)

    def title(self, index: int) -> str:
        """Return the title in messages of this stage, stage `index` of its chain."""
        return "the loss" if self.is_loss else f"stage {index} ({self.name})"


def fused(stages: Sequence[ChainStage]) -> ChainStage:
    """Return several stages as one."""
    if len(stages) == 1:
        return stages[0]
    parts = tuple(part for stage in stages for part in stage.parts)
    return ChainStage("+".join(stage.name for stage in stages), parts)


def likeness_of(parts: Sequence[Part], state: State, shared: Sequence[Any]) -> Hashable:
    """Return a key, equal for parts that do the same on tensors that lie alike in memory."""
    texts = tuple([(part.text, len(part.effects.written)) for part in parts])
    return texts, layouts_of([*state, *(shared[p] for part in parts for p in part.effects.reads)])
