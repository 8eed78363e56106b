"""One stage of an extracted chain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.runtime.extraction.compiling import Program, State
from chainstay.runtime.extraction.sources import ModelTensor

__all__ = ["GraphStage"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStage:
    """Part of a model's forward, from one state to the next.

    Attributes:
        name: For people: the modules that it runs.
        program: What it computes.
        operators: How many it has.
        saved_bytes: What autograd saves in it, its incoming state left out.
        draws_random: Whether it may draw random numbers.
        changes: Buffers that it changes in place.
    """

    name: str
    program: Program
    operators: int
    saved_bytes: int
    draws_random: bool
    changes: tuple[ModelTensor, ...]

    def __call__(self, state: State, shared: State) -> State:
        """The next state; it can be run any number of times, on detached copies as well."""
        return self.program(state, shared)

    def tensors(self) -> Iterator[ModelTensor]:
        """The model's tensors that it reads, in order of first use."""
        return (source for source in self.program.reads if isinstance(source, ModelTensor))

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Path in the model and present value of every parameter it reads."""
        for source in self.tensors():
            tensor = source.read()
            if isinstance(tensor, nn.Parameter):
                yield source.path, tensor

    def buffers(self) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
        """Owner, name and present value of every other tensor of the model that it reads."""
        for source in self.tensors():
            tensor = source.read()
            if not isinstance(tensor, nn.Parameter):
                yield source.owner, source.name, tensor
