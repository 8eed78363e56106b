"""How many tensors a test has left alive, whoever holds them."""

from __future__ import annotations

import gc

import torch

__all__ = ["leave_out_other_tests", "tensors_alive"]


def leave_out_other_tests() -> None:
    """Leave what is alive out of later counts: tensors of earlier tests may go at any time."""
    gc.collect()
    gc.freeze()


def tensors_alive() -> int:
    """Count the tensors that Python's garbage collector knows of."""
    while gc.collect():  # what one pass frees may be all that held other garbage
        pass
    return sum(issubclass(type(candidate), torch.Tensor) for candidate in gc.get_objects())
