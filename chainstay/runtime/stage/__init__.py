"""A model as a chain of stages, each of which takes a state and gives the next.

================  ===================================================
`states`          what stages pass on, and how it lies in memory
`lineage`         memory that several states share
`chain_stage`     a stage: one part of a graph or several, run as one
`given_stages`    a model that is given as stages
`chain`           the stages of a model
`staged_graph`    a captured graph as such stages, measured or not
`loss_stage`      the loss as the last stage
`assumed_loss`    the memory of one that is not known
`idle_cuts`       cuts that are not worth having
`spans`           stages that are worth keeping as one
`tied_gradients`  gradients of tied weights, summed in place
`stage_errors`    what goes wrong in a stage, told with its name
================  ===================================================
"""
