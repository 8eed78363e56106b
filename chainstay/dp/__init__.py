"""Exact dynamic programs.

Read `table` first: the textbook table of the recurrence in `recursion`; all else is speed, or a
wider problem. `method` is `DP`, the front of the programs for chains: `chain` (fast and exact in
bytes), `weak`, `free_discards` and `weak_free_discards`, pruned by `bounds`. `revolve` is the
closed form for equal stages; `join`, `offload` and `hybrid` solve the other problems.
"""

from chainstay.dp.bounds.unrestricted_bound import unrestricted_bound
from chainstay.dp.method import DP, BudgetCurve, least_budget

__all__ = ["DP", "BudgetCurve", "least_budget", "unrestricted_bound"]
