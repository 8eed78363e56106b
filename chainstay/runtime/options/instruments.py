"""Instruments tell times and memory of stages: by clocks and the allocator, or by shapes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.memory import MemoryTrace, trace_phases
from chainstay.runtime.devices.stopwatch import run_timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruments:
    """Instruments for stages that run on tensors, or on stand-ins for these.

    Attributes:
        timed: Function that makes a call on a device, and returns its result and the time in ns.
        trace_phases: Function that runs functions one after another on a device, and returns the
            memory of each.
        has_values: Whether tensors have values. Stand-ins have none: random numbers are not drawn,
            and that a stage gives the same when it runs again is taken on trust.
    """

    timed: Callable[[Callable[[], Any], torch.device], tuple[Any, int]]
    trace_phases: Callable[[Iterable[Callable[[], None]], torch.device], Sequence[MemoryTrace]]
    has_values: bool = True


MEASURED: Final = Instruments(
    timed=lambda call, device: run_timed(call, device_at(device)), trace_phases=trace_phases
)
"""The instruments for real tensors."""
