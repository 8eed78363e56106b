"""Offloading by dynamic programs: Greedy, and Algorithm 1 with its equations corrected."""

from chainstay.dp.offload.methods import (
    Algorithm1,
    Greedy,
    fractional_optimum,
    greedy_set,
    promising_sets,
    relaxed,
)

__all__ = [
    "Algorithm1",
    "Greedy",
    "fractional_optimum",
    "greedy_set",
    "promising_sets",
    "relaxed",
]
