"""CP-SAT programs for chains, offloading and hybrid problems: independent second statements.

`CPSAT` is the method; importing it needs no OR-Tools. For chains read `chain_variables`,
`chain_constraints`, `chain_memory` and `chain_cuts`, then `chain`; `hybrid_variables` and `hybrid`;
`offload`. Each `codec` turns schedules into values and back. Only `exactness_conditions` is shared
with the Pyomo models, so that an error in one statement shows as a difference.
"""

from chainstay.formulations.cpsat.method import CPSAT

__all__ = ["CPSAT"]
