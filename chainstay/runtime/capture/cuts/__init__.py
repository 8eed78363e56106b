"""Stages of a captured graph: the places for cuts, the choice of cuts, and the stages.

===============  ===================================================
`crossings`      what crosses each place, and what is made once
`cut_points`     the places that are chosen
`branches`       parts that know nothing of each other
`cut`            all of that, in order
`stage_borders`  cuts between stages that were given one by one
`programs`       a range of operators as one function, and as a stage
`chain`          all of its stages
`stage_names`    what people call them
`stage_table`    a table of them
===============  ===================================================
"""
