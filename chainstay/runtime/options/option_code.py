"""The code of a stage with an option: its forward, and the replays of what it drops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import torch
from torch import nn

from chainstay.runtime.options.graph import StageGraph
from chainstay.runtime.stage.states import MemoryLayout


class Origin(Enum):
    """The origin of an input of a replay.

    Attributes:
        STATE: The stage's incoming state.
        SHARED: The values that all stages may read.
        STASH: What the forward has set aside.
    """

    STATE = auto()
    SHARED = auto()
    STASH = auto()


@dataclass(frozen=True, slots=True)
class ReplayInput:
    """One input of a replay.

    Attributes:
        origin: Where it comes from.
        index: Its position there.
        requires_grad: Whether it does.
        is_scratch: Whether it is only updated, so that its present values do.
    """

    origin: Origin
    index: int
    requires_grad: bool = False
    is_scratch: bool = False


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """A saved tensor that a replay makes.

    Attributes:
        layout: How it lies in memory.
        source: The position of the result in which it lies, or the mark of its operator.
        extra: Its number among what the operator of that mark saves; ``None`` for a result.
    """

    layout: MemoryLayout
    source: int
    extra: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ReplayCode:
    """A group of operators that are run again together.

    Attributes:
        function: Takes the modules that are called, what captures, and the inputs.
        inputs: Where its inputs come from.
        slots: What it makes.
        draws_random: Whether it draws random numbers.
    """

    function: Callable[..., tuple[torch.Tensor, ...]]
    inputs: tuple[ReplayInput, ...]
    slots: tuple[SavedSlot, ...]
    draws_random: bool

    @property
    def reads(self) -> set[int]:
        """Positions of the shared values that nobody may change before."""
        return {
            each.index
            for each in self.inputs
            if each.origin is Origin.SHARED and not each.is_scratch
        }


@dataclass(frozen=True, slots=True, eq=False)
class OptionCode:
    """The code that runs a stage with an option.

    Attributes:
        graph: The stage.
        forward: Takes the modules that are called, a list for stashes, and the stage's inputs.
        stashes: How long that list is.
        packs: Per saved tensor, the replay that makes it and the slot there; ``None``: it stays.
        replays: All replays.
    """

    graph: StageGraph
    forward: Callable[..., tuple[torch.Tensor, ...]]
    stashes: int
    packs: tuple[tuple[int, int] | None, ...]
    replays: tuple[ReplayCode, ...]

    @property
    def root(self) -> nn.Module:
        """The modules that are called."""
        return self.graph.composition.root

    def read(self, origin: Origin) -> list[int]:
        """Return the positions of what replays read of an origin and nobody may change."""
        inputs = [each for replay in self.replays for each in replay.inputs]
        return sorted(
            {each.index for each in inputs if each.origin is origin and not each.is_scratch}
        )
