"""A chain with a plan: from one state to the last, recomputing as the schedule says."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chainstay.errors import PlanMismatchError
from chainstay.runtime.execute.environment import Settings
from chainstay.runtime.execute.liveness import Shape, plan_execution
from chainstay.runtime.execute.recompute import Run, Stretch, stretched
from chainstay.runtime.options.table import require_repeatable_step, used_options
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.states import State
from chainstay.runtime.transfer.planned_transfers import PlannedTransfers
from chainstay.schedule import Schedule


class Executor:
    """Runs a chain by a schedule; what comes out hangs on an ordinary autograd graph.

    Args:
        chain: The chain to run, as it was measured.
        schedule: A schedule for the chain's stages and the loss, valid under free discards (so
            under any). Operations on the loss are the user's: the plan assumes that the loss
            follows the forward at once, and the loss's backward its forward.
        transfers: Makes the transfers that the schedule has, if it has any.
        shape: The shape of a join; see `JoinExecutor`.

    Attributes:
        chain: The chain, with the options that the schedule uses.
        transfers: As given.
        plan: The schedule, as what forward and backward do.

    Raises:
        PlanMismatchError: The schedule is for another number of stages, or keeps one under an
            option that it does not have.
        InvalidScheduleError: An operation lacks what it needs.
    """

    def __init__(
        self,
        chain: Chain,
        schedule: Schedule,
        transfers: PlannedTransfers | None = None,
        shape: Shape | None = None,
    ) -> None:
        own = shape or Shape(len(chain.stages))
        used = used_options(chain.options, schedule, chain.stages, own.position)
        self.chain = replace(chain, options=used)
        self.transfers = transfers
        self.plan = plan_execution(
            matching(schedule, chain) if shape is None else schedule,
            own,
            None if transfers is None else transfers.plan,
            {key: option.stages for key, option in used.items()},
        )
        self._steps = tuple(stretched(self.plan, chain.stages, chain.effects))

    def with_chain(self, chain: Chain) -> Executor:
        """The same schedule for a chain that is alike, and has the options that it uses."""
        alike = copy.copy(self)
        steps = tuple(stretched(self.plan, chain.stages, chain.effects))
        vars(alike).update(chain=chain, _steps=steps)
        return alike

    def close(self) -> None:
        """Stop transfers and let host memory go; nothing is trained after that."""
        if self.transfers is not None:
            self.transfers.engine.close()

    def __call__(self, state: State, shared: Sequence[Any] = ()) -> State:
        """Return the last state, from the first."""
        settings = None
        if not all(isinstance(step, Stretch) for step in self._steps):
            require_repeatable_step(self.chain.options, shared, self.chain.device)
            settings = Settings.now(self.chain.device)
        run = self._run(shared)
        run.settings = settings
        return run.forward(state, self._steps)

    def _run(self, shared: Sequence[Any]) -> Run:
        return Run(
            chain=self.chain,
            plan=self.plan,
            shared=shared,
            pending=len(self.chain.stages) - 1,
            transfers=None if self.transfers is None else self.transfers.start(),
        )


def matching(schedule: Schedule, chain: Chain) -> Schedule:
    """`schedule`, if it is for this chain and its loss.

    Raises:
        PlanMismatchError: It is for another number of stages.
    """
    planned = 1 + max((op.stage for op in schedule), default=-1)
    needed = len(chain.stages) + 1
    if planned != needed:
        raise PlanMismatchError(
            f"the schedule is for {planned} stages, the model has {needed} "
            f"({len(chain.stages)} and the loss); solve for the profile of this model"
        )
    return schedule
