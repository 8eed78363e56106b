"""The functions that solve a problem: choose a method, run it, certify its answer.

Read `chain` first; `join`, `offload` and `hybrid` do the same for their problems. `budgets` and
`common` are shared; `hybrid_auto`, `hybrid_exact`, `hybrid_pofo`, `least_memory`,
`offload_heuristics` and `whole_transfers` hold methods.
"""

from chainstay.solve.budgets import budget_bytes
from chainstay.solve.chain import AutoChain, resolve_method, solve_chain
from chainstay.solve.join import solve_join

__all__ = ["AutoChain", "budget_bytes", "resolve_method", "solve_chain", "solve_join"]
