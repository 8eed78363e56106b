"""Exact dynamic programs."""

from chainstay.dp.chain import DP, BudgetCurve, least_budget

__all__ = ["DP", "BudgetCurve", "least_budget"]
