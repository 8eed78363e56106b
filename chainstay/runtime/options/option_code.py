"""The code of a stage with an option: its forward, and the replays of what it drops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import torch
from torch import nn

from chainstay.runtime.options.graph import StageGraph
from chainstay.runtime.stage.chain_stage import Effects
from chainstay.runtime.stage.states import MemoryLayout


class Origin(Enum):
    """The origin of an input of a replay.

    Attributes:
        STATE: The stage's incoming state.
        SHARED: The values that all stages may read.
        STASH: What the forward, or another replay, has set aside.
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


@dataclass(frozen=True, eq=False)
class ReplayCode:
    """A group of operators that are run again together.

    Attributes:
        function: Takes the modules that are called, what captures, and the inputs.
        inputs: Where its inputs come from.
        slots: What it makes.
        handed_on: The places of the last of its results among the stashes: other replays take them.
        draws_random: Whether it draws random numbers.
        needs_graph: Whether autograd records it: what operators save is wanted, or some give
            other bits without.
    """

    function: Callable[..., tuple[torch.Tensor, ...]]
    inputs: tuple[ReplayInput, ...]
    slots: tuple[SavedSlot, ...]
    handed_on: tuple[int, ...]
    draws_random: bool
    needs_graph: bool

    @cached_property
    def reads(self) -> Mapping[Origin, frozenset[int]]:
        """Positions of the inputs that nobody may change before, by origin."""
        inputs = [given for given in self.inputs if not given.is_scratch]
        return {
            origin: frozenset(given.index for given in inputs if given.origin is origin)
            for origin in Origin
        }


@dataclass(frozen=True, eq=False)
class OptionCode:
    """The code that runs a stage with an option.

    Attributes:
        graph: The stage.
        forward: Takes the modules that are called, the run, and the stage's inputs.
        stashes: How many values are set aside.
        packs: Per saved tensor, the replay that makes it and the slot there; ``None``: it stays.
        replays: All replays.
    """

    graph: StageGraph
    forward: Callable[..., tuple[torch.Tensor, ...]]
    stashes: int
    packs: tuple[tuple[int, int] | None, ...]
    replays: tuple[ReplayCode, ...]

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Per replay, those that hand results on to it."""
        return tuple(
            tuple(
                number
                for number, other in enumerate(self.replays)
                if not replay.reads[Origin.STASH].isdisjoint(other.handed_on)
            )
            for replay in self.replays
        )

    @property
    def root(self) -> nn.Module:
        """The modules that are called."""
        return self.graph.composition.root

    @cached_property
    def expected(self) -> tuple[tuple[torch.Size, torch.dtype], ...]:
        """Shape and type of every saved tensor."""
        layouts = (pack.layout for pack in self.graph.packs)
        return tuple((layout.size, layout.dtype) for layout in layouts)

    @cached_property
    def tied(self) -> tuple[int, ...]:
        """Positions of the shared values that stages before it read, too."""
        return self.graph.stage.effects.tied

    @cached_property
    def replay_effects(self) -> Effects:
        """The effects of all replays: which shared values they read, and nobody may change."""
        return Effects(reads=self._reads(Origin.SHARED))

    @cached_property
    def state_reads(self) -> tuple[int, ...]:
        """Positions in the incoming state of what replays read and nobody may change."""
        return self._reads(Origin.STATE)

    def _reads(self, origin: Origin) -> tuple[int, ...]:
        return tuple(sorted({index for replay in self.replays for index in replay.reads[origin]}))
