"""A check that what runs again gives what it gave before: bit for bit, or up to rounding if asked.

Some kernels of accelerators add in an order that nobody knows (atomics): they give other bits
whenever they run, in plain training, too.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Self, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay.runtime.stage.states import bytes_of, is_equal, sums_of_bytes, tensors_in

REMEDY: Final = (
    "draw random numbers from torch's global generators only, and on a GPU use "
    "torch.use_deterministic_algorithms(True); where an operator has no such kernel, "
    "fit(..., bit_for_bit=False) accepts results that differ by rounding"
)

_thread = threading.local()


@contextmanager
def other_bits_accepted(*, wanted: bool) -> Iterator[None]:
    """Inside, and if wanted, `is_repeated` is content with half of the digits."""
    before = getattr(_thread, "accepts", False)
    _thread.accepts = wanted
    try:
        yield
    finally:
        _thread.accepts = before


def is_repeated(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a run gave `other` where another gave `one`.

    Where other bits are accepted, numbers may differ by the square root of their type's
    precision, beside the largest of them: sums in another order do by far less, other random
    numbers by more.
    """
    one, other = one.detach(), other.detach()
    if is_equal(one, other):
        return True
    if not getattr(_thread, "accepts", False) or not one.is_floating_point():
        return False
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    largest = float(one.nan_to_num(posinf=0, neginf=0).abs().max())
    allowed = torch.finfo(one.dtype).eps ** 0.5 * largest
    return torch.allclose(one, other, rtol=0, atol=allowed, equal_nan=True)


@dataclass
class OperatorLog(TorchDispatchMode):
    """Every kernel that runs inside, with a digest of what it gives.

    What torch.compile has compiled runs as it was before: under a mode, TorchDynamo would mark its
    code as not to be compiled, for as long as the process lives.
    """

    entries: list[tuple[object, ...]] = field(default_factory=list)
    _inside: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __enter__(self) -> Self:
        self._inside.enter_context(torch.compiler.set_stance("force_eager"))
        return cast("Self", super().__enter__())  # type: ignore[no-untyped-call]  # likewise

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # likewise
        self._inside.close()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = [] if "empty" in str(func) else tensors_in(result)  # which holds anything
        self.entries.append((str(func), *map(_digest, given)))
        return result


def first_difference(one: OperatorLog, other: OperatorLog) -> tuple[str, str] | None:
    """Return the first operators that are not the same, or give other results."""
    pairs = zip_longest(one.entries, other.entries, fillvalue=("nothing",))
    return next(((str(old[0]), str(new[0])) for old, new in pairs if old != new), None)


def _digest(tensor: torch.Tensor) -> object:
    if tensor.layout != torch.strided:
        return tuple(tensor.shape)
    told = bytes_of(tensor) if tensor.device.type == "cpu" else sums_of_bytes(tensor).cpu()
    return tuple(tensor.shape), zlib.crc32(told.numpy().tobytes())
