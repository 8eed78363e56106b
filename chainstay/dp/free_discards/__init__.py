"""Dynamic program for free discards: saved data may stay when the input they came from is dropped.

Read `solver` (the recurrence), then `kernels`; `sizes` holds the chain as arrays, and
`lagrangian_bound` the lower bound that prunes the search.
"""
