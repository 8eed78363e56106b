"""Simulators that define what schedules mean, and exhaustive searches of small instances.

Read `simulate` (the memory model of chains) first, then `certify` (replays a solver's claim) and
`search` (exhaustive search). `event_machine` is shared by the simulators of transfers in `offload/`
and `hybrid/`; `join/` does the same for joins. Nothing here imports a solver.
"""
