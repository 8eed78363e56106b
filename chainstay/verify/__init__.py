"""How anyone checks our claims: random instances, every method, and the referee.

`checks` draws instances, asks each method that the sampling plan (`CONTESTANTS`) has for
them, replays every claim in the simulator, and holds all answers against each other
(`chainstay.evidence`). The first contradiction ends it; `minimised` makes its instance as
small as it gets, and `counter_example` writes it down with every claim and replay.
"""

from chainstay.verify.answers import Answer, Contradiction, contradiction
from chainstay.verify.checking import Check, Tally, checks
from chainstay.verify.contestants import CONTESTANTS, Contestant, Search
from chainstay.verify.minimising import counter_example, minimised

__all__ = [
    "CONTESTANTS",
    "Answer",
    "Check",
    "Contestant",
    "Contradiction",
    "Search",
    "Tally",
    "checks",
    "contradiction",
    "counter_example",
    "minimised",
]
