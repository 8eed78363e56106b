"""One training step's run of a plan: what it holds, and how dropped tensors come back.

A stage that will be run again has its saved tensors replaced by handles while it runs for
the first time. Just before its backward, the plan's forwards up to it are run, and the one
that captures hands every tensor to the handle of the same number. What lies in an input that
may go before that backward gets its handle back from the input made anew. All state hangs off
the autograd graph through the handles: when the graph goes, everything goes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.aliasing import Source
from chainstay.runtime.binding import Binding, version_of
from chainstay.runtime.environment import Environment, Traits
from chainstay.runtime.handles import (
    Capture,
    CapturedEverythingError,
    Dropped,
    Handles,
    Kept,
    unpack,
)
from chainstay.runtime.liveness import ExecutionPlan, Step
from chainstay.runtime.probe import dropping
from chainstay.runtime.stages import ChainStage

__all__ = ["Run"]


@dataclass(slots=True)
class Run:
    """State between one forward and its backward.

    Attributes:
        stages: The chain.
        traits: Of each stage.
        plan: What to run.
        pending: The stage whose backward has not been prepared yet; all above have.
        checkpoints: Activations that a later operation reads, by the stage that reads them.
        versions: Of the checkpoints, as counted when they were stored.
        environments: Of the first run of each stage that runs again.
        bindings: Likewise.
        handles: Per stage, the stand-ins for what it saved.
    """

    stages: tuple[ChainStage, ...]
    traits: tuple[Traits, ...]
    plan: ExecutionPlan
    pending: int
    checkpoints: dict[int, torch.Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    environments: dict[int, Environment] = field(default_factory=dict)
    bindings: dict[int, Binding] = field(default_factory=dict)
    handles: dict[int, Handles] = field(default_factory=dict)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """The model's forward: first runs build the graph, any others go beside it."""
        for step in self.plan.forward:
            if step.is_first:
                activation = self._first_run(step, activation)
            else:
                self._run_again(step)
        return activation

    def prepare_backward(self, stage: int) -> None:
        """Run all forwards that the plan has before the backward of `stage`."""
        while self.pending >= stage:
            following = self.pending
            self.pending -= 1
            for step in self.plan.before_backward[following]:
                self._run_again(step)
            if following in self.plan.released:
                self.handles[following].lay_over(self._take_checkpoint(following))

    def _first_run(self, step: Step, activation: torch.Tensor) -> torch.Tensor:
        stage = self.stages[step.stage]
        if step.input_wanted:
            self._store(step.stage, activation)
        if not step.is_last:
            traits = self.traits[step.stage]
            self.environments[step.stage] = Environment.capture(traits, activation.device)
            self.bindings[step.stage] = Binding.of(stage, traits)
        with self._hooked(step, activation):
            output = stage(activation)
        if self.plan.before_backward[step.stage] and output.grad_fn is not None:
            output.grad_fn.register_prehook(lambda _: self.prepare_backward(step.stage))
        return output

    def _run_again(self, step: Step) -> None:
        """Recompute from a checkpoint; only the next checkpoint or the captured tensors stay."""
        activation, environment = self._take_start(step)
        capture = Capture(
            stage=step.stage,
            handles=self.handles[step.stage] if step.captures else Handles(),
            released=Source.of(activation) if step.releases_input else None,
            stops_when_done=not step.output_wanted,
        )
        if capture.is_done and not step.output_wanted:
            return
        hooks = torch.autograd.graph.saved_tensors_hooks(capture, _refuse)
        with torch.enable_grad(), environment.entered(for_last_time=step.is_last):
            try:
                with hooks if step.captures else dropping():
                    output = self.stages[step.stage](_non_leaf(activation))
            except CapturedEverythingError:
                return
        capture.require_done()
        if step.output_wanted:
            self._store(step.stage + 1, output)

    def _store(self, stage: int, activation: torch.Tensor) -> None:
        """Keep the input of `stage`: the same memory without the graph that made it."""
        checkpoint = activation.detach().requires_grad_(activation.requires_grad)
        self.checkpoints[stage], self.versions[stage] = checkpoint, version_of(checkpoint)

    def _take_start(self, step: Step) -> tuple[torch.Tensor, Environment]:
        """What the stage starts from; kept only if another forward will start from it too."""
        stage = step.stage
        activation = self._take_checkpoint(stage)
        if step.input_wanted:
            self.checkpoints[stage] = activation
        self.bindings[stage].require_unchanged(self.stages[stage], self.traits[stage])
        if step.is_last:
            del self.bindings[stage]
            return activation, self.environments.pop(stage)
        return activation, self.environments[stage]

    def _take_checkpoint(self, stage: int) -> torch.Tensor:
        """The input of `stage`, given away."""
        activation = self.checkpoints.pop(stage)
        if version_of(activation) != self.versions[stage]:
            what = "the model's input" if stage == 0 else f"the input of stage {stage}"
            raise PlanMismatchError(
                f"{what} was changed in place between forward and backward, but stage {stage} "
                "needs it again; change a clone of it, or run the backward first"
            )
        return activation

    def _hooked(self, step: Step, activation: torch.Tensor) -> AbstractContextManager[object]:
        """What the first run of a stage saves goes as planned; untouched where all of it stays."""
        if step.captures and not step.releases_input:
            return nullcontext()
        stage = step.stage
        handles = self.handles[stage] = Handles()
        prepare = partial(self.prepare_backward, stage)
        pack = (
            Kept(stage, prepare, handles, Source.of(activation))
            if step.captures
            else Dropped(stage, prepare, handles)
        )
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    assert packed is not None, "backward through a recomputation"
    return packed


def _non_leaf(activation: torch.Tensor) -> torch.Tensor:
    """A checkpoint as the stage got it: autocast caches its copies of leaves, as of weights."""
    return activation.view_as(activation) if activation.requires_grad else activation
