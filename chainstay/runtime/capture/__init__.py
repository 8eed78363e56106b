"""A model as a graph, and the graph as a chain of stages.

TorchDynamo traces the forward and guards what it has read (`dynamo`, `guarded_call`, `tracing`,
`tracer_patches`, `unguarded`); what it asks of values in the arguments is a guard, too, and masks
that hide nothing are left out (`values`). The trace becomes a plain list of operators
(`graph`, `graph_inputs`, `subgraphs`, `custom_functions`, `recurrent_layers`, `caught_errors`),
whose effects are seen on fake tensors (`operators`). `cuts` makes stages of it,
`trials` asks whether they are the model, and `graph_key` tells which plan a new graph can use.
`blocks` is the other way, where there is no full graph. `output_leaves` finds the tensors in what a
model takes and gives. `extract` is the front for people who want to look at stages.
"""
