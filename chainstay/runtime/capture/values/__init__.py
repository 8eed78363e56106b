"""Values of tensors, of which a graph knows nothing, where they decide what it is or how it runs.

================  ===================================================
`conditions`      questions of yes or no to values in the arguments
`constant_masks`  masks that hide nothing, and are left out
================  ===================================================
"""
