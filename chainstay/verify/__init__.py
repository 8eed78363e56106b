"""Verification: run every method on random instances, and simulate and compare the answers.

Read `cross_check`, which is all of it for any kind of problem; `chains`, `joins`, `offloads` and
`hybrids` are the suites: their methods, and what these promise. The ``_instances`` modules draw
problems, and `processes` shares them out.
"""

from types import MappingProxyType
from typing import Final

from chainstay.verify.chains import ChainSuite
from chainstay.verify.cross_check import Answer, Check, MethodUnderTest, Tally
from chainstay.verify.hybrids import HybridSuite
from chainstay.verify.joins import JoinSuite
from chainstay.verify.offloads import OffloadSuite

__all__ = [
    "SUITES",
    "Answer",
    "ChainSuite",
    "Check",
    "HybridSuite",
    "JoinSuite",
    "MethodUnderTest",
    "OffloadSuite",
    "Tally",
]

SUITES: Final = MappingProxyType(
    {
        "chain": ChainSuite(),
        "join": JoinSuite(),
        "hybrid": HybridSuite(),
        "offload": OffloadSuite(),
    }
)
"""The suites, by the names that ``chainstay verify --problem`` takes."""
