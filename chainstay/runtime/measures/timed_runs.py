"""Runs of single stages to be timed: dropped, and run again before their backward."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from chainstay.runtime.execute.environment import Traits
from chainstay.runtime.execute.liveness import ExecutionPlan, Shape, Step, plan_execution
from chainstay.runtime.execute.recompute import Run
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.schedule import Schedule

__all__ = ["DroppedRun", "dropped_run", "now"]


@dataclass(slots=True)
class DroppedRun(Run):
    """A timed run of one stage that was dropped; `again` is in ns."""

    again: int = 0

    def run_again(self, step: Step) -> None:
        """Run the stage again, and add the time it takes; see `Run`."""
        begin = now()
        Run.run_again(self, step)
        self.again += now() - begin


def dropped_run(
    stage: ChainStage, traits: Traits, device: torch.device, shared: Sequence[Any]
) -> DroppedRun:
    """One that drops what `stage` saves, and runs it again before its backward."""
    return DroppedRun((stage,), (traits,), _DROPPED, device, shared, _unnamed(shared), pending=0)


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
    plan = plan_execution(Schedule.parse("Fc0 Fa1 B1 Fa0 B0"), Shape(1))
    ((again,),) = plan.before_backward
    return replace(plan, before_backward=((replace(again, output_wanted=True),),))


_DROPPED: Final = _dropped_plan()
