"""Dynamic program for weakly persistent schedules: a checkpoint may be moved before its backward.

Read `solver` (the recurrence), then `kernels`, with `moving_checkpoint` for where a checkpoint may
have moved and `move_bound` to prune.
"""
