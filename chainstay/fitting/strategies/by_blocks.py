"""Plans of the blocks of a model that has no full graph."""

from __future__ import annotations

from chainstay.fitting.budgets import plain_peak
from chainstay.planning import solve_measured
from chainstay.runtime.execute.block_executor import BlockSchedule, PlannedBlocks, crosses_segment
from chainstay.runtime.measures.blocks.block_costs import MeasuredBlocks
from chainstay.solution import Method, Solution


def solve_blocks(measured: MeasuredBlocks, budget: int | str, method: Method | str) -> Solution:
    """The fastest schedule of blocks that was found; arguments and errors as `solve_measured`."""
    return solve_measured(
        measured,
        budget,
        method,
        can_run=lambda schedule: not crosses_segment(measured.blocks, schedule),
    )


def planned_blocks(measured: MeasuredBlocks, solution: Solution) -> PlannedBlocks:
    """The blocks of a model by the schedule of `solution`."""
    blocks, schedule = measured.blocks, solution.schedule
    device = measured.chain.device
    return PlannedBlocks(
        schedule=BlockSchedule.from_schedule(
            blocks, measured.traits, schedule, device, measured.options
        ),
        solution=solution,
        profile=measured.profile_for(schedule),
        overheads=measured.overheads_for(schedule),
        plain_time=measured.profile.least_time,
        plain_peak=plain_peak(measured),
    )
