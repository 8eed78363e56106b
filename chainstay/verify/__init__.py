"""Verification: run every method on random instances, and simulate and compare the answers.

`chain_checks` draws instances, runs each method that the sampling plan (`TESTED_METHODS`) has
for them, replays every claim in the simulator, and compares all answers with each other
(`chainstay.problems.consistency`). The first contradiction ends it; `minimised_chain` makes its
instance as small as it gets, and `chain_counter_example` writes it down. Read `chain_methods`,
`chain_answers` and `batches`; `cross_check` is shared by `join`, `offload` and `hybrid`.
"""

from chainstay.verify.batches import ChainCheck, Tally, chain_checks
from chainstay.verify.chain_answers import CheckedAnswer, Contradiction, find_contradiction
from chainstay.verify.chain_counter_example import chain_counter_example, minimised_chain
from chainstay.verify.chain_methods import TESTED_METHODS, ExhaustiveChainSearch, MethodUnderTest

__all__ = [
    "TESTED_METHODS",
    "ChainCheck",
    "CheckedAnswer",
    "Contradiction",
    "ExhaustiveChainSearch",
    "MethodUnderTest",
    "Tally",
    "chain_checks",
    "chain_counter_example",
    "find_contradiction",
    "minimised_chain",
]
