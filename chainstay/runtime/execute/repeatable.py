"""A check that what runs again gives what it gave before: bit for bit, or up to rounding if asked.

Some kernels of accelerators add in an order that nobody knows (atomics): they give other bits
whenever they run, in plain training, too.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Final

import torch

from chainstay.runtime.devices.kernel_watch import KernelCall, KernelWatch
from chainstay.runtime.devices.thread_value import ThreadValue
from chainstay.runtime.stage.states import bytes_of, is_equal, sums_of_bytes, tensors_in

REMEDY: Final = (
    "draw random numbers from torch's global generators only, in an operator of your own with the "
    "tag torch.Tag.nondeterministic_seeded, and on a GPU use "
    "torch.use_deterministic_algorithms(True); where an operator has no such kernel, "
    "fit(..., bit_for_bit=False) accepts results that differ by rounding"
)

other_bits_accepted: Final = ThreadValue(value=False)
"""Whether `is_repeated` is content with half of the digits."""


def is_repeated(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a run gave `other` where another gave `one`.

    Where other bits are accepted, numbers may differ by the square root of their type's
    precision, beside the largest of them: sums in another order do by far less, other random
    numbers by more.
    """
    one, other = one.detach(), other.detach()
    if is_equal(one, other):
        return True
    if not other_bits_accepted.now or not one.is_floating_point():
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    largest = float(one.nan_to_num(posinf=0, neginf=0).abs().max())
    allowed = torch.finfo(one.dtype).eps ** 0.5 * largest
    return torch.allclose(one, other, rtol=0, atol=allowed, equal_nan=True)


@dataclass
class OperatorLog(KernelWatch):
    """Every kernel that runs inside, with a digest of what it gives."""

    entries: list[tuple[object, ...]] = field(default_factory=list)

    def see(self, call: KernelCall) -> None:
        """Add an entry."""
        name = str(call.kernel)
        given = [] if "empty" in name else tensors_in(call.result)  # which holds anything
        self.entries.append((name, *map(_digest, given)))


def first_difference(one: OperatorLog, other: OperatorLog) -> tuple[str, str] | None:
    """Return the first operators that are not the same, or give other results."""
    pairs = zip_longest(one.entries, other.entries, fillvalue=("nothing",))
    return next(((str(old[0]), str(new[0])) for old, new in pairs if old != new), None)


def _digest(tensor: torch.Tensor) -> object:
    if tensor.layout != torch.strided:
        return tuple(tensor.shape)
    told = bytes_of(tensor) if tensor.device.type == "cpu" else sums_of_bytes(tensor).cpu()
    return tuple(tensor.shape), zlib.crc32(told.numpy().tobytes())
