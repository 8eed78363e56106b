"""One stage's memory: run alone, forward and backward, as the executor would run it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from chainstay.runtime.boundary import seeded, swallow
from chainstay.runtime.layout import MemoryLayout
from chainstay.runtime.memory import MemoryTrace
from chainstay.runtime.preserve import zeroed_gradients
from chainstay.runtime.stages import ChainStage

__all__ = ["StageMemory", "StageProbe", "dropping", "leaves_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory levels of one stage run alone, in bytes above the level without its input.

    Attributes:
        kept_bytes: Held after a kept forward, besides the input: output and graph.
        dropped_bytes: Held after a dropping forward, besides the input.
        kept_peak: During a kept forward.
        dropped_peak: During a dropping forward.
        backward_peak: During the backward, which begins without the output unless the
            graph holds it.
        output_gradient_bytes: Of the gradient that enters the backward.
        input_gradient_bytes: Of the gradient that leaves it.
    """

    kept_bytes: int
    dropped_bytes: int
    kept_peak: int
    dropped_peak: int
    backward_peak: int
    output_gradient_bytes: int
    input_gradient_bytes: int


@dataclass(slots=True)
class StageProbe:
    """The phases of a stage's life, to be traced one by one.

    Attributes:
        stage: What to run.
        leaves: Everything outside that receives a gradient.
        output_gradient: Layout of the gradient that enters the backward.
        input_gradient: Layout of the gradient that leaves it; known after `phases`.
    """

    stage: ChainStage
    leaves: tuple[torch.Tensor, ...]
    output_gradient: MemoryLayout | None = None
    input_gradient: MemoryLayout | None = None
    _input: torch.Tensor | None = None
    _input_wants_gradient: bool = False
    _output: torch.Tensor | None = None
    _root: torch.Tensor | None = None

    def phases(self, source: torch.Tensor, device: torch.device) -> Generator[Callable[[], None]]:
        """What to trace, in this order; `memory` explains what comes out.

        Args:
            source: The stage's input. Copies of it are used, so that their memory is seen.
            device: Where the stage runs.
        """
        with zeroed_gradients(self.leaves):
            yield self._begin
            yield partial(self._make_input, source, device)
            yield self._forward
            yield self._release_output
            yield self._backward
            yield self._release_input
            yield partial(self._make_input, source, device)
            yield self._forward_dropping
        self._input = self._output = None

    def memory(self, traces: Iterator[MemoryTrace]) -> StageMemory:
        """Levels from the traces of `phases`, taken from the front of `traces`."""
        base = next(traces).end_bytes
        made, kept, _released, backward = (next(traces) for _ in range(4))
        after, remade, dropped = (next(traces) for _ in range(3))
        return StageMemory(
            kept_bytes=kept.end_bytes - made.end_bytes,
            dropped_bytes=dropped.end_bytes - remade.end_bytes,
            kept_peak=kept.peak_bytes - base,
            dropped_peak=dropped.peak_bytes - after.end_bytes,
            backward_peak=backward.peak_bytes - base,
            output_gradient_bytes=_size_of(self.output_gradient),
            input_gradient_bytes=_size_of(self.input_gradient),
        )

    def _begin(self) -> None:
        """Marks the level before the stage."""

    def _make_input(self, source: torch.Tensor, device: torch.device) -> None:
        self._input = source.detach().to(device, copy=True)
        self._input_wants_gradient = source.requires_grad

    def _forward(self) -> None:
        self._output = self.stage(self._incoming())

    def _release_output(self) -> None:
        assert self._output is not None
        if self._output.requires_grad:
            if self.output_gradient is None:
                self.output_gradient = MemoryLayout.usual(self._output)
            self._root = seeded(self._output, self.output_gradient)
        self._output = None

    def _release_input(self) -> None:
        self._input = None

    def _backward(self) -> None:
        if self._root is not None:
            torch.autograd.backward(self._root)
        self._root = None

    def _forward_dropping(self) -> None:
        with dropping():
            self._output = self.stage(self._incoming())

    def _incoming(self) -> torch.Tensor:
        assert self._input is not None
        if not self._input_wants_gradient:
            return self._input
        return swallow(self._input, self._note_gradient)

    def _note_gradient(self, gradient: torch.Tensor) -> None:
        self.input_gradient = MemoryLayout.of(gradient)


def _size_of(layout: MemoryLayout | None) -> int:
    return 0 if layout is None else layout.allocated_bytes


def dropping() -> torch.autograd.graph.saved_tensors_hooks:
    """A context in which a forward builds its graph but saves nothing except parameters."""
    return torch.autograd.graph.saved_tensors_hooks(_drop, _refuse)


def _drop(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor if isinstance(tensor, nn.Parameter) else None


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    assert packed is not None, "backward through a forward that saved nothing"
    return packed


def leaves_of(output: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Every leaf that `output`'s graph sends a gradient to, wherever the stage keeps it."""
    leaves: dict[int, torch.Tensor] = {}
    seen, pending = set(), [output.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
        pending += [below for below, _ in node.next_functions]
    return tuple(leaves.values())
