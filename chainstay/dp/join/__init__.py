"""Exact dynamic programs for joins: one table for homogeneous ones, positions for all others."""

from chainstay.dp.join.front import claim_join
from chainstay.dp.join.slots import JoinCurve, join_curve
from chainstay.dp.join.waterfilling import waterfilling_bound

__all__ = ["JoinCurve", "claim_join", "join_curve", "waterfilling_bound"]
