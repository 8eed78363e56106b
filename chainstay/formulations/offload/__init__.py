"""Pyomo models of offloading whole activations without recomputation.

`formulation` states transfers that are never interrupted, `interruptible` transfers that are;
`variables` holds what both share, and `claims` solves either of them.
"""
