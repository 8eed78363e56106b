"""The commands, one module each: options, steps and printing.

Each command imports what needs torch or numpy when it runs, so that ``--help`` stays quick.
"""
