"""Lower bounds on the overhead of schedules, and pruning by them.

Read `knapsack_bound`, the simplest; `lagrangian_bound` is tighter; `bound_pruning` applies either.
`unrestricted_bound` holds for every schedule, whatever it discards.
"""
