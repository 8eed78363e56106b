"""Training by a schedule: capture a model, measure it, run it within the planned memory.

==========  ======================================================
`devices`   what torch does differently by device
`capture`   a model's forward as a graph, and the graph as stages
`stage`     a chain of stages
`measures`  what stages take
`execute`   a plan runs
`joins`     models whose branches meet
`transfer`  saved data that goes to host memory and comes back
`estimate`  costs of a model that is too large to be measured here
==========  ======================================================

Read them in this order.
"""

from chainstay.runtime.devices.memory import MemoryTrace, trace_memory
from chainstay.runtime.measures.measured_chain import MeasuredChain, PlannedChain, measure

__all__ = ["MeasuredChain", "MemoryTrace", "PlannedChain", "measure", "trace_memory"]
