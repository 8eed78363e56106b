"""One training step's run of a plan: what it holds, and how dropped tensors come back.

A stage that will be run again has its saved tensors replaced by handles while it runs for
the first time. Just before its backward, the plan's forwards up to it are run, and the one
that captures hands every tensor to the handle of the same number. All state hangs off the
autograd graph through the handles: when the graph goes, everything goes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.binding import Binding, version_of
from chainstay.runtime.environment import Environment, Traits
from chainstay.runtime.liveness import ExecutionPlan, Step
from chainstay.runtime.probe import dropping
from chainstay.runtime.stages import ChainStage

__all__ = ["Run"]

_BE_DETERMINISTIC: Final = "a stage must do the same each time it runs on the same input"


class _Handle:
    """Stands in the graph for a tensor that was dropped, and holds it once it is back."""

    __slots__ = ("__weakref__", "dtype", "run", "shape", "stage", "tensor")

    def __init__(self, run: Run, stage: int, tensor: torch.Tensor) -> None:
        self.run = run
        self.stage = stage
        self.shape = tensor.shape
        self.dtype = tensor.dtype
        self.tensor: torch.Tensor | None = None


class _CapturedEverythingError(Exception):
    """Ends a recomputation whose remaining work nobody needs."""


@dataclass(slots=True)
class Run:
    """State between one forward and its backward.

    Attributes:
        stages: The chain.
        traits: Of each stage.
        plan: What to run.
        pending: The stage whose backward has not been prepared yet; all above have.
        checkpoints: Activations that a later forward reads, by the stage that reads them.
        versions: Of the checkpoints, as counted when they were stored.
        environments: Of the first run of each stage that runs again.
        bindings: Likewise.
        handles: Per stage, the stand-ins for what it saved, in the order of saving.
    """

    stages: tuple[ChainStage, ...]
    traits: tuple[Traits, ...]
    plan: ExecutionPlan
    pending: int
    checkpoints: dict[int, torch.Tensor] = field(default_factory=dict)
    versions: dict[int, int] = field(default_factory=dict)
    environments: dict[int, Environment] = field(default_factory=dict)
    bindings: dict[int, Binding] = field(default_factory=dict)
    handles: dict[int, list[weakref.ref[_Handle]]] = field(default_factory=dict)

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
            steps = self.plan.before_backward[self.pending]
            self.pending -= 1
            for step in steps:
                self._run_again(step)

    def _first_run(self, step: Step, activation: torch.Tensor) -> torch.Tensor:
        stage = self.stages[step.stage]
        if step.input_wanted:
            self._store(step.stage, activation)
        if not step.is_last:
            traits = self.traits[step.stage]
            self.environments[step.stage] = Environment.capture(traits, activation.device)
            self.bindings[step.stage] = Binding.of(stage, traits)
        if step.captures:
            output = stage(activation)
        else:
            with torch.autograd.graph.saved_tensors_hooks(self._handing_out(step.stage), _unpack):
                output = stage(activation)
        if self.plan.before_backward[step.stage] and output.grad_fn is not None:
            output.grad_fn.register_prehook(self._preparing(step.stage))
        return output

    def _run_again(self, step: Step) -> None:
        """Recompute from a checkpoint; only the next checkpoint or the captured tensors stay."""
        activation, environment = self._take_start(step)
        handles = self.handles.get(step.stage, []) if step.captures else []
        capture = _Capture(step.stage, handles, stops_when_done=not step.output_wanted)
        if capture.is_done and not step.output_wanted:
            return
        hooks = torch.autograd.graph.saved_tensors_hooks(capture.pack, _refuse)
        with torch.enable_grad(), environment.entered(for_last_time=step.is_last):
            try:
                with hooks if step.captures else dropping():
                    output = self.stages[step.stage](_non_leaf(activation))
            except _CapturedEverythingError:
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
        activation = self.checkpoints[stage] if step.input_wanted else self.checkpoints.pop(stage)
        if version_of(activation) != self.versions[stage]:
            what = "the model's input" if stage == 0 else f"the input of stage {stage}"
            raise PlanMismatchError(
                f"{what} was changed in place between forward and backward, but stage {stage} "
                "must run on it again; change a clone of it, or run the backward first"
            )
        self.bindings[stage].require_unchanged(self.stages[stage], self.traits[stage])
        if step.is_last:
            del self.bindings[stage]
            return activation, self.environments.pop(stage)
        return activation, self.environments[stage]

    def _handing_out(self, stage: int) -> Callable[[torch.Tensor], object]:
        """Pack hook of a first run. The graph keeps it, so it must hold no tensor itself."""
        handles = self.handles[stage] = []

        def pack(tensor: torch.Tensor) -> object:
            if isinstance(tensor, nn.Parameter):
                return tensor
            handle = _Handle(self, stage, tensor)
            handles.append(weakref.ref(handle))
            return handle

        return pack

    def _preparing(self, stage: int) -> Callable[[object], None]:
        """Hook in front of a stage's backward: what it will need must be there by then."""

        def prepare(_: object) -> None:
            self.prepare_backward(stage)

        return prepare


@dataclass(slots=True)
class _Capture:
    """Pack hook of a recomputation: gives the tensors to the handles of the first run.

    Handles that have died belong to parts of the graph that nobody can reach any more.
    """

    stage: int
    handles: list[weakref.ref[_Handle]]
    stops_when_done: bool
    packed: int = 0
    needed: int = 0

    def __post_init__(self) -> None:
        alive = (index + 1 for index, handle in enumerate(self.handles) if handle() is not None)
        self.needed = max(alive, default=0)

    @property
    def is_done(self) -> bool:
        """Whether every living handle has its tensor."""
        return self.packed >= self.needed

    def pack(self, tensor: torch.Tensor) -> object:
        if isinstance(tensor, nn.Parameter):
            return tensor
        if not self.is_done:
            handle = self.handles[self.packed]()
            if handle is not None:
                self._fill(handle, tensor)
            self.packed += 1
        if self.is_done and self.stops_when_done:
            raise _CapturedEverythingError
        return None

    def require_done(self) -> None:
        """Refuse a recomputation that saved less than the first run did."""
        if not self.is_done:
            raise PlanMismatchError(
                f"stage {self.stage} saved {self.packed} tensors when run again, its first run "
                f"at least {self.needed}; {_BE_DETERMINISTIC}"
            )

    def _fill(self, handle: _Handle, tensor: torch.Tensor) -> None:
        if (tensor.shape, tensor.dtype) != (handle.shape, handle.dtype):
            raise PlanMismatchError(
                f"stage {self.stage} saved a tensor {tuple(tensor.shape)} {tensor.dtype} when "
                f"run again, its first run {tuple(handle.shape)} {handle.dtype}; "
                f"{_BE_DETERMINISTIC}"
            )
        handle.tensor = tensor.detach()


def _unpack(packed: _Handle | torch.Tensor) -> torch.Tensor:
    if isinstance(packed, torch.Tensor):
        return packed
    if packed.tensor is None:
        packed.run.prepare_backward(packed.stage)
    if packed.tensor is None:
        raise PlanMismatchError(
            f"what stage {packed.stage} saved was not recomputed, because an earlier "
            "recomputation failed; run the forward again"
        )
    return packed.tensor


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    assert packed is not None, "backward through a recomputation"
    return packed


def _non_leaf(activation: torch.Tensor) -> torch.Tensor:
    """A checkpoint as the stage got it: autocast caches its copies of leaves, as of weights."""
    return activation.view_as(activation) if activation.requires_grad else activation
