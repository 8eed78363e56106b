"""Trials of a model and its graph: whether the two agree, seen without leaving a trace.

================  ==================================================
`model_forward`   a module's forward, whatever stands in its place
`compiled_calls`  what torch.compile has made of a module
`call`            a call of a model
`isolation`       stand-ins for tensors, a shadow, kept gradients
`world`           what Python changes outside of the model, put back
`dispatch_modes`  modes of the user's that see every operator
`equivalence`     the comparison, bit for bit
================  ==================================================
"""
