"""One training step's run of a join's plan; compare `chainstay.runtime.execute.recompute`.

First runs build an ordinary autograd graph in the order of plain training. What the plan
drops is replaced by handles, and comes back just before a stage's backward. Backwards come
in the order of the plan (see `order`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.execute.environment import Environment, Traits, alone
from chainstay.runtime.execute.handles import (
    Capture,
    CapturedEverythingError,
    Dropped,
    Handles,
    unpack,
)
from chainstay.runtime.execute.recompute import Versioned
from chainstay.runtime.joins.backward_order import NodeRange, now, reorder
from chainstay.runtime.joins.execution import JoinExecution, JoinStep, Place
from chainstay.runtime.joins.graph_join import cut
from chainstay.runtime.measures.probe import dropping
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State, changeable, copied, detached, is_among, non_leaves

__all__ = ["JoinRun", "PlannedStage"]


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage, its position among all, and how its forward touches the world."""

    stage: ChainStage
    position: int
    traits: Traits


@dataclass(slots=True)
class JoinRun:
    """State between one forward and its backward.

    Attributes:
        stages: All but the loss.
        plan: What to run.
        widths: How many tensors each branch's last state has.
        device: Where it runs.
        shared: What all stages may read.
        names: What messages call that.
        prepared: How many backwards have been prepared.
        checkpoints: States that a later operation reads.
        environments: Surroundings of the first run of each stage that runs again.
        handles: Per stage, the stand-ins for what it saved.
        ranges: Numbers of the nodes of first runs.
    """

    stages: Mapping[Place, PlannedStage]
    plan: JoinExecution
    widths: tuple[int, ...]
    device: torch.device
    shared: Sequence[Any]
    names: Sequence[str]
    prepared: int = 0
    checkpoints: dict[Place, Versioned] = field(default_factory=dict)
    environments: dict[Place, Environment] = field(default_factory=dict)
    handles: dict[Place, Handles] = field(default_factory=dict)
    ranges: dict[Place, NodeRange] = field(default_factory=dict)

    def forward(self, given: tuple[State, ...]) -> State:
        """The last state, from the first state of each branch."""
        ends: list[State] = []
        state: State = ()
        branches = len(given)
        for step in self.plan.forward:
            part, index = step.stage
            if not step.is_first:
                self.run_again(step)
                continue
            if index == 0:
                if part:
                    ends.append(state)
                state = given[part] if part < branches else _joined(ends)
                if part == branches:
                    ends = []
            state = self.first_run(step, state)
        if self.plan.shape.tail == 0:
            state = _joined([*ends, state])
        self._order_backwards(state)
        return state

    def prepare_backward(self, stage: Place) -> None:
        """Run all forwards that the plan has before the backward of `stage`."""
        rank = self.plan.backward.index(stage)
        while self.prepared <= rank:
            following = self.plan.backward[self.prepared]
            self.prepared += 1
            for step in self.plan.before_backward[following]:
                self.run_again(step)

    def first_run(self, step: JoinStep, state: State) -> State:
        """The next state, part of the model's own graph."""
        planned = self.stages[step.stage]
        self._store(step, state)
        start = 0 if self.plan.is_plain_order else now()
        with alone(planned.traits):
            if not step.is_last:
                self.environments[step.stage] = Environment.capture(
                    planned.stage, planned.traits, self.shared, self.device
                )
            with self._hooked(step):
                output = planned.stage(state, self.shared)
        if not self.plan.is_plain_order:
            self.ranges[step.stage] = NodeRange(start, now())
        if self.plan.before_backward[step.stage]:
            made = (each.grad_fn for each in output if not is_among(each, state))
            for node in dict.fromkeys(made):
                if node is not None:
                    node.register_prehook(lambda _: self.prepare_backward(step.stage))
        return output

    def run_again(self, step: JoinStep) -> None:
        """Recompute from a checkpoint; only the next checkpoint or the captured tensors stay."""
        planned = self.stages[step.stage]
        state, environment = self._take_start(step)
        capture = Capture(
            stage=planned.position,
            handles=self.handles[step.stage] if step.captures else Handles(),
            released=None,
            stops_when_done=not (step.output_wanted or planned.traits.fills_what_it_saved),
        )
        if capture.is_done and not step.output_wanted:
            return
        if planned.traits.changes_input and step.wanted:
            state = copied(state, None)
        shared = environment.shared_for(self.shared, self.names, for_last_time=step.is_last)
        hooks = torch.autograd.graph.saved_tensors_hooks(capture, _refuse)
        with torch.enable_grad(), alone(planned.traits), environment.entered():
            given = changeable(state, state) if planned.traits.changes_input else non_leaves(state)
            try:
                with hooks if step.captures else dropping():
                    output = planned.stage(given, shared)
            except CapturedEverythingError:
                return
        capture.require_done()
        if step.output_wanted:
            part, index = step.stage
            self.checkpoints[part, index + 1] = Versioned.of(detached(output))

    def _store(self, step: JoinStep, state: State) -> None:
        """Keep what a later forward reads of a stage's input, without the graph that made it."""
        inputs = self.plan.shape.inputs(step.stage)
        pieces = cut(state, self.widths) if len(inputs) > 1 else (state,)
        for place, piece in zip(inputs, pieces, strict=True):
            if place in step.wanted:
                kept = detached(piece)
                changes = self.stages[step.stage].traits.changes_input
                self.checkpoints[place] = Versioned.of(copied(kept, None) if changes else kept)

    def _take_start(self, step: JoinStep) -> tuple[State, Environment]:
        """Return the input of the stage; keep it only if another forward starts from it, too."""
        planned = self.stages[step.stage]
        inputs = self.plan.shape.inputs(step.stage)
        found = [self.checkpoints[place] for place in inputs]
        for place, checkpoint in zip(inputs, found, strict=True):
            if place not in step.wanted:
                del self.checkpoints[place]
            if not checkpoint.is_unchanged:
                raise PlanMismatchError(
                    f"the input of stage {planned.stage.name} was changed in place between "
                    "forward and backward, but it is needed again; change a clone of it, or run "
                    "the backward first"
                )
        state = _joined([checkpoint.state for checkpoint in found])
        if step.is_last:
            return state, self.environments.pop(step.stage)
        return state, self.environments[step.stage]

    def _hooked(self, step: JoinStep) -> AbstractContextManager[object]:
        """Return the hooks for what a first run saves, or none where it stays."""
        if step.captures:
            return nullcontext()
        handles = self.handles[step.stage] = Handles()
        prepare = partial(self.prepare_backward, step.stage)
        dropped = Dropped(self.stages[step.stage].position, prepare, handles)
        return torch.autograd.graph.saved_tensors_hooks(dropped, unpack)

    def _order_backwards(self, state: State) -> None:
        if not self.plan.is_plain_order:
            reorder(state, [self.ranges[stage] for stage in self.plan.backward])
            self.ranges.clear()


def _joined(states: list[State]) -> State:
    return tuple(tensor for state in states for tensor in state)


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    assert packed is not None, "backward through a recomputation"
    return packed
