"""One training step's run of a plan: what it holds, and how dropped tensors come back.

A stage that will be run again has its saved tensors replaced by handles while it runs for
the first time. Just before its backward, the plan's forwards up to it are run, and the one
that captures hands every tensor to the handle of the same number. What lies in an input that
may go before that backward gets its handle back from the input made anew. All state hangs off
the autograd graph, through handles and hooks of its nodes: when the graph goes, everything goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch.autograd.graph import Node

from chainstay.runtime.execute.environment import Environment, Settings, alone
from chainstay.runtime.execute.handles import (
    Capture,
    CapturedEverythingError,
    Dropped,
    Handles,
    Kept,
    Source,
    dropping,
    unpack,
)
from chainstay.runtime.execute.items import Action
from chainstay.runtime.execute.liveness import ExecutionPlan, Step
from chainstay.runtime.options.option import run_option
from chainstay.runtime.options.replay import OptionRun
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage, Effects, Part, fused
from chainstay.runtime.stage.states import (
    State,
    changeable,
    changed_in_place_error,
    copied,
    cut,
    detached,
    is_among,
    non_leaves,
)
from chainstay.runtime.transfer.movable_storage import MovableStorage
from chainstay.runtime.transfer.step_transfers import OffloadHook, StepTransfers, StoredState


@dataclass(frozen=True, slots=True)
class Stretch:
    """Stages that run once, one behind another, and with which nothing else is to be done.

    Attributes:
        effects: The effects of one of them; other threads may notice those of all, or of none.
        parts: All of theirs.
        steps: Their steps, for a run in which they read what may go to the host.
    """

    effects: Effects
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]


def stretched(
    plan: ExecutionPlan, stages: Sequence[ChainStage], effects: Sequence[Effects]
) -> Iterator[Step | Stretch]:
    """Yield the forward of `plan`, in which neighbours that only have to run are one stretch.

    Stages of joins run one by one.
    """

    def kind(step: Step) -> bool | None:
        is_kept = step.stage in plan.kept and step.makes is None and not plan.shape.lengths
        return effects[step.stage].are_noticed if is_kept else None

    for found, steps in groupby(plan.forward, kind):
        if found is None:
            yield from steps
        else:
            kept = tuple(steps)
            parts = (part for step in kept for part in stages[step.stage].parts)
            yield Stretch(effects[kept[0].stage], tuple(parts), kept)


@dataclass(slots=True)
class Run:
    """State between one forward and its backward.

    Attributes:
        chain: The stages, with the options that steps capture under.
        plan: The steps of forward and backward.
        shared: The values that all stages may read.
        pending: How many backwards there are behind the next one that has not been prepared yet;
            in a chain, the stage that it is of.
        widths: How many tensors the last state of each branch has.
        checkpoints: States that a later operation reads, by number.
        environments: Surroundings of the first run of each stage that runs again.
        handles: Per stage, the stand-ins for what it saved.
        transfers: Transfers to host memory and back; ``None`` where all stays.
        held: The parts that may go to the host of the state that the next first run reads.
        settings: The settings of the whole forward; ``None`` where the model's own code runs
            between stages, and may change them.
    """

    chain: Chain
    plan: ExecutionPlan
    shared: Sequence[Any]
    pending: int
    widths: tuple[int, ...] = ()
    checkpoints: dict[int, StoredState] = field(default_factory=dict)
    environments: dict[int, Environment] = field(default_factory=dict)
    handles: dict[int, Handles] = field(default_factory=dict)
    transfers: StepTransfers | None = None
    held: list[MovableStorage] = field(default_factory=list)
    settings: Settings | None = None

    def forward(self, state: State, steps: Iterable[Step | Stretch]) -> State:
        """Run the forward: first runs build the graph, any others go beside it."""
        for step in steps:
            if isinstance(step, Stretch) and not self.held:
                with alone(step.effects):
                    for part in step.parts:  # a method's caller would hold the first one's input
                        state = part(state, self.shared)
            elif isinstance(step, Stretch):  # what moves is told from what stays step by step
                for own in step.steps:
                    state = self.first_run(own, state)
            elif step.is_first:
                state = self.first_run(step, state)
            else:
                self.run_again(step)
        self._transfer(self.plan.closing.get(len(self.chain.stages), ()))
        self.held = []
        return state

    def prepare_backward(self, stage: int) -> None:
        """Run all forwards and transfers that the plan has before the backward of `stage`."""
        backward = self.plan.backward
        behind = stage if self.plan.is_plain_order else len(backward) - 1 - backward.index(stage)
        while self.pending >= behind:
            following = backward[-1 - self.pending]
            self.pending -= 1
            for step in self.plan.before_backward[following]:
                self.run_again(step)
            self._transfer(self.plan.closing.get(following, ()))
            if following in self.plan.released:
                self.handles[following].lay_over(self._take_checkpoint(following))

    def first_run(self, step: Step, state: State) -> State:
        """The next state, part of the model's own graph."""
        stage = self.chain.stages[step.stage]
        self._transfer(step.actions)
        effects = self._effects_of(step)
        if step.wanted:
            self._store_inputs(step, state)
        with alone(effects):
            settings = self.settings or Settings.now(self.chain.device)
            if not step.is_last:
                self.environments[step.stage] = Environment.capture(
                    stage, effects, self.shared, settings, self.chain.device
                )
            run = self._option_run(step, self.shared, settings)
            if run is not None:
                policy = self._offload_hook(step, state, self.shared)
                output = run_option(run, state, step.stage, policy)
            else:
                with self._hooked(step, state):
                    output = self._run(step, state, self.shared)
        if self.transfers is not None:
            self.held = self.transfers.made(step, state, output)
        last = step.stages[-1]
        if self.plan.before_backward[last] or self.plan.closing.get(last):
            for node in _nodes_of(output, state):
                node.register_prehook(lambda _: self.prepare_backward(last))
        return output

    def _option_run(
        self, step: Step, shared: Sequence[Any], settings: Settings
    ) -> OptionRun | None:
        """Return a run with a step's option by `settings`; ``None`` where everything is kept.

        So it is if the step would not save what it did when its options were measured, as for a
        rate of dropout that is 0 now. Calls of which that is known before have plans of their own.
        """
        if not step.option:
            return None
        option = self.chain.options.get((step.stage, step.option))  # a block left out has none
        if (
            option is None
            or not option.selection.drops
            or not option.code.graph.is_for(shared, settings.backends)
        ):
            return None
        return OptionRun(option.code, shared, self.chain.names, settings)

    def _run(self, step: Step, state: State, shared: Sequence[Any]) -> State:
        """Run all stages of a step as one: nothing holds on to what one hands to the next."""
        return fused([self.chain.stages[stage] for stage in step.stages])(state, shared)

    def _effects_of(self, step: Step) -> Effects:
        return Effects.together([self.chain.effects[stage] for stage in step.stages])

    def run_again(self, step: Step) -> None:
        """Recompute from a checkpoint; only the next checkpoint or the captured tensors stay."""
        self._transfer(step.actions)
        inputs = self.plan.shape.inputs(step.stage)
        held = [self.checkpoints[number] for number in inputs]  # to tell them from what it makes
        state, environments = self._take_start(step)
        effects = self._effects_of(step)
        capture = Capture(
            stage=step.stage,
            handles=Handles.of([self.handles[s] for s in step.stages if step.captures]),
            released=Source.of(state) if step.releases_input else None,
            stops_when_done=not (step.output_wanted or effects.fills_what_it_saved or step.option),
        )
        if capture.is_done and not step.output_wanted:
            return
        if effects.changes_input and step.wanted:
            state = copied(state)
        shared = self.shared
        for environment in reversed(environments):
            shared = environment.shared_for(shared, self.chain.names, for_last_time=step.is_last)
        if step.captures:
            capture.policy = self._offload_hook(step, state, shared)
        hooks = torch.autograd.graph.saved_tensors_hooks(capture, _refuse)
        first = Environment.first_of(environments)
        with torch.enable_grad(), alone(effects), first.entered(self.shared):
            given = changeable(state, state) if effects.changes_input else non_leaves(state)
            try:
                with hooks if step.captures else dropping():
                    output = self._captured(step, given, shared, first.settings, capture)
            except CapturedEverythingError:
                return
        del held
        capture.require_done()
        if step.output_wanted:
            made = None if self.transfers is None else self.transfers.made(step, state, output)
            self._store(self.plan.shape.output(step.stages[-1]), detached(output))
            del made

    def _captured(
        self, step: Step, given: State, shared: Sequence[Any], settings: Settings, capture: Capture
    ) -> State:
        """Run a step again, by its option if it has one, for what `capture` takes of it."""
        run = self._option_run(step, shared, settings)
        if run is None:
            return self._run(step, given, shared)
        capture.stand_in = run.packed
        output = run.forward(given)
        run.close(given, capture.policy)
        return output

    def _transfer(self, actions: tuple[Action, ...]) -> None:
        if actions and self.transfers is not None:
            self.transfers.act(actions)

    def _store_inputs(self, step: Step, state: State) -> None:
        """Keep what a later forward reads of a stage's input, without the graph that made it."""
        inputs = self.plan.shape.inputs(step.stage)
        pieces = cut(state, self.widths) if len(inputs) > 1 else (state,)
        for number, piece in zip(inputs, pieces, strict=True):
            if number in step.wanted:
                kept = detached(piece)
                changes = self.chain.effects[step.stage].changes_input
                self._store(number, copied(kept) if changes else kept)

    def _store(self, number: int, state: State) -> None:
        self.checkpoints[number] = StoredState.of(state, self.transfers)

    def _take_start(self, step: Step) -> tuple[State, list[Environment]]:
        """Return what a step starts from; keep it only if another forward starts from it, too."""
        stage = step.stage
        state: State = ()
        for number in self.plan.shape.inputs(stage):
            checkpoint = self.checkpoints[number]
            state += self._take_checkpoint(number)
            if number in step.wanted:
                self.checkpoints[number] = checkpoint
        environments = self.environments
        take = environments.pop if step.is_last else environments.__getitem__
        return state, [take(stage) for stage in step.stages]

    def _take_checkpoint(self, number: int) -> State:
        """Give away state `number`, which must not have been changed in place."""
        checkpoint = self.checkpoints.pop(number)
        if not checkpoint.is_unchanged:
            shape = self.plan.shape
            stage = shape.reader(number)
            name = self.chain.stages[stage].name if shape.lengths else stage
            is_first = stage == 0 and not shape.lengths
            what = "the model's input" if is_first else f"the input of stage {name}"
            raise changed_in_place_error(what, f"stage {name}")
        return checkpoint.state

    def _hooked(self, step: Step, state: State) -> AbstractContextManager[object]:
        """Return the hooks for what a first run saves, or none where all of it stays."""
        stage = step.stage
        prepare = partial(self.prepare_backward, stage)
        policy = self._offload_hook(step, state, self.shared) if step.captures else None
        if step.captures and not step.releases_input:
            return nullcontext() if policy is None else policy.hooks()
        handles = self.handles[stage] = Handles()
        pack = (
            Kept(stage, prepare, handles, Source.of(state), policy)
            if step.captures
            else Dropped(stage, prepare, handles)
        )
        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    def _offload_hook(self, step: Step, state: State, shared: Sequence[Any]) -> OffloadHook | None:
        """Return the hook for tensors that move among those that a run saves.

        Copies of buffers from before the first run stay, as the buffers do: who runs a stage again
        holds them.
        """
        if self.transfers is None:
            return None
        prepare = partial(self.prepare_backward, step.stage)
        effects = self.chain.effects[step.stage]
        read = [shared[position] for position in (*effects.only_read, *effects.written)]
        given = (*state, *(value for value in read if isinstance(value, torch.Tensor)))
        return self.transfers.hook(step, given, prepare)


def _nodes_of(output: State, given: State) -> list[Node]:
    """The nodes that made `output`; a hook where something passed through would not be ours."""
    made = (tensor.grad_fn for tensor in output if not is_among(tensor, given))
    return [node for node in dict.fromkeys(made) if node is not None]


def _refuse(packed: torch.Tensor | None) -> torch.Tensor:
    assert packed is not None, "backward through a recomputation"
    return packed
