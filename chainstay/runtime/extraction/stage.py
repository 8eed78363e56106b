"""One stage of an extracted chain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from chainstay.runtime.extraction.compiling import Program
from chainstay.runtime.extraction.sources import ModelTensor
from chainstay.runtime.stages import Place
from chainstay.runtime.states import State

__all__ = ["GraphStage"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStage:
    """Part of a model's forward, from one state to the next; a `stages.Part`.

    Attributes:
        name: For people: the modules that it runs.
        program: What it computes.
        runs: The modules whose forwards its operators are from.
        operators: How many it has.
        saved_bytes: What autograd saves in it, its incoming state left out.
        draws_random: Whether it may draw random numbers.
        changes: Tensors of the model that it changes in place.
    """

    name: str
    program: Program
    runs: tuple[nn.Module, ...]
    operators: int
    saved_bytes: int
    draws_random: bool
    changes: tuple[ModelTensor, ...]

    def __call__(self, state: State, shared: State) -> State:
        """The next state; it can be run any number of times, on detached copies as well."""
        return self.program(state, shared)

    def modules(self) -> Iterator[nn.Module]:
        """Modules whose training flags it obeys, in the order in which it runs them."""
        return iter(self.runs)

    def places(self) -> Iterator[Place]:
        """Where it reads the model's tensors, in order of first use."""
        for source in self.program.reads:
            if isinstance(source, ModelTensor):
                yield source.owner, source.name

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that it reads, as they are now."""
        for owner, name in self.places():
            tensor = getattr(owner, name)
            if isinstance(tensor, nn.Parameter):
                yield tensor
