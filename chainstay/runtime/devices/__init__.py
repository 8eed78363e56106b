"""Differences between torch's devices, and settings that torch keeps for a whole process.

==================  =============================================
`memory`            what the allocators say a piece of code needs
`device_memory`     what is free on a device for a training step
`autocast`          autocast's settings
`backend_settings`  settings of torch's kernels
`generators`        random numbers that are not torch's
`sharding`          parameters spread over several processes
==================  =============================================
"""
