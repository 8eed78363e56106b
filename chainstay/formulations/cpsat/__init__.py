"""CP-SAT, and the programs for it alone: offloading, and recomputing with offloading.

`CPSAT` is the method; importing it needs no OR-Tools. Read `offload`, or `hybrid_variables` and
`hybrid`; `hybrid_codec` turns schedules into values and back. Chains and joins are stated once for
both solvers (`chainstay.formulations.integer_program`).
"""

from chainstay.formulations.cpsat.method import CPSAT

__all__ = ["CPSAT"]
