"""Costs of networks, and nothing about schedules.

Read `chain`, then `join`, `offload` and `link`.
"""

from typing import TypeAlias

from chainstay.profiles.chain import ChainArrays, ChainProfile, Skip, Stage
from chainstay.profiles.join import HomogeneousJoin, Join, JoinProfile, kept_gradients
from chainstay.profiles.link import Duplex, Link
from chainstay.profiles.offload import OffloadProfile

__all__ = [
    "AnyProfile",
    "ChainArrays",
    "ChainProfile",
    "Duplex",
    "HomogeneousJoin",
    "Join",
    "JoinProfile",
    "Link",
    "OffloadProfile",
    "Skip",
    "Stage",
    "kept_gradients",
]

AnyProfile: TypeAlias = ChainProfile | JoinProfile | HomogeneousJoin | OffloadProfile
"""Costs of any kind of network."""
