"""The ways to save memory on one chain, each with its plans.

===========  ==============================================
`means`      the means that a user allows
`fastest`    all ways that these admit, and the fastest of them
`offloaded`  plans that offload
`combined`   plans that recompute and offload
`joins`      plans of models whose branches meet
`by_blocks`  plans of models that go by blocks
===========  ==============================================
"""
