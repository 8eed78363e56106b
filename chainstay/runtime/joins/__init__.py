"""Models whose branches meet, trained by schedules of joins.

================  ===================================================================
`branch_graphs`   the front: any module and a sample call in, branches and a tail out
`part_order`      operators part by part, if that changes no number
`graph_join`      branches of stages, and a tail behind them
`staged_join`     the stages of a join, and each part as a chain of its own
`measured_join`   what the parts cost
`costs`           from what was seen to costs
`cost_files`      costs in files
`account`         what each operation of a schedule needs
`backward_order`  the order in which autograd runs backwards
`executor`        a join with a plan, run as the chains of `execute` are
================  ===================================================================
"""
