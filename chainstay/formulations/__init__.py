"""Integer programs for each problem, for two solvers: HiGHS through Pyomo, and CP-SAT.

`integer_program` is the language in which `chain` and `join` state variables and constraints once;
`program_by_highs` and `program_by_cpsat` solve what is stated, through `highs_backend` and
`ortools_backend`. `offload` has Pyomo models; `cpsat` states offloading a second time, and alone
states it together with recomputing. `MIP` and `CPSAT` (`methods`) need neither Pyomo nor a solver
to be imported. The attribute `model` of what `chain.formulation.build` returns is a Pyomo model.
"""

from chainstay.formulations.methods import CPSAT, MIP

__all__ = ["CPSAT", "MIP"]
