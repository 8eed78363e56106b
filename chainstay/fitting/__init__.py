"""The one call, `fit`: extract, measure, solve, execute.

============  ==========================================================
`front`       `fit` and `unfit`, and what they refuse
`means`       how memory may be saved
`planner`     a plan for calls like a sample
`ways`        the ways to train one chain, and the fastest of them
`offloading`  plans that offload
`combining`   plans that recompute and offload
`joins`       plans of models whose branches meet
`cut_joins`   such models as stages, measured or not
`cut_models`  whole models as stages, measured or not
`caches`      language models keep nothing for generating while they train
`budgets`     what a budget is, and how many bytes it means
============  ==========================================================
"""

from chainstay.fitting.budgets import Budget
from chainstay.fitting.front import fit, unfit

__all__ = ["Budget", "fit", "unfit"]
