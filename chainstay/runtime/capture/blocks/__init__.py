"""Blocks of a model as stages, where the model as a whole has no full graph.

Read `chain` (what a model cut by its blocks is), `graphs` (each block has a graph of its own),
`sample` (how they are found); `calls` tells which modules are taken.
"""
