"""The front door of the solvers: choose a method, ask it, certify its answer."""

from chainstay.solve.chain import Auto, budget_bytes, solve_chain

__all__ = ["Auto", "budget_bytes", "solve_chain"]
