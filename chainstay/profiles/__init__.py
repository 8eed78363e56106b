"""What networks cost: the nouns at the bottom, which know nothing about schedules."""

from chainstay.profiles.chain import ChainArrays, ChainProfile, Skip, Stage

__all__ = ["ChainArrays", "ChainProfile", "Skip", "Stage"]
