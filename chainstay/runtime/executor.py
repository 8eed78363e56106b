"""A chain with a plan: from one state to the last, recomputing as the schedule says."""

from __future__ import annotations

from chainstay.errors import PlanMismatchError
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.environment import Traits
from chainstay.runtime.liveness import plan_execution
from chainstay.runtime.mode import Mode
from chainstay.runtime.recompute import Run, Versioned, stretched
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State
from chainstay.runtime.transfers.transport import Transport
from chainstay.schedule import Schedule

__all__ = ["Executor", "matching"]


class Executor:
    """Runs a chain by a schedule; what comes out hangs on an ordinary autograd graph.

    It must not be traced by ``torch.compile``; those who call it see to that.

    Args:
        chain: What to run.
        traits: Of each stage, as found when it was measured.
        schedule: For the chain's stages and the loss, valid under free discards (so under
            any). Operations on the loss are the user's: the plan assumes that the loss
            follows the forward at once, and the loss's backward its forward.
        transport: Makes the transfers that the schedule has, if it has any.

    Raises:
        PlanMismatchError: The schedule is for another number of stages.
        InvalidScheduleError: An operation lacks what it needs.
    """

    def __init__(
        self,
        chain: Chain,
        traits: tuple[Traits, ...],
        schedule: Schedule,
        transport: Transport | None = None,
    ) -> None:
        self._chain = chain
        self._modules = tuple(module for _, module in chain.modules)
        self._traits = traits
        self._transport = transport
        transfers = None if transport is None else transport.plan
        self._plan = plan_execution(matching(schedule, chain), len(chain.stages), transfers)
        self._steps = tuple(stretched(self._plan, chain.stages, traits))

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """What the schedule speaks about, the loss excluded."""
        return self._chain.stages

    def close(self) -> None:
        """Stop transfers and let host memory go; nothing is trained after that."""
        if self._transport is not None:
            self._transport.engine.close()

    def __call__(self, state: State, shared: State = ()) -> State:
        """The last state.

        Raises:
            PlanMismatchError: Input or mode are not like those that the plan was measured
                with, so that its memory is not known.
        """
        chain = self._chain
        self._require_as_measured(state)
        run = Run(
            stages=chain.stages,
            traits=self._traits,
            plan=self._plan,
            device=chain.device,
            shared=Versioned.of(shared),
            pending=len(chain.stages) - 1,
            traffic=None if self._transport is None else self._transport.start(),
        )
        return run.forward(state, self._steps)

    def _require_as_measured(self, state: State) -> None:
        chain = self._chain
        for measured, tensor in zip(chain.layouts, state, strict=True):
            layout = TensorLayout.of(tensor)
            if layout != measured:
                raise PlanMismatchError(
                    f"the plan was measured for an input {measured}, got {layout}; "
                    "measure and plan again with such a sample, or run it under torch.no_grad()"
                )
            if tensor.is_inference():
                raise PlanMismatchError(
                    "the input was made under torch.inference_mode(), so that autograd cannot "
                    "save it; pass a clone of it made outside"
                )
        if not chain.mode.is_now(self._modules, chain.device):
            mode = Mode.now(chain.modules, chain.device)
            raise PlanMismatchError(
                f"the plan was measured with {chain.mode.difference(mode, chain.modules)}; measure "
                "and plan again in this mode, or run under torch.no_grad()"
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
