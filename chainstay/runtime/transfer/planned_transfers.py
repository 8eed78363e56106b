"""A plan of transfers and the engine that makes them, for an `Executor`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import torch

from chainstay.errors import (
    HostBudgetError,
    InvalidScheduleError,
    PlanMismatchError,
    UnsupportedModelError,
)
from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import ChainProfile, Link
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.execute.items import (
    TransferPlan,
    as_chain_schedule,
    movable_chain,
    standing_bytes,
)
from chainstay.runtime.transfer.cpu_engine import DOUBLE_LINK, CopyingEngine
from chainstay.runtime.transfer.engine import Engine
from chainstay.runtime.transfer.step_transfers import StepTransfers
from chainstay.runtime.transfer.stream_engine import StreamEngine
from chainstay.runtime.transfer.transfer_plan import plan_transfers
from chainstay.schedule import Schedule
from chainstay.timetable import Transfers

_SPARE: Final = 1000
"""The part of a budget that is left for small storages; statistics of norms take less."""


@dataclass(frozen=True, slots=True)
class PlannedTransfers:
    """The transfers of a plan, and the engine that makes them.

    Attributes:
        schedule: The schedule with its transfers, in the names of its chain.
        plan: What they mean for every step.
        engine: Shared by all steps.
        spare_bytes: What the budget has left beside the plan, for small storages that stay.
    """

    schedule: Schedule
    plan: TransferPlan
    engine: Engine
    spare_bytes: int = 0

    @classmethod
    def of(
        cls,
        solution: OffloadSolution,
        profile: ChainProfile,
        overheads: Sequence[int],
        engine: Engine,
    ) -> PlannedTransfers:
        """The transfers of `solution`.

        `profile` is what all of the chain costs, see `movable_chain`; `overheads` are the bytes
        that each operation of `program_of(solution)` needs besides what is stored.

        Raises:
            PlanMismatchError: It moves parts of activations, or moves them in parts.
            InvalidScheduleError: It does not fit in its budget when run.
            HostBudgetError: What is away at once needs more than the engine's host memory.
        """
        if solution.transfers is not Transfers.INTEGRAL:
            raise PlanMismatchError(
                f"the plan has {solution.transfers} transfers, and this runtime moves whole "
                "activations at once; solve with transfers='integral'"
            )
        schedule, limit = program_of(solution), engine.pool.limit

        def leaving(spare: int) -> PlannedTransfers:
            plan = transfers_of(schedule, profile, solution.budget - spare, overheads)
            if limit is not None and plan.host_bytes > limit:
                raise HostBudgetError(budget=limit, required=plan.host_bytes, is_least=True)
            return cls(schedule, plan, engine, spare)

        if engine.least_bytes:
            with suppress(InvalidScheduleError, HostBudgetError):
                return leaving(solution.budget // _SPARE)
        return leaving(0)

    def start(self) -> StepTransfers:
        """Return the transfers of one step."""
        return StepTransfers(self.engine, spare_bytes=self.spare_bytes)


def transfers_of(
    schedule: Schedule, profile: ChainProfile, budget: int, overheads: Sequence[int]
) -> TransferPlan:
    """Return the transfers of a program list; `PlannedTransfers.of` has arguments and errors."""
    standing = standing_bytes(profile, schedule)
    return plan_transfers(
        schedule,
        movable_chain(profile),
        budget,
        overheads=[sum(both) for both in zip(overheads, standing, strict=True)],
    )


def program_of(solution: OffloadSolution) -> Schedule:
    """Return the program list in the chain's names; offloading alone numbers otherwise."""
    if isinstance(solution, HybridSolution):
        return solution.schedule
    return as_chain_schedule(solution.schedule)


def engine_for(
    device: torch.device,
    *,
    link: Link | None = None,
    host_budget: int | None = None,
    beside: Engine | None = None,
) -> Engine:
    """Return the engine that moves bytes between `device` and the host.

    For the CPU, that is a double that copies at the pace of `link`. What is away takes at most
    `host_budget` bytes of host memory, ``None`` for no limit; an engine `beside` shares it.

    Raises:
        UnsupportedModelError: Another kind of device.
    """
    pool = None if beside is None else beside.pool
    if device.type == "cpu":
        return CopyingEngine(link or DOUBLE_LINK, host_budget=host_budget, beside=pool)
    if accelerator_at(device) is not None:
        return StreamEngine(device, host_budget=host_budget, beside=pool)
    raise UnsupportedModelError(
        f"nothing is offloaded from a {device.type!r} device; move the model and the sample to an "
        "accelerator such as CUDA, or to the CPU to try it"
    )
