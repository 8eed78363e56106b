"""Integer programs for joins: by phases, and, for joins of equal steps, by assignment of cuts.

`integer_program` is the language in which `slot_formulation`, `byte_formulation` and
`cut_assignment` are stated once; `highs_backend` and `cpsat_backend` solve it. `MIP` and `CPSAT`
take joins, too (`chainstay.solve_join`); `AssignCuts` is a further method.
"""

from chainstay.formulations.join.claims import AssignCuts

__all__ = ["AssignCuts"]
