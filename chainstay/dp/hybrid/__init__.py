"""POFO, the program for recomputing and offloading together: exactly and on slots.

Read `exact`, the recurrences of the paper for short chains. `slots` solves long chains by
`label_setting` on the amounts of `discretisation`, with `recompute_fronts` for what runs twice
and `completion_bounds` to prune, on a `slot_chain`; `unrestricted_bound` holds for every schedule.
"""

from chainstay.dp.hybrid.exact import Amounts, ExactHybrid
from chainstay.dp.hybrid.slots import SlotPlan, bracket, good_plans
from chainstay.dp.hybrid.unrestricted_bound import hybrid_bound

__all__ = ["Amounts", "ExactHybrid", "SlotPlan", "bracket", "good_plans", "hybrid_bound"]
