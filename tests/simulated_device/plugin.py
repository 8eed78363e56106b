"""For a pytest of its own process: every test has the device, quick, and leaves no race behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import torch
from simulated_device.place import is_simulated
from simulated_device.sim import Extension, RealDevice, register

_CAPACITY: Final = 2**40
_DEVICES: list[Extension] = []


def pytest_configure() -> None:
    """Register the device, which stays until the process ends."""
    _DEVICES.append(register() if is_simulated else RealDevice())


@pytest.fixture(autouse=True)
def device() -> Iterator[Extension]:
    """The device's settings and findings."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(not is_simulated)
    (found,) = _DEVICES
    _reset(found)
    yield found
    torch.accelerator.synchronize()
    assert found.races() == []
    _reset(found)


def _reset(found: Extension) -> None:
    found.set_link(0.0)
    found.set_kernel_us(0.0)
    found.set_capacity(_CAPACITY)
    found.races()
    found.host_waits()
