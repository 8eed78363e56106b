"""Stored data that goes to host memory and comes back, beside the computation.

===================  ====================================================================
`transfer_plan`      a program list as what to do before each computation, in bytes
`computations`       the program list, cut where something is computed
`engine`             what moves bytes, and what it promises: the interface of both engines
`pool`               host memory, handed out in slots, within a limit
`stream_engine`      the engine of accelerators: pinned slots, two side streams, events
`cpu_engine`         the engine of the CPU, a double of the other: two throttled threads
`movable_storage`    one storage on its way to the host and back
`step_transfers`     one training step's transfers
`planned_transfers`  a plan and its engine, for an `Executor`
`speed`              how fast a link is
===================  ====================================================================

Rules that make it right without making the host wait, in both engines:

* Device memory is allocated and released by the computing thread (on its stream) only.
* A transfer to the host waits until what it reads has been computed. What it reads is let
  go only after the computation has been told to wait for the end of the transfer.
* A transfer from the host waits until its target has been allocated, in the order of the
  computation, whose earlier users of that memory are then done. The computation waits for
  its end before it reads the target, or lets it go.
* A slot of host memory is written again only after the last transfer that reads it.
"""

from chainstay.runtime.transfer.engine import Engine
from chainstay.runtime.transfer.planned_transfers import (
    PlannedTransfers,
    engine_for,
    program_of,
    transfers_of,
)
from chainstay.runtime.transfer.speed import measure_link

__all__ = ["Engine", "PlannedTransfers", "engine_for", "measure_link", "program_of", "transfers_of"]
