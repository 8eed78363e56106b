"""The one call, `fit`: extract, measure, solve, execute.

=========  ============================================================
`front`    `fit` and `unfit`, and what they refuse
`planner`  a plan for calls like a sample
`budgets`  what a budget is, and how many bytes it means
=========  ============================================================
"""

from chainstay.fitting.budgets import Budget
from chainstay.fitting.front import fit, unfit

__all__ = ["Budget", "fit", "unfit"]
