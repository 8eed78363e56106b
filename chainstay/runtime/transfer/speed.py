"""The speed of the link between a device and its host's memory."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.profiles import Link
from chainstay.profiles.link import Duplex
from chainstay.runtime.devices.accelerator import Accelerator
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.transfer.cpu_engine import DOUBLE_LINK

_LARGE: Final = 64 * 2**20
_SMALL: Final = 4096
_REPEATS: Final = 5


def measure_link(device: torch.device | str) -> Link:
    """Measure pinned bandwidth and latency in both directions.

    A `Link` has one bandwidth and one latency: those of the slower direction. It is full
    duplex if transfers in both directions at once take less than 1.5 times as long as one;
    its bandwidth is then what each has beside the other.

    Args:
        device: An accelerator; for the CPU, the answer is what its double pretends to be.

    Returns:
        The link, in bytes per ns and ns.

    Raises:
        UnsupportedModelError: Another kind of device.

    Complexity:
        About 0.1 s, 128 MiB of device memory and as much pinned memory.

    Example:
        >>> measure_link("cpu").transfer_time(2_000_000)
        Fraction(1100000, 1)
    """
    device = torch.device(device)
    if device.type == "cpu":
        return DOUBLE_LINK
    accelerator = accelerator_at(device)
    if accelerator is None:
        raise UnsupportedModelError(
            f"the link to a {device.type!r} device cannot be measured; pass a Link of your own"
        )
    with accelerator.current():
        return _measured(accelerator)


def link_from(*, small: int, one_way: int, both_ways: int) -> Link:
    """The link on which transfers took so long.

    Args:
        small: ns for 4 KiB, in the slower direction.
        one_way: ns for 64 MiB, likewise.
        both_ways: ns for 64 MiB in each direction at once.

    Example:
        >>> link = link_from(small=10_000, one_way=5_010_000, both_ways=5_510_000)
        >>> f"{float(link.bandwidth):.1f} bytes per ns, {link.latency} ns, {link.duplex}"
        '12.2 bytes per ns, 10000 ns, full'
    """
    is_full = 2 * both_ways < 3 * one_way
    spent = max((both_ways if is_full else one_way) - small, 1)
    bandwidth = Fraction(_LARGE - _SMALL, spent).limit_denominator(10_000)
    return Link(
        bandwidth=max(bandwidth, Fraction(1, 10_000)),
        latency=small,
        duplex=Duplex.FULL if is_full else Duplex.HALF,
    )


def _measured(accelerator: Accelerator) -> Link:
    here = [torch.empty(_LARGE, dtype=torch.uint8, device=accelerator.device) for _ in range(2)]
    there = [torch.empty(_LARGE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    out, back = accelerator.stream(), accelerator.stream()

    def send(size: int) -> None:
        with accelerator.on(out):
            there[0][:size].copy_(here[0][:size], non_blocking=True)

    def fetch(size: int) -> None:
        with accelerator.on(back):
            here[1][:size].copy_(there[1][:size], non_blocking=True)

    def both() -> None:
        send(_LARGE)
        fetch(_LARGE)

    def least_ns(transfer: Callable[[], None]) -> int:
        times = []
        for _ in range(_REPEATS):
            begin = accelerator.now()
            transfer()
            times.append(accelerator.now() - begin)
        return min(times)

    return link_from(
        small=max(least_ns(lambda: send(_SMALL)), least_ns(lambda: fetch(_SMALL))),
        one_way=max(least_ns(lambda: send(_LARGE)), least_ns(lambda: fetch(_LARGE))),
        both_ways=least_ns(both),
    )
