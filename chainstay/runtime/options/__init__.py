"""Options of a stage: ways to keep less than autograd saves, and to make the rest again.

`trace_stage` runs a stage (or several as one, fused) node by node, and `stage_options` returns
`Option` objects for what it saw. Each knows what it holds and what its replays take; as an
`OptionPart` in a `ChainStage` it runs as any stage does, so that `measures.probe` and
`measures.clock` see its memory, the temporaries of its replays included, and its time.

An executor makes an `OptionRun` per run. In a first run it calls `run_option`. In a later run it
asks ``run.packed`` in a hook of its own for the handle in the place of each saved tensor, goes to
the end of the forward, as stashes may come late, and calls ``run.close``.

===================  ========================================================================
module               what is in it
===================  ========================================================================
`selection`          one choice of what is kept and what is made again
`front`              the exact Pareto front of (bytes, time); knows no torch
`front_hull`         corners of its hull, by minimum cuts, for stages of hundreds of operators
`operator_parts`     dropout and attention as several operators
`special_operators`  operators of torch of which more is known than a run shows
`composition`        programs of consecutive stages as one graph
`instruments`        what times and memory are told by, with tensors or stand-ins for them
`stage_run`, `trace` a run node by node: storages, versions, saved tensors, random draws, times
`graph`              what was seen, as operators to choose from
`generator`          code of a choice: forward with stashes, and replays
`option_code`        that code, and what it reads
`replay`             a run with an option, its handles, the replays in the backward
`option`             all of this together
`table`              the options of all stages
===================  ========================================================================
"""
