"""A plan of transfers and the engine that makes them, for an `Executor`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chainstay.errors import HostBudgetError, PlanMismatchError, UnsupportedModelError
from chainstay.offloading import OffloadSolution
from chainstay.profiles import Link, OffloadProfile
from chainstay.runtime.transfers.copying import DOUBLE_LINK, CopyingEngine
from chainstay.runtime.transfers.cuda import CudaEngine
from chainstay.runtime.transfers.engine import Engine
from chainstay.runtime.transfers.planning import TransferPlan, plan_transfers
from chainstay.runtime.transfers.traffic import Traffic
from chainstay.timetable import Transfers

__all__ = ["Transport", "engine_for"]


@dataclass(frozen=True, slots=True)
class Transport:
    """What to move when, and what moves it.

    Attributes:
        plan: For every step.
        engine: Shared by all steps.
    """

    plan: TransferPlan
    engine: Engine

    @classmethod
    def of(cls, solution: OffloadSolution, profile: OffloadProfile, engine: Engine) -> Transport:
        """The transfers of `solution` for a chain that costs `profile`.

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
        plan = plan_transfers(solution.schedule, profile, solution.budget)
        limit = engine.pool.limit
        if limit is not None and plan.host_bytes > limit:
            raise HostBudgetError(budget=limit, required=plan.host_bytes, is_least=True)
        return cls(plan, engine)

    def start(self) -> Traffic:
        """For one step."""
        return Traffic(self.plan, self.engine)


def engine_for(
    device: torch.device, *, link: Link | None = None, host_budget: int | None = None
) -> Engine:
    """What moves bytes between `device` and the host.

    Args:
        device: A CUDA device; for the CPU, a double that copies at the pace of `link`.
        link: Which the double pretends to be.
        host_budget: Bytes of host memory for what is away; ``None`` for no limit.

    Raises:
        UnsupportedModelError: Another kind of device.
    """
    if device.type == "cuda":
        return CudaEngine(device, host_budget=host_budget)
    if device.type == "cpu":
        return CopyingEngine(link or DOUBLE_LINK, host_budget=host_budget)
    raise UnsupportedModelError(
        f"nothing is offloaded from a {device.type!r} device; move the model and the sample to a "
        "CUDA device, or to the CPU to try it"
    )
