"""A model's own forward, its blocks run by a plan.

The model calls its blocks; the plan says what stays of each. A plan is for blocks called one
after another as on the sample. A forward may call fewer: then what the plan had in mind for the
backward of the others falls away, and what is dropped is made again from whatever state is
there. It may call others, or more of them: each of these keeps its input and is run again from
there, which is told, since no plan counts that memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from chainstay.profiles import ChainProfile
from chainstay.runtime.capture.blocks.chain import BlockChain, BlockStage
from chainstay.runtime.capture.blocks.graphs import BlockGraph
from chainstay.runtime.devices.backend_settings import backend_settings
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.execute.liveness import ExecutionPlan, Shape, Step, plan_execution
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.execute.recompute import Run
from chainstay.runtime.options.table import OptionTable, require_repeatable_step, used_options
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State, version_of
from chainstay.schedule import Schedule


@dataclass(frozen=True, slots=True, eq=False)
class BlockSchedule:
    """The blocks of a model and the plan that they run by.

    Attributes:
        blocks: The blocks.
        chain: The same as stages, with the options that the plan uses.
        plan: The steps of forward and backward.
    """

    blocks: BlockChain
    chain: Chain
    plan: ExecutionPlan

    @classmethod
    def from_schedule(cls, blocks: BlockChain, chain: Chain, schedule: Schedule) -> BlockSchedule:
        """Return the schedule of blocks with a loss behind them; `chain` has them as stages.

        Raises:
            InvalidScheduleError: An operation lacks what it needs.
            PlanMismatchError: It keeps a block under an option that the chain does not have.
        """
        plan = plan_execution(schedule, Shape(len(blocks.stages)))
        used = used_options(chain.options, schedule, chain.stages)
        return cls(blocks, replace(chain, options=used), plan)

    def is_for(self, blocks: BlockChain, shared: Sequence[Any]) -> bool:
        """Whether blocks that differ in numbers save what they did when options were measured."""
        found = (self.options_of(index, stage, shared) for index, stage in enumerate(blocks.stages))
        return all(options is not None for options in found)

    def options_of(
        self, index: int, stage: BlockStage, shared: Sequence[Any]
    ) -> OptionTable | None:
        """Return the options of a block as it is now; ``None`` if it saves something else."""
        own = {key: option for key, option in self.chain.options.items() if key[0] == index}
        if stage is not self.blocks.stages[index]:
            alike = ChainStage(stage.name, (stage,))
            again = {key: option.for_stage(alike) for key, option in own.items()}
            own = {key: option for key, option in again.items() if option is not None}
            if len(own) < len(again):
                return None
        backends = backend_settings()
        graphs = (option.code.graph for option in own.values())
        return own if all(graph.is_for(shared, backends) for graph in graphs) else None


@dataclass(slots=True, eq=False)
class BlockRun:
    """One forward of a model, from block to block.

    Attributes:
        schedule: The schedule for the blocks that are expected.
        following: The next block that is expected.
        others: How many blocks were called that are not.
        changed: How many were called that save something else than when they were planned.
        called: What tells the blocks that were called from others, in order.
    """

    schedule: BlockSchedule
    following: int = 0
    others: int = 0
    changed: int = 0
    called: list[Hashable] = field(default_factory=list)
    _run: Run | None = None
    _step: int = 0
    _state: State = ()
    _versions: tuple[int, ...] = ()
    _shared: list[Any] = field(default_factory=list)

    def block(self, graph: BlockGraph, inputs: tuple[Any, ...]) -> Sequence[Any]:
        """Run the next block's graph."""
        self.called.append(graph.key)
        if self._is_expected(graph, inputs):
            given, shared = graph.chain.begin(inputs)
            stage = self.schedule.blocks.stages[self.following].by(graph, len(self._shared))
            self._shared += graph.retained(shared)
            options = self.schedule.options_of(self.following, stage, self._shared)
            if options is not None:
                made = self._by_plan(stage, given, options)
                return graph.chain.finish(made[: len(made) - len(stage.carried)], shared)
            del self._shared[stage.first_shared :]
            self.changed += 1
        else:
            self.others += 1
        return _alone(graph, inputs, self.schedule.chain.device)

    def end(self) -> None:
        """The model's forward is over: from now on only autograd's graph holds what is needed."""
        run, self._run, self._state, self._shared = self._run, None, (), []
        if run is None:
            return
        if self.following == len(self.schedule.chain.stages):
            self._run_again_until_first(run)
        else:
            _shorten(run, self.following)

    def _is_expected(self, graph: BlockGraph, inputs: Sequence[Any]) -> bool:
        blocks, index = self.schedule.blocks, self.following
        if index == len(blocks.stages) or blocks.stages[index].graph.key != graph.key:
            return False
        if len(graph.chain.state_inputs) != len(blocks.stages[index].graph.chain.state_inputs):
            return False  # parameters are tensors here that another graph has made
        if index in blocks.starts:
            return True
        given = [inputs[position] for position in graph.chain.state_inputs]
        taken = blocks.stages[index].taken
        return len(given) == len(taken) and all(
            self._state[position] is tensor and self._versions[position] == version_of(tensor)
            for position, tensor in zip(taken, given, strict=True)
        )

    def _by_plan(self, stage: BlockStage, given: State, options: OptionTable) -> State:
        schedule, index = self.schedule, self.following
        if len(schedule.plan.kept) < len(schedule.chain.stages):
            require_repeatable_step(options, self._shared, schedule.chain.device)
        run = self._run = self._run or Run(schedule.chain, schedule.plan, self._shared, pending=-1)
        self._run_again_until_first(run)
        step = schedule.plan.forward[self._step]
        assert step.stage == index, "first runs are in order"
        self._step += 1
        self.following += 1
        if stage is not schedule.blocks.stages[index]:
            _exchange(run, index, stage, options)
        if index in schedule.blocks.starts:
            self._state = given
        made = run.first_run(step, self._state)
        self._state, self._versions = made, tuple(map(version_of, made))
        run.pending = index
        return made

    def _run_again_until_first(self, run: Run) -> None:
        """Run what the plan has before the next first run, or before the loss."""
        forward = self.schedule.plan.forward
        while self._step < len(forward) and not forward[self._step].is_first:
            run.run_again(forward[self._step])
            self._step += 1


