"""Plans for measured chains; see `chainstay.planning.search`."""

from chainstay.planning.search import solve_measured

__all__ = ["solve_measured"]
