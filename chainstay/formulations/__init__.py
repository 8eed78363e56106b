"""Chains as mixed-integer programs: an exact model anyone can read, write out and solve.

`MIP` is the method for `solve_chain`; importing it needs neither Pyomo nor a solver.
`chainstay.formulations.chain.build` gives the Pyomo model itself.
"""

from chainstay.formulations.mip import MIP

__all__ = ["MIP"]
