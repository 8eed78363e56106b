"""Dynamic programs for joins: several chains whose outputs meet.

`method` chooses between `slots`, the exact program of [BHPS20] for joins of equal steps, and
`canonical` (its loops in `kernels`, its arrays in `sizes`) for all others. `lower_bound` is a bound
for joins of any size.
"""

from chainstay.dp.join.lower_bound import waterfilling_bound
from chainstay.dp.join.method import claim_join, least_join
from chainstay.dp.join.slots import join_curve

__all__ = ["claim_join", "join_curve", "least_join", "waterfilling_bound"]
