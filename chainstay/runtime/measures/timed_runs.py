"""Runs of single stages to be timed: dropped and run again, or sent away and fetched back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from chainstay.runtime.execute.environment import Traits
from chainstay.runtime.execute.items import Act, Action, Item, TransferPlan
from chainstay.runtime.execute.liveness import ExecutionPlan, Step, plan_execution
from chainstay.runtime.execute.recompute import Run
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State
from chainstay.runtime.transfer.cells import Cell
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from chainstay.runtime.transfer.traffic import Traffic
from chainstay.schedule import Schedule

__all__ = ["DroppedRun", "MovedRun", "dropped_run", "moved_run", "now"]


@dataclass(slots=True)
class DroppedRun(Run):
    """A timed run of one stage that was dropped; `again` is in ns."""

    again: int = 0

    def run_again(self, step: Step) -> None:
        """Run the stage again, and add the time it takes; see `Run`."""
        begin = now()
        Run.run_again(self, step)
        self.again += now() - begin


@dataclass(slots=True)
class MovedRun(Run):
    """A timed run of one stage whose saved data an engine of the CPU moves.

    Attributes:
        stalled: The time in ns by the clock while what it saved was on its way.
        output: Its cells, which the next stage would hold.
    """

    stalled: int = 0
    output: list[Cell] = field(default_factory=list)

    def first_run(self, step: Step, state: State) -> State:
        """Run the stage, and keep its output's cells; see `Run`."""
        result = Run.first_run(self, step, state)
        self.output = self.held
        return result

    def prepare_backward(self, stage: int) -> None:
        """Prepare the backward; what is fetched has arrived behind it; see `Run`."""
        if self.pending < stage:
            return
        assert self.traffic is not None, "it moves something"
        engine = self.traffic.engine
        assert isinstance(engine, CopyingEngine), "others let no thread wait"
        before = engine.stalled
        Run.prepare_backward(self, stage)
        for parcel in self.traffic.parcels.values():
            for cell in (reference() for reference in parcel):
                if cell is not None:
                    cell.arrived()
        self.output = []
        if _counts_waiting():
            self.stalled += int((engine.stalled - before) * 1e9)


def dropped_run(
    stage: ChainStage, traits: Traits, device: torch.device, shared: Sequence[Any]
) -> DroppedRun:
    """One that drops what `stage` saves, and runs it again before its backward."""
    return DroppedRun((stage,), (traits,), _DROPPED, device, shared, _unnamed(shared), pending=0)


def moved_run(
    stage: ChainStage, traits: Traits, engine: CopyingEngine, shared: Sequence[Any]
) -> MovedRun:
    """One that sends what `stage` saves away, and fetches it back before its backward."""
    traffic = Traffic(engine)
    names = _unnamed(shared)
    return MovedRun(
        (stage,), (traits,), _MOVED, engine.device, shared, names, pending=0, traffic=traffic
    )


def _unnamed(shared: Sequence[Any]) -> Sequence[str]:
    return ("an input of the model",) * len(shared)


def now() -> int:
    """Return the time in ns, by a clock of which only differences say something."""
    return time.perf_counter_ns() if _counts_waiting() else time.thread_time_ns()


def _counts_waiting() -> bool:
    # With one thread, time spent by other processes on this core does not count.
    return torch.get_num_threads() > 1


def _dropped_plan() -> ExecutionPlan:
    """One stage and a loss; when the stage runs again, the stage behind it wants its output."""
    plan = plan_execution(Schedule.parse("Fc0 Fa1 B1 Fa0 B0"), 1)
    ((again,),) = plan.before_backward
    return replace(plan, before_backward=((replace(again, output_wanted=True),),))


def _moved_plan() -> ExecutionPlan:
    """One stage and a loss; what the stage saves is away until its backward."""
    item = Item("b", 0)
    there_and_back = tuple(Action(act, item) for act in (Act.SEND, Act.RELEASE, Act.FETCH))
    transfers = TransferPlan(
        actions=((), (), (), there_and_back), moved=frozenset({item}), host_bytes=0, peak_bytes=0
    )
    return plan_execution(Schedule.parse("Fa0 Ob0 Fa1 B1 Pb0 B0"), 1, transfers)


_DROPPED: Final = _dropped_plan()
_MOVED: Final = _moved_plan()
