"""Joins as integer programs: by phases, and, for homogeneous ones, by cuts.

`MIP` and `CPSAT` take joins, too (`chainstay.solve_join`); `AssignCuts` is a further method.
`chainstay.formulations.join.claims.build` gives a program to read, extend or hand to any
solver (`chainstay.formulations.join.by_highs.pyomo_model`).
"""

from chainstay.formulations.join.method import AssignCuts

__all__ = ["AssignCuts"]
