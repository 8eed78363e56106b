"""Surroundings of tests on a CUDA device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

__all__ = ["deterministic", "no_synchronisation"]


@pytest.fixture
def deterministic() -> Iterator[None]:
    """Kernels give the same bits each time; of attention, the one that is always there."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Inside, an operation that makes the host wait for the device raises RuntimeError."""
    torch.cuda.synchronize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
