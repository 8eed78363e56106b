"""Costs of networks, and nothing about schedules.

Read `stage` and `chain`, then `join`, `offload` and `link`.
"""

from typing import TypeAlias

from chainstay.profiles.chain import ChainArrays, ChainProfile, Skip, require_no_environments
from chainstay.profiles.join import (
    HomogeneousJoin,
    Join,
    JoinProfile,
    SharedGradient,
    kept_gradients,
)
from chainstay.profiles.link import Duplex, Link
from chainstay.profiles.offload import OffloadProfile
from chainstay.profiles.stage import RunCost, Stage, StageOption

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
    "RunCost",
    "SharedGradient",
    "Skip",
    "Stage",
    "StageOption",
    "kept_gradients",
    "require_no_environments",
]

AnyProfile: TypeAlias = ChainProfile | JoinProfile | HomogeneousJoin | OffloadProfile
"""Costs of any kind of network."""
