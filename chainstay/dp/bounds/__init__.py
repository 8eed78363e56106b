"""Lower bounds on the overhead of schedules, and pruning by them.

Read `knapsack_bound`, the simplest; `lagrangian_bound` is tighter, `bound_pruning` applies it
inside compiled code, and `overhead_limits` are the limits that a search tries one after another.
`unrestricted_bound` holds for every schedule, whatever it discards.
"""
