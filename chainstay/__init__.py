"""Train neural networks inside a memory budget, provably optimally."""
