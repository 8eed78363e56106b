"""For a pytest of its own process: every test has the device, quick, and leaves no race behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from simulated_device.sim import Extension, register

_EXTENSION = register()
_CAPACITY = _EXTENSION.capacity()


@pytest.fixture(autouse=True)
def device() -> Iterator[Extension]:
    """The extension: settings and findings."""
    torch.set_num_threads(1)
    _reset()
    yield _EXTENSION
    torch.accelerator.synchronize()
    assert _EXTENSION.races() == []
    _reset()


def _reset() -> None:
    _EXTENSION.set_link(0.0)
    _EXTENSION.set_kernel_us(0.0)
    _EXTENSION.set_capacity(_CAPACITY)
    _EXTENSION.races()
    _EXTENSION.host_waits()
