"""Plans of measured chains that only offload, as the runtime carries them out.

The solver counts memory item by item and knows no time but that of stages and of the link. The
runtime counts its own bytes; and what moves costs the thread that computes some time, too.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace

from chainstay.errors import InvalidScheduleError
from chainstay.problems.offload import OffloadMethod, OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime.execute.items import TransferPlan, movable_profile
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import program_of, transfers_of
from chainstay.schedule import Item, Op, Schedule
from chainstay.solve.offload import solve_offload
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.offload.simulate import simulate_offload


def solve_offloaded(
    measured: Measurement, budget: int, *, link: Link, method: OffloadMethod | str
) -> OffloadSolution:
    """Return the fastest way to train a measured chain in a memory budget by offloading.

    Args:
        measured: The chain's costs. Tensors that several states share stay on the device.
        budget: Bytes on the device.
        link: The link to the host.
        method: The method, as for `chainstay.solve_offload`, whose bound holds: it is on what the
            stages and the link take.

    Returns:
        The program list, with its time and peak in the runtime.

    Raises:
        ChainstayError: Any that `chainstay.solve_offload` raises.
        InvalidScheduleError: It does not fit when it is run.
    """
    solution = solve_offload(measured.offload_profile, budget, link=link, method=method)
    replay, plan = _as_it_runs(measured, solution)
    needed = tuple(op for op in solution.schedule if not _is_idle(op, plan.moved))
    fewer = replace(solution, schedule=Schedule(needed))
    with suppress(InvalidScheduleError):  # where overheads of each operation decide, say
        found = _as_it_runs(measured, fewer)
        if found[0].makespan <= replay.makespan:
            solution, (replay, plan) = fewer, found
    return replace(
        solution,
        makespan=replay.makespan,
        timetable=replay.timetable,
        host_bytes=replay.host_bytes,
        peak_bytes=plan.peak_bytes,
    )


def _is_idle(op: Op, moved: Collection[Item]) -> bool:
    """Whether it moves what the runtime leaves where it is, since nobody needs the memory."""
    return op.kind.is_transfer and Item("b", op.stage - 1) not in moved


def _as_it_runs(
    measured: Measurement, solution: OffloadSolution
) -> tuple[TransferReplay, TransferPlan]:
    """Return a solution's replay, with what moving takes the computing thread, and its transfers.

    Raises:
        InvalidScheduleError: It does not fit when it is run.
    """
    schedule, budget = program_of(solution), solution.budget
    own = movable_profile(measured.profile_for(schedule))
    return (
        simulate_offload(own, solution.schedule, budget=budget, link=solution.link),
        transfers_of(schedule, measured.profile, budget, measured.overheads_for(schedule)),
    )
