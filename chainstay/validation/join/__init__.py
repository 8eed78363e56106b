"""Simulator of joins in both memory models, and an exhaustive search of small joins.

Read `simulate` (sizes in bytes) and `slot_memory` (one slot a value); `search` explores `states`.
"""
