"""A model's forward by a plan for its blocks: the model calls them, the plan says what stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.binding import version_of
from chainstay.runtime.chain import Chain
from chainstay.runtime.environment import Traits, alone
from chainstay.runtime.extraction.blocks import BlockStage, InterceptedChain
from chainstay.runtime.extraction.driving import OnCall, drive
from chainstay.runtime.liveness import ExecutionPlan, Step, plan_execution
from chainstay.runtime.recompute import Run, Versioned
from chainstay.runtime.stages import ChainStage, Place
from chainstay.runtime.states import State, detached
from chainstay.schedule import Schedule

__all__ = ["BlockExecutor", "strays"]


class Observed(Protocol):
    """What running blocks needs to know of them; a `Measurement` knows more."""

    @property
    def chain(self) -> Chain:
        """The stages."""
        ...

    @property
    def traits(self) -> tuple[Traits, ...]:
        """Of each stage."""
        ...


class BlockExecutor:
    """Runs a model whose blocks go by a schedule.

    Args:
        chain: The blocks.
        measured: What they are like.
        schedule: For the blocks and the loss, valid under free discards, `strays` or not.

    Raises:
        PlanMismatchError: The schedule strays; it cannot be run.
        InvalidScheduleError: An operation lacks what it needs.
    """

    def __init__(self, chain: InterceptedChain, measured: Observed, schedule: Schedule) -> None:
        if strays(chain, schedule):
            raise PlanMismatchError(
                "the schedule makes again what lies between the model's blocks; use method='dp'"
            )
        self._chain = chain
        self._traits = measured.traits
        self._device = measured.chain.device
        self._plan = plan_execution(schedule, len(chain.stages))

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """What the schedule speaks about, the loss excluded."""
        return tuple(ChainStage(each.name, (each,)) for each in self._chain.stages)

    def __call__(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:  # noqa: ANN401  # the model's own
        """What ``forward(*args, **kwargs)`` gives, the model's own plain forward.

        Raises:
            PlanMismatchError: It does not call the blocks as it did on the sample.
        """
        parts = tuple(map(_FirstDirectly, self._chain.stages))
        run = Run(
            stages=tuple(ChainStage(part.stage.name, (part,)) for part in parts),
            traits=self._traits,
            plan=self._plan,
            device=self._device,
            shared=Versioned.of(()),
            pending=len(parts) - 1,
        )
        trip = _Trip(self._chain, self._plan, run, parts)
        with (
            alone(*self._traits),  # what is around the blocks may draw random numbers, too
            drive(self._chain.stages, self._chain.starts, trip.first_run),
        ):
            output = forward(*args, **kwargs)
        trip.run_again_until_first()
        return output


def strays(chain: InterceptedChain, schedule: Schedule) -> bool:
    """Whether `schedule` does what cannot be done, as the model is between two blocks.

    The input of a segment cannot be made again, neither for a forward nor for a backward; what
    runs again runs for a backward of its own segment. A block that changes its input does so
    before anyone could tell what of its saved data lies there.
    """
    plan = plan_execution(schedule, len(chain.stages))
    present = 0
    for step in plan.forward:
        present = max(present, step.stage)
        if _strays(chain, step, present):
            return True
    return any(
        _strays(chain, step, stage)
        for stage, steps in enumerate(plan.before_backward)
        for step in steps
    )


def _strays(chain: InterceptedChain, step: Step, present: int) -> bool:
    starts = frozenset(chain.starts)
    remakes = not step.is_first and step.output_wanted and step.stage + 1 in starts
    loses = step.releases_input and (
        step.stage in starts or chain.stages[step.stage].is_input_changed
    )
    return remakes or loses or chain.segment_of(step.stage) != chain.segment_of(present)


@dataclass(slots=True, eq=False)
class _FirstDirectly:
    """A stage whose first run is the model's own call; a `stages.Part`.

    Attributes:
        stage: The block.
        first_shared: Position of its segment's first shared value among all of them.
        call: The model's own, while it lasts.
        result: What that returned.
    """

    stage: BlockStage
    first_shared: int = 0
    call: OnCall | None = None
    result: object = None

    def __call__(self, state: State, shared: State) -> State:
        if self.call is None:
            return self.stage(state, shared[self.first_shared :])
        self.result = self.call()
        return self.stage.next_state(self.result, state)

    def modules(self) -> Iterator[nn.Module]:
        return self.stage.modules()

    def places(self) -> Iterator[Place]:
        return self.stage.places()


@dataclass(slots=True)
class _Trip:
    """One forward of the model, from block to block."""

    chain: InterceptedChain
    plan: ExecutionPlan
    run: Run
    parts: tuple[_FirstDirectly, ...]
    following: int = 0
    first_shared: int = field(default=0)

    def first_run(
        self, index: int, call: OnCall, state: State, shared: State
    ) -> tuple[object, State]:
        """What the plan has up to the first run of block `index`, and that."""
        self.run_again_until_first()
        step = self.plan.forward[self.following]
        assert step.stage == index, "first runs are in order"
        self.following += 1
        self._share(index, shared)
        part = self.parts[index]
        part.first_shared, part.call = self.first_shared, call
        changed = part.stage.is_input_changed and step.input_wanted
        clone = tuple(each.clone() for each in detached(state)) if changed else None
        try:
            after = self.run.first_run(step, state)
            if clone is not None:
                kept = tuple(
                    each.requires_grad_(old.requires_grad)
                    for each, old in zip((each.detach() for each in clone), state, strict=True)
                )
                self.run.checkpoints[index] = Versioned.of(kept)
            return part.result, after
        finally:
            part.call = part.result = None

    def run_again_until_first(self) -> None:
        """What the plan has before the next first run, or before the loss."""
        while self.following < len(self.plan.forward):
            step = self.plan.forward[self.following]
            if step.is_first:
                return
            self.following += 1
            self.run.run_again(step)

    def _share(self, index: int, shared: State) -> None:
        """Let the run know what the segment shares by now."""
        known = self.run.shared
        if index in self.chain.starts:
            self.first_shared = len(known.state)
        fresh = shared[len(known.state) - self.first_shared :]
        if fresh:
            self.run.shared = Versioned(
                (*known.state, *fresh), (*known.versions, *map(version_of, fresh))
            )
