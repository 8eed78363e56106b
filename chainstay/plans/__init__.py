"""Plans as files: what was decided, for what, and why it may be believed.

===============  ==================================================================
`fingerprint`    what a model, its call and its machine are like, and what differs
`replaying`      a solution of any kind, replayed by its referee
`plan`           a solution with what it is a solution of
`reading`        plan files that anybody may have written
===============  ==================================================================
"""

from chainstay.plans.fingerprint import Fingerprint
from chainstay.plans.plan import Costs, Cut, Plan
from chainstay.plans.reading import load_plan, parse_plan

__all__ = ["Costs", "Cut", "Fingerprint", "Plan", "load_plan", "parse_plan"]
