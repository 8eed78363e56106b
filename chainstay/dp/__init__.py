"""Exact dynamic programs: read `recursion` and `table`; all else is speed, or a wider problem.

1. `recursion` states Theorem 4.8 of [BEHJS24], `table` fills it in on a grid, as in a textbook.
2. `method` is `DP`, the front of all programs for chains; `chain` is the same recursion fast and
   exact in bytes, by step functions of memory (`step_functions`), pruned by `bounds`.
3. `weak` and `free_discards` solve wider families; `revolve` is the closed form for equal stages.
4. `join`, `offload` and `hybrid` solve the other problems.
5. `jit` compiles kernels where that is worth the wait.
"""

from chainstay.dp.bounds.unrestricted_bound import unrestricted_bound
from chainstay.dp.method import DP, BudgetCurve, least_budget

__all__ = ["DP", "BudgetCurve", "least_budget", "unrestricted_bound"]
