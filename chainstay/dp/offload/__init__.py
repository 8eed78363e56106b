"""Dynamic programs for offloading without recomputation, from [BES20].

Read `fluid`, the best plan for given amounts; `subsets` is Algorithm 1 with its equations
corrected, exactly, and `slots` the same on rounded states. `methods` makes claims of them.
"""

from chainstay.dp.offload.methods import (
    Algorithm1,
    Greedy,
    fractional_optimum,
    greedy_set,
    promising_sets,
)

__all__ = ["Algorithm1", "Greedy", "fractional_optimum", "greedy_set", "promising_sets"]
