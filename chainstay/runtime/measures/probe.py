"""One stage's memory: run alone, forward and backward, as the executor would run it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.graph import Node, get_gradient_edge

from chainstay.runtime.capture.trials.isolation import zeroed_gradients
from chainstay.runtime.devices.autocast import Autocast, CopiesOfWeights
from chainstay.runtime.devices.memory import MemoryTrace, allocated_bytes
from chainstay.runtime.execute.handles import dropping
from chainstay.runtime.measures.boundary import Gradients, seeded, swallow, waiting_for
from chainstay.runtime.measures.shared_bytes import LeafGradient, LeafUses
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State, address_of, copied, is_among, variables_below

_WHOLE: Final = (torch.Tensor, FakeTensor)
"""Kinds of gradients that are no part of one on several devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory levels of one stage run alone, in bytes above the level without its input.

    Attributes:
        kept_bytes: Held after a kept forward, besides the input: output and graph.
        graph_bytes: Held by the graph of a kept forward once the output is let go, besides the
            input; and a scalar.
        dropped_bytes: Held after a dropping forward, besides the input.
        kept_peak: During a kept forward.
        dropped_peak: During a dropping forward.
        backward_peak: During the backward, which begins without the output unless the
            graph holds it.
        left_bytes: Held after the backward, by parts of the graph that got no gradient.
        copied_bytes: Of autocast's copies of the stage's weights, which no level above includes.
        output_gradients: How those that enter the backward lie.
        input_gradients: How those that leave it lie.
        leaf_gradients: What holds the gradients of its leaves, by leaf.
        summed_bytes: Bytes of leaves that other stages use; gradients of theirs waited beside the
            backward. ``None`` if gradients were not summed as in a whole step.
        forward_operator: The operator at the peak of a kept forward.
        backward_operator: The operator at the peak of the backward.
    """

    kept_bytes: int
    graph_bytes: int
    dropped_bytes: int
    kept_peak: int
    dropped_peak: int
    backward_peak: int
    left_bytes: int
    copied_bytes: int
    output_gradients: Gradients
    input_gradients: Gradients
    leaf_gradients: tuple[LeafGradient, ...]
    summed_bytes: int | None
    forward_operator: str
    backward_operator: str


@dataclass(slots=True)
class StageProbe:
    """The phases of a stage's life, to be traced one by one.

    Attributes:
        stage: What to run.
        shared: What it shares with others.
        leaves: Everything outside that receives a gradient.
        output_gradients: How those that enter the backward lie; by default as usual.
        input_gradients: How those that leave it lie; known after `phases`.
        drops: Whether a forward is traced that drops what it saves.
        uses: Leaves that other stages use, if gradients are to be summed as in a whole step.
    """

    stage: ChainStage
    shared: Sequence[Any]
    leaves: tuple[torch.Tensor, ...]
    output_gradients: Gradients | None = None
    input_gradients: Gradients | None = None
    drops: bool = True
    uses: LeafUses | None = None
    _copies: CopiesOfWeights | None = None
    _copied_bytes: int = 0
    _input: State = ()
    _output: State = ()
    _root: torch.Tensor | None = None
    _behind: torch.Tensor | None = None
    _left: Sequence[Node | None] = ()
    _addresses: list[int] = field(default_factory=list)
    _leaf_gradients: dict[int, LeafGradient] = field(default_factory=dict)

    def phases(
        self, source: State, device: torch.device, devices: Sequence[torch.device] | None = None
    ) -> Generator[Callable[[], None]]:
        """Yield the functions to trace, in this order; `memory` explains what comes out.

        Copies of its input are used, so that their memory is seen, on `devices` or where it is now.
        """
        self.input_gradients = Gradients((None,) * len(source), tuple(range(len(source))))
        with zeroed_gradients(self.leaves):
            yield partial(self._begin, source, device, devices)
            yield partial(self._make_input, source, devices)
            yield self._forward
            yield self._release_output
            yield self._backward
            yield self._release_input
            yield self._release_left
            if self.drops:
                yield partial(self._make_input, source, devices)
                yield self._forward_dropping
        if self._copies is not None:
            self._copied_bytes = self._copies.bytes
        self._input = self._output = ()
        self._copies = None

    def memory(self, traces: Iterator[MemoryTrace]) -> StageMemory:
        """Levels from the traces of `phases`, taken from the front of `traces`."""
        base = next(traces).end_bytes
        made, kept, released, backward = (next(traces) for _ in range(4))
        left, after = (next(traces) for _ in range(2))
        remade, dropped = (next(traces) for _ in range(2)) if self.drops else (after, after)
        assert self.output_gradients is not None, "the phases have run"
        assert self.input_gradients is not None, "the phases have run"
        return StageMemory(
            kept_bytes=kept.end_bytes - made.end_bytes,
            graph_bytes=released.end_bytes - made.end_bytes,
            dropped_bytes=dropped.end_bytes - remade.end_bytes,
            kept_peak=kept.peak_bytes - base,
            dropped_peak=dropped.peak_bytes - after.end_bytes,
            backward_peak=backward.peak_bytes - base,
            left_bytes=left.end_bytes - after.end_bytes,
            copied_bytes=self._copied_bytes,
            output_gradients=self.output_gradients,
            input_gradients=self.input_gradients,
            leaf_gradients=self.leaf_gradients,
            summed_bytes=None
            if self.uses is None
            else self.uses.bytes * any(self.output_gradients.layouts),
            forward_operator=kept.operator,
            backward_operator=backward.operator,
        )

    @property
    def leaf_gradients(self) -> tuple[LeafGradient, ...]:
        """The storages of the gradients of its leaves, by leaf; known after `phases`."""
        indices = range(len(self.leaves))
        return tuple(self._leaf_gradients.get(index, LeafGradient()) for index in indices)

    def _begin(
        self, source: State, device: torch.device, devices: Sequence[torch.device] | None
    ) -> None:
        """Marks the level before the stage, with autocast's copies of its weights."""
        autocast = Autocast.now(device)
        if autocast is not None and autocast.has_cache:
            if device.type != "cpu":
                # An accelerator runs backwards in a thread of its own. Where a replay leaves
                # autocast there, torch empties the cache of all threads: copies that were counted
                # in the base would be missing in later levels.
                torch.clear_autocast_cache()
            self._copies = CopiesOfWeights(autocast.dtype)
            self._make_input(source, devices)
            self._forward()
            self._input = self._output = ()
        if self.uses and self.uses.before:
            self._behind = waiting_for(self.uses.before, device)

    def _make_input(self, source: State, devices: Sequence[torch.device] | None) -> None:
        self._input = copied(source, devices)

    def _forward(self) -> None:
        with self._copies or nullcontext():
            self._output = self.stage(self._incoming(), self.shared)

    def _release_output(self) -> None:
        if self.output_gradients is None:
            self.output_gradients = Gradients.usual(self._output)
        if any(self.output_gradients.layouts):
            self._root = seeded(self._output, self.output_gradients, self.uses, self._behind)
        self._left = [
            self._output[index].grad_fn
            for index in self.output_gradients.held
            if self.output_gradients.layouts[index] is None
        ]
        self._output, self._behind = (), None

    def _release_input(self) -> None:
        self._input = ()

    def _release_left(self) -> None:
        self._left = ()

    def _backward(self) -> None:
        if self._root is not None:
            with self._seeing_leaf_gradients():
                torch.autograd.backward(self._root)
        self._root = None

    @contextmanager
    def _seeing_leaf_gradients(self) -> Iterator[None]:
        """Note what holds the gradients of leaves: one that is a slice holds all of it."""
        nodes = [get_gradient_edge(leaf).node for leaf in self.leaves]
        hooks = [
            node.register_prehook(partial(self._note_leaf, index))
            for index, node in enumerate(nodes)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _note_leaf(self, index: int, gradients: tuple[torch.Tensor | None, ...]) -> None:
        before = () if self.uses is None else self.uses.before
        is_held = is_among(self.leaves[index], before)  # until all are noted
        for gradient in gradients:
            if gradient is None or type(gradient) not in _WHOLE:
                continue
            if gradient.layout == torch.strided:
                size, address = allocated_bytes(gradient), address_of(gradient)
                is_apart = size == gradient.nbytes and not gradient._is_view()  # noqa: SLF001  # there is no public way to tell
                is_apart = is_apart and is_held and address not in self._addresses
                self._leaf_gradients[index] = LeafGradient(size, is_apart)
                self._addresses += [address] * is_held

    def _forward_dropping(self) -> None:
        with dropping(), self._copies or nullcontext():
            self._output = self.stage(self._incoming(), self.shared)

    def _incoming(self) -> State:
        return swallow(self._input, self._note_gradients)

    def _note_gradients(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        self.input_gradients = Gradients.of(gradients)
        self._addresses += [address_of(gradient) for gradient in gradients if gradient is not None]


def leaves_of(outputs: State) -> tuple[torch.Tensor, ...]:
    """Every leaf that the graph of `outputs` sends a gradient to, wherever the stage keeps it."""
    handed_out = (tensor for tensor in outputs if tensor.is_leaf and tensor.requires_grad)
    leaves = {id(tensor): tensor for tensor in handed_out} | variables_below(outputs)
    return tuple(leaves.values())
