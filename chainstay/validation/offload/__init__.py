"""Simulators of offloading without recomputation, and an exhaustive search of small instances.

Read `simulate` (whole transfers), then `simulate_timetable` (transfers in parts).
"""
