"""Questions and answers of each kind of problem, and checks that answers agree.

`offload` and `hybrid` define the problem, the claim of a solver and the certified solution;
`consistency` compares what several methods say about one chain or join.
"""
