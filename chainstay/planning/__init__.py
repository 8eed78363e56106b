"""Plans for measured chains; see `chainstay.planning.chain` and `join`."""

from chainstay.planning.chain import solve_measured

__all__ = ["solve_measured"]
