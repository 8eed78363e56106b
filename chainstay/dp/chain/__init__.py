"""Fast engines for the recursion of `chainstay.dp.recursion`, exact in bytes.

`fronts` computes step functions with numpy, `kernels` (driven by `compiled_fronts`) the same in
compiled code; `engines` chooses between them. `least_memory` is the recursion without time.
"""
