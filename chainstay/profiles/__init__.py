"""What networks cost: the nouns at the bottom, which know nothing about schedules."""

from chainstay.profiles.chain import ChainArrays, ChainProfile, Skip, Stage
from chainstay.profiles.join import HomogeneousJoin, Join, JoinProfile, kept_gradients
from chainstay.profiles.link import Duplex, Link
from chainstay.profiles.offload import OffloadProfile

__all__ = [
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
