"""Integer programs for each problem, for two solvers: HiGHS through Pyomo, and CP-SAT.

`integer_program` is the language in which `chain` and `join` state variables and constraints once;
`program_by_highs` and `program_by_cpsat` solve what is stated, through `highs_backend` and
`ortools_backend`. `offload` is a Pyomo model; `cpsat`
states offloading a second time, and alone states it together with recomputing. `MIP` and `CPSAT`
are the methods, and importing them needs neither Pyomo nor a solver. The attribute `model` of what
`chain.formulation.build` returns is a Pyomo model.
"""

from chainstay.formulations.cpsat import CPSAT
from chainstay.formulations.mip import MIP

__all__ = ["CPSAT", "MIP"]
