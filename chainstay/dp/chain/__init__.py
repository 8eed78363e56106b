"""Fast code for the recursion of `chainstay.dp.recursion`, exact in bytes.

Read `fronts`; `numpy_fronts` fills them for short chains, the compiled loops of `kernels` for long
ones. `least_memory` is the recursion without time.
"""
