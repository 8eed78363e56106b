"""The strategies that save memory on one model, each with its plans.

================  ==============================================
`memory_options`  the techniques that a user allows
`fastest`         all strategies that these admit, and the fastest of them
`offloaded`       plans that offload
`combined`        plans that recompute and offload
`joins`           plans of models whose branches meet
================  ==============================================
"""
