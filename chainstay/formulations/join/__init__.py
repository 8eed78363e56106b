"""Integer programs for joins: by phases, and, for joins of equal steps, by assignment of cuts.

`slot_formulation`, `byte_formulation` and `cut_assignment` are stated once for both solvers
(`chainstay.formulations.integer_program`). `MIP` and `CPSAT` take joins, too
(`chainstay.solve_join`); `AssignCuts` is a further method.
"""

from chainstay.formulations.join.claims import AssignCuts

__all__ = ["AssignCuts"]
