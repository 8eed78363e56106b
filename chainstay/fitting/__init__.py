"""`fit`: capture a model's stages, measure and solve them, and rehearse the plan.

=====================  =======================================================
`front`                `fit` and `unfit`, and what they refuse
`fitted`               a model's forward while it is fitted
`waiting_calls`        several calls before a backward, of which people are told
`repeated_traces`      calls that are traced one after the other, of which people are told
`planner`              what plans there are, when one is made, and what people are told of it
`solved_plans`         plans by measuring and solving
`measured`             a model measured, before a plan is chosen
`measured_graph`       a graph measured, and what smaller ones cost in proportion
`proportion`           plans for smaller calls by these costs
`tried_plans`          plans that are tried by a step before they are used
`blocks`               a model's own forward, its blocks run by a plan
`strategies/`          the strategies that save memory, and the fastest of them
`fingerprints`         what a plan is for
`transformers_models`  what models of ``transformers`` need besides a plan
`budgets`              what a budget is, and how many bytes it means
`backend`              ``torch.compile(model, backend="chainstay")``
=====================  =======================================================
"""

from chainstay.fitting.front import fit, unfit

__all__ = ["fit", "unfit"]
