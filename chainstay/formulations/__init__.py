"""Integer programs for each problem, for two solvers: Pyomo models for HiGHS, and CP-SAT programs.

Each folder (`chain`, `join`, `offload`) states variables, then constraints, and decodes a schedule;
`cpsat` states chains and offloading a second time, and alone states their combination. `MIP` and
`CPSAT` are the methods, and importing them needs neither Pyomo nor a solver.
`chain.formulation.build` returns a Pyomo model.
"""

from chainstay.formulations.cpsat import CPSAT
from chainstay.formulations.mip import MIP

__all__ = ["CPSAT", "MIP"]
