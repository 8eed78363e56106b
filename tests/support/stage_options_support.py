"""Models whose stages all run with options, and training steps to compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from captured_graphs import chain_of
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.options.front import thinned
from chainstay.runtime.options.graph import StageGraph, trace_stage
from chainstay.runtime.options.option import Option, OptionPart, admitted, option_of, selections_of
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.staged_graph import subject_of
from chainstay.runtime.stage.states import State, detached

__all__ = ["STEPS", "ModelOptions", "TwoReaders", "fused", "options_in", "traced"]

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelOptions:
    """A model's graph in stages, and the options of each.

    Attributes:
        model: The model.
        chain: Its stages.
        inputs: What its graph gets.
        options: Per stage.
        stages: What is run plain; by default the stages of the chain.
        is_low: Whether forwards run under bf16 autocast; backwards do not.
    """

    model: nn.Module
    chain: GraphChain
    inputs: Sequence[Any]
    options: tuple[tuple[Option, ...], ...]
    stages: tuple[ChainStage, ...] = ()
    is_low: bool = False

    @property
    def most(self) -> int:
        """How many options the stage that has most has."""
        return max(map(len, self.options))

    def forward(self, pick: int | None = None) -> torch.Tensor:
        """The forward, every stage with its option of that number, or plain; summed up."""
        with low_precision(enabled=self.is_low):
            outputs = self._outputs(pick)
        return torch.stack([output.float().pow(2).mean() for output in outputs]).sum()

    def _outputs(self, pick: int | None) -> State:
        state, shared = self.chain.begin(self.inputs)
        stages: Sequence[ChainStage | GraphStage] = self.stages or self.chain.stages
        for stage, options in zip(stages, self.options, strict=True):
            if pick is None or not options:
                state = stage(state, shared)
            else:
                state = OptionPart(options[pick % len(options)])(state, shared)
        return self.chain.finish(state, shared)

    def outcome(self, step: Step, pick: int | None = None) -> list[torch.Tensor | None]:
        """All that a training step leaves behind."""
        buffers = [(tensor, tensor.clone()) for tensor in self.model.buffers()]
        torch.manual_seed(3)
        gradients = step(lambda: self.forward(pick), list(self.model.parameters()))
        left = [torch.get_rng_state(), *(tensor.clone() for tensor, _ in buffers)]
        for buffer, before in buffers:
            buffer.copy_(before)
        return [*gradients, *left]


class TwoReaders(nn.Module):
    """Rows that are read twice: first for a score, then for what it weighs.

    Args:
        first: The function of the score.
        rows: How many there are: by default as many as make up 2 MiB.
    """

    def __init__(
        self, first: Callable[[torch.Tensor], torch.Tensor] = torch.tanh, rows: int = 8192
    ) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(64, 64), first
        self.index = nn.Buffer(torch.arange(rows) % 64)

    def forward(self, x: torch.Tensor) -> Any:
        rows = self.linear(x)
        score = self.first(rows[self.index]).sum(-1, keepdim=True)
        return (score.sigmoid() * rows[self.index].exp()).sum(0)


def low_precision(*, enabled: bool) -> torch.autocast:
    """Autocast to bf16, or nothing."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def traced(
    model: nn.Module, *args: torch.Tensor, granularity: Granularity = 1
) -> tuple[GraphChain, Sequence[Any], list[tuple[StageGraph | None, tuple[State, Any]]]]:
    """The model's stages, looked at, and what each got."""
    chain, inputs = chain_of(model, *args, granularity=granularity)
    graphs, device = [], args[0].device
    with measuring(device):
        subject = subject_of(chain, inputs, None, device, merges=False)
        state = subject.source
        for index, stage in enumerate(subject.stages):
            given = (state, subject.shared)
            is_last = index == len(subject.stages) - 1
            graphs.append((trace_stage(stage, given, device, output_stays=not is_last), given))
            state = detached(stage(state, subject.shared))
    return chain, inputs, graphs


def options_in(
    model: nn.Module, *args: torch.Tensor, granularity: Granularity = 1, is_low: bool = False
) -> ModelOptions:
    """The model with at most eight options for every stage, each admitted."""
    options: list[tuple[Option, ...]] = []
    with low_precision(enabled=is_low):
        chain, inputs, graphs = traced(model, *args, granularity=granularity)
        for graph, given in graphs:
            front = [] if graph is None else selections_of(graph)
            found = [] if graph is None else [option_of(graph, s) for s in thinned(front, 8)]
            with measuring(CPU):
                assert all(admitted(option, given) for option in found)
            options.append(tuple(found))
    return ModelOptions(model, chain, inputs, tuple(options), is_low=is_low)


def fused(chain: GraphChain) -> ChainStage:
    """All stages of a chain as one."""
    return ChainStage("+".join(stage.name for stage in chain.stages), chain.stages)


Gradients = Sequence[torch.Tensor | None]

Step = Callable[[Callable[[], torch.Tensor], list[nn.Parameter]], Gradients]


def _plain(forward: Callable[[], torch.Tensor], parameters: list[nn.Parameter]) -> Gradients:
    loss = forward()
    return [loss.detach(), *torch.autograd.grad(loss, parameters, allow_unused=True)]


def _retain_graph(forward: Callable[[], torch.Tensor], parameters: list[nn.Parameter]) -> Gradients:
    loss = forward()
    first = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return [*first, *torch.autograd.grad(loss, parameters, allow_unused=True)]


def _two_forwards(forward: Callable[[], torch.Tensor], parameters: list[nn.Parameter]) -> Gradients:
    first, second = forward(), forward()
    found = torch.autograd.grad(second, parameters, allow_unused=True)
    return [*found, *torch.autograd.grad(first, parameters, allow_unused=True)]


def _one_parameter(
    forward: Callable[[], torch.Tensor], parameters: list[nn.Parameter]
) -> Gradients:
    return torch.autograd.grad(forward(), parameters[-1:], allow_unused=True)


def _partly_twice(forward: Callable[[], torch.Tensor], parameters: list[nn.Parameter]) -> Gradients:
    loss = forward()
    last = torch.autograd.grad(loss, parameters[-1:], retain_graph=True, allow_unused=True)
    return [*last, *torch.autograd.grad(loss, parameters, allow_unused=True)]


STEPS: dict[str, Step] = {
    "plain": _plain,
    "a second backward": _retain_graph,
    "two forwards": _two_forwards,
    "one parameter": _one_parameter,
    "one parameter, then all": _partly_twice,
}
