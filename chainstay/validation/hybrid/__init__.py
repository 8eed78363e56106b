"""Simulators of recomputation with transfers, and an exhaustive search of tiny instances.

Read `data_items` (what operations read, make and free), then `simulate`; `fractional_transfers`
evaluates a plan whose items may move in parts.
"""
