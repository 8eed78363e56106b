"""Blocks of a model as stages, while the model's own forward goes on calling them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from torch import nn

from chainstay.runtime.extraction.driving import OnCall, drive
from chainstay.runtime.extraction.listing import StageRow, as_table, as_text
from chainstay.runtime.extraction.recording import SeenTensor, own_call
from chainstay.runtime.extraction.templates import Template
from chainstay.runtime.sharding import resharded_in_backward
from chainstay.runtime.stages import Place
from chainstay.runtime.states import State

__all__ = ["BlockStage", "InterceptedChain"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockStage:
    """A block, called as the model calls it, its hooks included; a `stages.Part`.

    Attributes:
        name: Path of the block in the model.
        block: The user's module.
        inputs: Its arguments and keyword arguments.
        output: What it returns.
        carried: Positions of tensors in its input that later blocks take.
        changes_input: The block changes its input in place.
        is_input_changed: Somebody does, the block or the model behind it.
        is_sharded: Its parameters come and go: nobody can tell whether they were replaced.
    """

    name: str
    block: nn.Module
    inputs: Template
    output: Template
    carried: tuple[int, ...]
    changes_input: bool
    is_input_changed: bool
    is_sharded: bool

    def __call__(self, state: State, shared: State) -> State:
        """The next state; what `state` has is not changed."""
        given = tuple(each.clone() for each in state) if self.changes_input else state
        args, kwargs = self.inputs.filled(given, shared)
        if not self.is_sharded:
            return self.next_state(own_call(self.block)(*args, **kwargs), state)
        with resharded_in_backward(self.block):
            return self.next_state(own_call(self.block)(*args, **kwargs), state)

    def next_state(self, result: object, state: State) -> State:
        """What the blocks behind this one may take, given what it returned.

        Raises:
            PlanMismatchError: It returned something else than it did on the sample.
        """
        made, _ = self.output.tensors_of(result, self.name)
        return (*made.values(), *(state[position] for position in self.carried))

    def modules(self) -> Iterator[nn.Module]:
        """Modules whose training flags it obeys."""
        return self.block.modules()

    def places(self) -> Iterator[Place]:
        """Where it reads parameters and buffers; sharded parameters are left out."""
        for module in self.modules():
            if not self.is_sharded:
                for name, _ in module.named_parameters(recurse=False, remove_duplicate=False):
                    yield module, name
            for name, _ in module.named_buffers(recurse=False, remove_duplicate=False):
                yield module, name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterceptedChain:
    """The repeated blocks of a model as stages; what is around them runs as ever.

    Blocks that follow each other directly form a segment. Between segments the model does
    something of its own, which cannot be run again: the input of each stays.

    Attributes:
        model: The user's.
        stages: Its blocks, in the order of their calls.
        starts: The first stage of every segment, ascending from 0.
        boundaries: The tensors of each state; the last one has what the last block returns.
    """

    model: nn.Module
    stages: tuple[BlockStage, ...]
    starts: tuple[int, ...]
    boundaries: tuple[tuple[SeenTensor, ...], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """The model's forward, its blocks run as stages.

        Raises:
            PlanMismatchError: The blocks no longer form the chain they did.
        """

        def run(index: int, call: OnCall, state: State, _shared: State) -> tuple[object, State]:
            result = call()
            return result, self.stages[index].next_state(result, state)

        with drive(self.stages, self.starts, run):
            return self.model(*args, **kwargs)

    def segments(self) -> Iterator[range]:
        """The stages of each segment."""
        for index, start in enumerate(self.starts):
            behind = self.starts[index + 1 :] or (len(self.stages),)
            yield range(start, behind[0])

    def segment_of(self, stage: int) -> int:
        """The first stage of the segment that has `stage`."""
        return max(start for start in self.starts if start <= stage)

    def boundary_bytes(self, cut: int) -> int:
        """What keeping state `cut` alone takes."""
        return sum({each.number: each.storage_bytes for each in self.boundaries[cut]}.values())

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        rows = [
            StageRow(
                name=stage.name,
                operators=None,
                parameters=sum(parameter.numel() for parameter in stage.block.parameters()),
                tensors=len(self.boundaries[index + 1]),
                boundary_bytes=self.boundary_bytes(index + 1),
                saved_bytes=None,
            )
            for index, stage in enumerate(self.stages)
        ]
        return as_table(type(self.model).__name__, rows)

    def __str__(self) -> str:
        return as_text(self.table())
