"""Recomputing and offloading together: POFO, corrected, exactly and on slots."""

from chainstay.dp.hybrid.exact import Amounts, ExactHybrid
from chainstay.dp.hybrid.slots import SlotPlan, bracket, good_plans
from chainstay.dp.hybrid.unrestricted import hybrid_bound

__all__ = ["Amounts", "ExactHybrid", "SlotPlan", "bracket", "good_plans", "hybrid_bound"]
