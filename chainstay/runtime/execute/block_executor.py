"""A model's own forward, its blocks run by a plan.

The model calls its blocks; the plan says what stays of each. A plan is for blocks called one
after another as on the sample. A forward may leave some out (LayerDrop, depth that depends on
data): each of these is a stage that passes its input on, so the plan holds for the others and
needs no more memory. It may call others, or more of them: each of these keeps its input and is
run again from there, which is told, since no plan counts that memory.
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
        index = self._expected_at(graph, inputs)
        if index is not None:
            given, shared = graph.chain.begin(inputs)
            self._leave_out(index, given)
            stage = self.schedule.blocks.stages[index].by(graph, len(self._shared))
            self._shared += graph.retained(shared)
            options = self.schedule.options_of(index, stage, self._shared)
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
        if self._run is not None:
            self._leave_out(len(self.schedule.chain.stages))
            self._run_again_until_first(self._run)
        self._run, self._state, self._shared = None, (), []

    def _expected_at(self, graph: BlockGraph, inputs: Sequence[Any]) -> int | None:
        """Return the next place in the plan of a block that is called now, if it has one."""
        stages, first = self.schedule.blocks.stages, self.following
        given = [inputs[position] for position in graph.chain.state_inputs]
        # Parameters that are spread over processes come and go with the block at that place.
        is_fixed = any(stage.is_sharded for stage in stages[first : first + 1])
        for index in range(first, first + 1 if is_fixed else len(stages)):
            own = stages[index].graph
            # Otherwise parameters are tensors here that another graph has made.
            is_alike = own.key == graph.key and len(own.chain.state_inputs) == len(given)
            if is_alike and self._is_given(index, given):
                return index
        return None

    def _is_given(self, index: int, given: Sequence[torch.Tensor]) -> bool:
        """Whether a block at `index`, the next one that runs, gets `given` by the plan."""
        blocks = self.schedule.blocks
        taken, start = blocks.stages[index].taken, blocks.segment_of(index)
        if index == start:
            return True
        if start >= self.following:  # those in front of it in its segment are left out
            return taken == tuple(range(len(blocks.boundaries[index])))
        return len(given) == len(taken) and all(
            position < len(self._state)
            and self._state[position] is tensor
            and self._versions[position] == version_of(tensor)
            for position, tensor in zip(taken, given, strict=True)
        )

    def _leave_out(self, until: int, given: State = ()) -> None:
        """Let the expected blocks before stage `until`, which gets `given`, pass on their input."""
        blocks = self.schedule.blocks
        for index in range(self.following, until):
            if index in blocks.starts:
                is_same = until < len(blocks.stages) and index == blocks.segment_of(until)
                self._state = given if is_same else ()
            self._first_run(index, ChainStage(blocks.stages[index].name, ()), {})
        if until < len(blocks.stages):  # what was to be there of those that are left out
            missing = blocks.stages[until].first_shared - len(self._shared)
            self._shared += [None] * missing

    def _by_plan(self, stage: BlockStage, given: State, options: OptionTable) -> State:
        schedule, index = self.schedule, self.following
        if len(schedule.plan.kept) < len(schedule.chain.stages):
            require_repeatable_step(options, self._shared, schedule.chain.device)
        if index in schedule.blocks.starts:
            self._state = given
        is_planned = stage is schedule.blocks.stages[index]
        return self._first_run(
            index, None if is_planned else ChainStage(stage.name, (stage,)), options
        )

    def _first_run(self, index: int, other: ChainStage | None, options: OptionTable) -> State:
        """Run stage `index`, or `other` in its place, after what the plan has before it."""
        plan, chain = self.schedule.plan, self.schedule.chain
        run = self._run = self._run or Run(chain, plan, self._shared, pending=-1)
        self._run_again_until_first(run)
        step = plan.forward[self._step]
        assert step.stage == index, "first runs are in order"
        self._step += 1
        self.following += 1
        if other is not None:
            _exchange(run, index, other, options)
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


def _exchange(run: Run, index: int, other: ChainStage, options: OptionTable) -> None:
    """Let another stage run: by a graph that differs in numbers only, or one that does nothing."""
    chain = run.chain
    kept = {key: option for key, option in chain.options.items() if key[0] != index}
    names = list(chain.names)
    for part in other.parts:
        if isinstance(part, BlockStage):
            own = tuple(part.shared_names)
            names[part.first_shared : part.first_shared + len(own)] = own
    run.chain = replace(
        chain,
        stages=(*chain.stages[:index], other, *chain.stages[index + 1 :]),
        effects=(*chain.effects[:index], other.effects, *chain.effects[index + 1 :]),
        names=tuple(names),
        options={**kept, **options},
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
