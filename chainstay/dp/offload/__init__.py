"""Offloading by dynamic programs: Greedy, and Algorithm 1 with its equations corrected."""

from chainstay.dp.offload.methods import Algorithm1, Greedy, fractional_optimum, greedy_set

__all__ = ["Algorithm1", "Greedy", "fractional_optimum", "greedy_set"]
