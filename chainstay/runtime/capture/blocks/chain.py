"""A model's blocks as stages, while the model's own forward goes on calling them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, starmap
from typing import Any

from torch import nn

from chainstay.runtime.capture.blocks.calls import SeenTensor
from chainstay.runtime.capture.blocks.graphs import BlockGraph
from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.devices.sharding import unsharded_again, whole_in_backward
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.states import State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockStage:
    """A call of a block; a `chain_stage.Part`.

    A state is what one block hands to the next, and what later ones take from further back.

    Attributes:
        name: Path of the block in the model.
        block: The module, where its parameters come and go with its forward (FSDP2).
        graph: The graph of its forward.
        first_shared: Position of its first shared value among those of all blocks.
        taken: Positions in the state of the tensors that it takes.
        carried: Positions in the state of tensors that later blocks take.
        is_input_changed: Whether somebody changes its input in place, the block or the model
            behind it.
    """

    name: str
    block: nn.Module | None
    graph: BlockGraph
    first_shared: int
    taken: tuple[int, ...]
    carried: tuple[int, ...]
    is_input_changed: bool

    def __call__(self, state: State, shared: Sequence[Any]) -> State:
        """Return the next state."""
        own = tuple([state[position] for position in self.taken])
        shared = shared[self.first_shared :]
        if self.block is None:
            made = self.program(own, shared)
        else:
            with unsharded_again(self.block):
                made = self.program(own, shared)
            whole_in_backward(self.block, made)
        return (*made, *[state[position] for position in self.carried])

    @property
    def program(self) -> GraphStage:
        """The block's operators."""
        (stage,) = self.graph.chain.stages
        return stage

    @property
    def effects(self) -> Effects:
        """See `Part`; parameters that are gathered come and go, so they are not read."""
        own, first = self.program.effects, self.first_shared
        return replace(
            own,
            reads=() if self.is_sharded else tuple(position + first for position in own.reads),
            written=tuple(position + first for position in own.written),
            changes_input=self.is_input_changed,
        )

    @property
    def text(self) -> str:
        """A text of the block's computation; see `Part`."""
        compiled = " compiled" if self.graph.is_compiled else ""
        places = f"{self.taken} {self.carried} {self.is_input_changed}"
        return f"{self.program.text}\n{places}{compiled}"

    def by(self, graph: BlockGraph, first_shared: int) -> BlockStage:
        """Return the same stage by a graph that differs in numbers only."""
        if graph is self.graph and first_shared == self.first_shared:
            return self
        return replace(self, graph=graph, first_shared=first_shared)

    @property
    def shared_names(self) -> Iterator[str]:
        """The names of the block's shared values in messages."""
        chain = self.graph.chain
        yield from (f"{self.name}.{given.name}" for given in chain.inputs)
        yield from chain.made

    @property
    def is_sharded(self) -> bool:
        """Whether its parameters are spread over several processes."""
        return self.block is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockChain:
    """The calls of a model's blocks as stages; what is around them runs as ever.

    Blocks that follow each other directly form a segment. Between segments the model does
    something of its own, which cannot be run again: the input of each stays.

    Attributes:
        name: The model's name, for messages.
        stages: Its blocks, in the order of their calls.
        starts: The first stage of every segment, ascending from 0.
        boundaries: The tensors of each state; the last one has what the last block returns.
        uncalled: Paths of modules that the model left out; another call may run them.
        expanded: Blocks in whose place the modules inside are stages, and why, for people.
    """

    name: str
    stages: tuple[BlockStage, ...]
    starts: tuple[int, ...]
    boundaries: tuple[tuple[SeenTensor, ...], ...]
    uncalled: tuple[str, ...] = ()
    expanded: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Hashable:
        """Return a key, equal for blocks that go by one plan: they differ in numbers only."""
        stages = [
            (stage.graph.key, stage.taken, stage.carried, stage.is_input_changed)
            for stage in self.stages
        ]
        return (tuple(stages), self.starts)

    @property
    def graph_keys(self) -> tuple[Hashable, ...]:
        """The keys of the blocks' graphs, in the order of their calls."""
        return tuple(stage.graph.key for stage in self.stages)

    def includes(self, keys: Sequence[Hashable]) -> bool:
        """Whether blocks whose graphs have these keys are some of its own, in this order."""
        own = iter(self.graph_keys)
        return all(key in own for key in keys)

    @property
    def chain_stages(self) -> tuple[ChainStage, ...]:
        """The blocks as stages of a chain."""
        return tuple(ChainStage(stage.name, (stage,)) for stage in self.stages)

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The names of all blocks' shared values in messages."""
        return tuple(name for stage in self.stages for name in stage.shared_names)

    def segments(self) -> Iterator[range]:
        """Return the stages of each segment."""
        return starmap(range, pairwise((*self.starts, len(self.stages))))

    def segment_of(self, stage: int) -> int:
        """Return the first stage of the segment that has `stage`."""
        return max(start for start in self.starts if start <= stage)
