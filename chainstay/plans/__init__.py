"""Plans as files: a solution, what it is a solution of, and what it may be applied to.

Read `plan` (a solution with its profile), `parser` (reads plan files that anybody may have
written), `fingerprint` (describes a model, its call and its machine, and says what differs),
`option_choice` (an option of the schedule, by what it runs again) and `kept_in_part` (what a plan
drops inside of stages, and what that saves and costs).
"""

from chainstay.plans.fingerprint import Fingerprint
from chainstay.plans.option_choice import OptionChoice
from chainstay.plans.parser import load_plan, parse_plan
from chainstay.plans.plan import Cut, Plan

__all__ = ["Cut", "Fingerprint", "OptionChoice", "Plan", "load_plan", "parse_plan"]
