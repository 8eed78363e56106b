"""A join with a plan: from the branches' inputs to the model's output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from typing import Any

from chainstay.profiles import JoinProfile
from chainstay.runtime.execute.liveness import ExecutionPlan, Shape, Step, plan_execution
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.execute.recompute import Run, Stretch
from chainstay.runtime.joins.backward_order import now, reorder
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.joins.staged_join import StagedJoin, with_join
from chainstay.runtime.options.table import OptionTable, require_repeatable_step, used_options
from chainstay.runtime.stage.states import State, cut
from chainstay.schedule import Schedule


def shape_of(join: StagedJoin) -> Shape:
    """Return the number of stages in each part."""
    return Shape(len(join.chain.stages) - sum(join.lengths), join.lengths)


@dataclass(slots=True)
class _JoinRun(Run):
    """One training step's run of a join's plan: a `Run` in which branches meet.

    First runs build an ordinary autograd graph in the order of plain training. Backwards come in
    the order of the plan (see `backward_order`).

    Attributes:
        inputs: How many tensors each branch's first state has.
        ranges: Numbers of the nodes of first runs, where backwards come in another order than
            in plain training.
    """

    inputs: tuple[int, ...] = ()
    ranges: dict[int, range] = field(default_factory=dict)

    def forward(self, state: State, steps: Iterable[Step | Stretch] | None = None) -> State:
        """The last state, from the first states of all branches in one; see `Run`."""
        assert steps is None, "stages of joins run one by one"
        shape = self.plan.shape
        starts = accumulate(shape.lengths[:-1], initial=0)
        states = dict(zip(starts, cut(state, self.inputs), strict=True))  # that stages still read
        for step in self.plan.forward:
            if step.is_first:
                read = chain.from_iterable(map(states.pop, shape.inputs(step.stage)))
                states[shape.output(step.stage)] = self.first_run(step, tuple(read))
            else:
                self.run_again(step)
        state = tuple(chain.from_iterable(states.values()))  # without a tail, of all branches
        if not self.plan.is_plain_order:
            reorder(state, [self.ranges[stage] for stage in self.plan.backward])
            self.ranges.clear()
        return state

    def first_run(self, step: Step, state: State) -> State:
        """The next state, and numbers of the nodes that made it; see `Run`."""
        if self.plan.is_plain_order:
            return Run.first_run(self, step, state)
        start = now()
        output = Run.first_run(self, step, state)
        self.ranges[step.stage] = range(start, now())
        return output


class JoinExecutor:
    """Runs a join by a schedule; what comes out hangs on an ordinary autograd graph.

    Attributes:
        chain: The stages, branch by branch, with the options that the schedule uses.

    Raises:
        InvalidScheduleError: This runtime cannot run the schedule.
        PlanMismatchError: It keeps a stage under an option that the stage does not have.
    """

    transfers: None = None  # joins move nothing

    def __init__(self, join: StagedJoin, schedule: Schedule) -> None:
        self._join = join
        self._inputs = tuple(map(len, join.join.given))
        chain, shape = join.chain, shape_of(join)
        used = used_options(chain.options, schedule, chain.stages, shape.position)
        self.chain = replace(chain, options=used)
        self.plan: ExecutionPlan = plan_execution(schedule, shape)

    def for_join(self, join: GraphJoin, inputs: Sequence[Any]) -> JoinExecutor | None:
        """The same schedule for a join with other numbers; ``None`` if its options do not fit."""
        staged = with_join(replace(self._join, chain=self.chain), join, inputs)
        if staged is None:
            return None
        alike = copy(self)
        vars(alike).update(_join=staged, chain=staged.chain)
        return alike

    def __call__(self, given: State, shared: Sequence[Any]) -> State:
        """Return the last state, from the first states of all branches in one."""
        chain = self.chain
        require_repeatable_step(chain.options, shared, chain.device)
        run = _JoinRun(
            chain=chain,
            plan=self.plan,
            shared=shared,
            pending=len(chain.stages) - 1,
            widths=self._join.join.widths,
            inputs=self._inputs,
        )
        return run.forward(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJoin(Planned):
    """A model's forward by a plan for its branches and their tail, with the costs of these."""

    graph: GraphJoin
    executor: JoinExecutor
    profile: JoinProfile

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Return the outputs of the graph."""
        given, shared = self.graph.begin(inputs)
        return self.graph.finish(self.executor(given, shared), shared)

    @property
    def options(self) -> OptionTable:
        """See `Planned`."""
        return self.executor.chain.options

    def for_graph(self, graph: GraphJoin, inputs: Sequence[Any]) -> PlannedJoin | None:
        """The plan for a graph with other numbers; ``None`` if its options do not fit these."""
        executor = self.executor.for_join(graph, inputs)
        return None if executor is None else replace(self, graph=graph, executor=executor)
