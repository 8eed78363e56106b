"""Plans of measured chains that only offload, as the runtime carries them out.

The solver counts memory item by item and knows no time but that of stages and of the link. The
runtime counts its own bytes; and what moves costs the thread that computes some time, too.
"""

from __future__ import annotations

from dataclasses import replace

from chainstay.offloading import OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime.items import movable_profile
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.transfers import program_of, transfers_of
from chainstay.solve.offload import solve_offload
from chainstay.validation.transfers import simulate_offload

__all__ = ["solve_offloaded"]


def solve_offloaded(
    measured: Measurement, budget: int, *, link: Link, method: str = "auto"
) -> OffloadSolution:
    """The fastest way to train a measured chain in a memory budget by offloading.

    Args:
        measured: What the chain costs. What several states share stays on the device.
        budget: Bytes on the device.
        link: To the host.
        method: As for `chainstay.solve_offload`, whose bound holds: it is on what the stages and
            the link take.

    Returns:
        The program list, with its time and peak in the runtime.

    Raises:
        ChainstayError: As `chainstay.solve_offload`.
        InvalidScheduleError: It does not fit when it is run.
    """
    solution = solve_offload(measured.offload_profile, budget, link=link, method=method)
    schedule = program_of(solution)
    own = movable_profile(measured.profile_for(schedule))
    replay = simulate_offload(own, solution.schedule, budget=budget, link=link)
    plan = transfers_of(schedule, measured.profile, budget, measured.overheads_for(schedule))
    return replace(
        solution,
        makespan=replay.makespan,
        timetable=replay.timetable,
        held_bytes=replay.held_bytes,
        peak_bytes=plan.peak_bytes,
    )
