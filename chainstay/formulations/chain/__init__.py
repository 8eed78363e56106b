"""Integer program of recomputation in a chain: the problem that `MIP` and `CPSAT` solve.

Read `chainstay.formulations.records` (what may be kept), `phases` (the variables), `constraints`
and `cuts`; `formulation` builds the program and reads schedules out of it. `exactness_conditions`
says for which chains the program contains an optimum.
"""
