"""Measures of stages, in nanoseconds and bytes, and of what lies between stages.

================  ===================================================
`measured`        measuring a chain, the same for every kind of model
`probe`           the memory of one stage that is run alone
`boundary`        its two ends
`clock`           how long it takes
`shared_bytes`    bytes that stages share
`costs`           from all of that to a profile
`account`         costs apart from what depends on the schedule
`cost_files`      what was measured, in files
`blocks/`         blocks, and what a model does around them
`measured_chain`  the front for models that are chains already
`chain_source`    what such a chain was made from
`rehearsal`       one step by a plan before it is used
`progress`        what is told meanwhile
================  ===================================================
"""
