"""Chains as integer programs: two exact models anyone can read, and two solvers for them.

`MIP` (a Pyomo model) and `CPSAT` (a constraint program) are methods for `solve_chain`;
importing them needs neither Pyomo nor a solver. `chainstay.formulations.chain.build` gives
the Pyomo model itself, `chainstay.formulations.cpsat.chain.build` the constraint program.
"""

from chainstay.formulations.cpsat import CPSAT
from chainstay.formulations.mip import MIP

__all__ = ["CPSAT", "MIP"]