def _exchange(run: Run, index: int, stage: BlockStage, options: OptionTable) -> None:
    """Let a stage run by another graph, which differs from that of the plan in numbers only."""
    own = ChainStage(stage.name, (stage,))
    chain, names, first = run.chain, tuple(stage.shared_names), stage.first_shared
    run.chain = replace(
        chain,
        stages=(*chain.stages[:index], own, *chain.stages[index + 1 :]),
        effects=(*chain.effects[:index], own.effects, *chain.effects[index + 1 :]),
        names=(*chain.names[:first], *names, *chain.names[first + len(names) :]),
        options={**chain.options, **options},
    )


def crosses_segment(chain: BlockChain, schedule: Schedule) -> bool:
    """Whether `schedule` does what cannot be done, as the model is between two blocks.

    The input of a segment cannot be made again, neither for a forward nor for a backward; what
    runs again runs for a backward of its own segment. A block that changes its input does so
    before anyone could tell what of its saved data lies there.
    """
    plan = plan_execution(schedule, Shape(len(chain.stages)))
    present = 0
    for step in plan.forward:
        present = max(present, step.stage)
        if _crosses(chain, step, present):
            return True
    return any(
        _crosses(chain, step, stage)
        for stage, steps in enumerate(plan.before_backward)
        for step in steps
    )


def _crosses(chain: BlockChain, step: Step, present: int) -> bool:
    starts = frozenset(chain.starts)
    remakes = not step.is_first and step.output_wanted and step.stage + 1 in starts
    loses = step.releases_input and (
        step.stage in starts or chain.stages[step.stage].is_input_changed
    )
    return remakes or loses or chain.segment_of(step.stage) != chain.segment_of(present)


def _shorten(run: Run, count: int) -> None:
    """Let a run of which only the first `count` stages have run prepare their backwards itself.

    Each stage is made again from the nearest state that is there.
    """
    first = {step.stage: step for step in run.plan.forward if step.is_first}
    stored = sorted(run.checkpoints)
    before: list[tuple[Step, ...]] = []
    released = set()
    for stage in range(count):
        step = first[stage]
        if step.captures and not step.releases_input:
            before.append(())
            continue
        start = next(
            at
            for at in reversed(stored)
            if at <= stage and all(n in run.environments for n in range(at, stage))
        )
        steps = [_repeated(n, is_start=n == start, captures=False) for n in range(start, stage)]
        if step.captures:
            released.add(stage)
        else:
            steps.append(_repeated(stage, is_start=stage == start, captures=True))
        before.append(tuple(steps))
    run.plan = replace(
        run.plan,
        shape=Shape(count),
        forward=(),
        backward=tuple(reversed(range(count))),
        before_backward=tuple(before),
        released=frozenset(released),
    )
    run.pending = count - 1


def _repeated(stage: int, *, is_start: bool, captures: bool) -> Step:
    return Step(
        stage=stage,
        is_first=False,
        is_last=False,
        captures=captures,
        releases_input=False,
        wanted=frozenset({stage} if is_start else ()),
        output_wanted=not captures,
    )


_ALONE: Final = Schedule.parse("Fc0 Fa1 B1 Fa0 B0")
"""One stage, dropped and run again."""


def _alone(graph: BlockGraph, inputs: tuple[Any, ...], device: torch.device) -> Sequence[Any]:
    """Run a block of which no plan knows: only its input stays."""
    state, shared = graph.chain.begin(inputs)
    (stage,) = graph.chain.stages
    own = ChainStage(stage.name, (stage,))
    names = tuple(given.name for given in graph.chain.inputs) + ("a value",) * len(shared)
    chain = Chain(stages=(own,), device=device, names=names, effects=(own.effects,))
    return graph.chain.finish(Executor(chain, _ALONE)(state, shared), shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlocks(Planned):
    """The blocks of a model by a plan, called by the model's own forward, with their costs."""

    schedule: BlockSchedule
    profile: ChainProfile

    @property
    def chain(self) -> Chain:
        """See `Planned`."""
        return self.schedule.chain
