"""Simulators of offloading without recomputation, and an exhaustive search of small instances.

Read `simulate` (whole transfers), then `simulate_timetable` (transfers in parts).
`partition_reductions` builds the instances that prove the problem hard.
"""
