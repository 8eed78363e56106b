"""The front door of the solvers: choose a method, ask it, certify its answer."""

from chainstay.solve.chain import Auto, budget_bytes, method_of, solve_chain
from chainstay.solve.join import JoinMethod, solve_join

__all__ = ["Auto", "JoinMethod", "budget_bytes", "method_of", "solve_chain", "solve_join"]
