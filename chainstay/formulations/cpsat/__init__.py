"""Programs for CP-SAT alone: offloading, and recomputing with offloading.

Read `offload`, or `hybrid_variables` and `hybrid`; `hybrid_codec` turns schedules into values and
back. Chains and joins are stated once for both solvers (`chainstay.formulations.integer_program`).
"""
