"""Differences between torch's devices, and settings that torch keeps for a whole process.

==================  =============================================
`device`            what a device is: the CPU, or an accelerator
`cpu`               the CPU
`accelerator`       CUDA, ROCm, XPU and what registers with torch
`memory`            what the allocators say a piece of code needs
`profiled_memory`   the same on the CPU, by the profiler
`stopwatch`         the time of one call
`device_memory`     what is free on a device for a training step
`kernel_watch`      a look at every kernel that runs
`random_kernels`    which of them may draw random numbers
`autocast`          autocast's settings, and its copies of weights
`backend_settings`  settings of torch's kernels
`generators`        random numbers that are not torch's
`sharding`          parameters spread over several processes
`thread_value`      a value that every thread has of its own
==================  =============================================
"""
