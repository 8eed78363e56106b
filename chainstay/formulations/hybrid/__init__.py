"""Pyomo model of recomputing and offloading with whole transfers, for very short chains.

Read `variables` (what a variable means), then `constraints` and `memory_constraints`; `formulation`
builds the model. `truncation` says how much of a problem one model states; `incremental` solves
larger and larger models until the bound proves the answer.
"""
