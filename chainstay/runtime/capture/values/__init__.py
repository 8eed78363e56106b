"""Values of tensors, of which a graph knows nothing, where they decide what it is or how it runs.

================  ===================================================
`conditions`      questions to values in the arguments, of yes or no or how many
`sizes`           sizes that values in the arguments decide
`constant_masks`  masks that hide nothing, and are left out
================  ===================================================
"""
