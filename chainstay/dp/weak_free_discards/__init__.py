"""Dynamic program for weakly persistent schedules with free discards, for short chains.

Read `solver` (the recurrence), then `kernels`.
"""
