"""A join with a plan: from the branches' first states to the last state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any

from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.execute.liveness import Step
from chainstay.runtime.execute.recompute import Run, Stretch
from chainstay.runtime.joins.backward_order import now, reorder
from chainstay.runtime.joins.staged_join import StagedJoin
from chainstay.runtime.stage.states import State, cut
from chainstay.schedule import Schedule


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

    def forward(self, state: State, steps: Iterable[Step | Stretch]) -> State:
        """The last state, from the first states of all branches in one; see `Run`."""
        shape = self.plan.shape
        starts = accumulate(shape.lengths[:-1], initial=0)
        states = dict(zip(starts, cut(state, self.inputs), strict=True))  # that stages still read
        for step in steps:
            assert isinstance(step, Step), "stages of joins run one by one"
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


class JoinExecutor(Executor):
    """Runs a join by a schedule; its first and last states are those of all branches in one.

    Raises:
        InvalidScheduleError: This runtime cannot run the schedule.
        PlanMismatchError: It keeps a stage under an option that the stage does not have.
    """

    def __init__(self, join: StagedJoin, schedule: Schedule) -> None:
        super().__init__(join.chain, schedule, shape=join.shape)
        self._inputs, self._widths = tuple(map(len, join.graph.given)), join.graph.widths

    def _run(self, shared: Sequence[Any]) -> Run:
        return _JoinRun(
            chain=self.chain,
            plan=self.plan,
            shared=shared,
            pending=len(self.chain.stages) - 1,
            widths=self._widths,
            inputs=self._inputs,
        )
