"""A plan runs: first runs, recomputation, backwards.

================  ===============================================================
`liveness`        what each operation of a schedule means for what must be held
`schedule_check`  whether a schedule of a chain can run at all
`executor`        a chain with a plan, a captured graph with its chain
`recompute`       one training step's run of a plan
`handles`         what autograd's graph holds in place of saved tensors
`held`            what a backward starts from, as it was in the forward
`environment`     what a forward depends on besides its input, saved and put back
`repeatable`      whether what runs again gives what it gave
`remade`          tensors that are made again while they are still held
`items`           what may go to host memory
`block_executor`  blocks by a plan, in a model's own forward
`planned`         what every plan tells, for people
`alternatives`    the ways to train that were weighed
================  ===============================================================
"""
