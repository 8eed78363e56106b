"""Pyomo model of recomputation in a chain: the problem that `MIP` solves.

Read `records` (what may be kept), `phases` (the variables), `constraints` and `cuts`;
`formulation` builds the model and reads schedules out of it. `exactness_conditions` says for
which chains the model contains an optimum.
"""
