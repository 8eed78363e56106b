"""Dynamic program for weakly persistent schedules: a checkpoint may be moved before its backward.

Read `solver` (the recurrence), then `moving_checkpoint` and `kernels`.
"""
