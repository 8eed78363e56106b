"""Values of tensors, of which a graph knows nothing, where they decide what it is or how it runs.

================  ===================================================
`conditions`      questions to values in the arguments, of yes or no or how many
`lookups`         truths and numbers that are looked up while a forward is traced
`sizes`           sizes that are looked up likewise
`origins`         what a value is made of
`constant_masks`  masks that hide nothing, and are left out
================  ===================================================
"""
