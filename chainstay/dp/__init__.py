"""Exact dynamic programs."""

from chainstay.dp.chain import DP, BudgetCurve, least_budget
from chainstay.dp.unrestricted import unrestricted_bound

__all__ = ["DP", "BudgetCurve", "least_budget", "unrestricted_bound"]
