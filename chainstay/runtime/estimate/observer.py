"""Memory and time of code that runs on fake tensors, operator by operator.

Memory is that of live storages: what an operator returns counts from then until nobody holds
it. What a kernel allocates and frees inside is out of sight: workspaces of convolutions and
matrix products, copies that a kernel makes of a transposed argument.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay.runtime.devices.memory import MemoryTrace
from chainstay.runtime.estimate.devices import DeviceModel
from chainstay.runtime.estimate.prices import operator_ns
from chainstay.runtime.options.instruments import Instruments
from chainstay.runtime.stage.states import address_of, tensors_in

_SET: Final = torch.ops.aten.set_


@dataclass(frozen=True, slots=True)
class WatchedPhase:
    """The memory and time that one of several functions needs.

    Attributes:
        memory: Growth since the beginning of the first one.
        kernels_ns: The time of its kernels, one after another, in ns.
        operators: The number of operators that have a kernel.
    """

    memory: MemoryTrace
    kernels_ns: int
    operators: int


def watch(
    phases: Iterable[Callable[[], None]], device: DeviceModel, mode: FakeTensorMode
) -> list[WatchedPhase]:
    """Run functions, of which a generator may make each in turn, and watch each."""
    watched = []
    with _Watch(device, mode) as seen:
        for phase in phases:
            seen.peak, seen.kernels_ns, seen.operators = seen.level, 0, 0
            phase()
            memory = MemoryTrace(peak_bytes=seen.peak, end_bytes=seen.level)
            watched.append(WatchedPhase(memory, seen.kernels_ns, seen.operators))
    return watched


def instruments_on(device: DeviceModel, mode: FakeTensorMode) -> Instruments:
    """Return the instruments for stand-ins, as if they were tensors on `device`."""

    def timed(call: Callable[[], Any], _: torch.device) -> tuple[Any, int]:
        with _Watch(device, mode) as seen:
            result = call()
        return result, seen.kernels_ns

    def trace_phases(
        phases: Iterable[Callable[[], None]], _: torch.device
    ) -> tuple[MemoryTrace, ...]:
        return tuple(phase.memory for phase in watch(phases, device, mode))

    return Instruments(timed=timed, trace_phases=trace_phases, has_values=False)


class _Watch(TorchDispatchMode):
    """Sees every operator below autograd; sizes in bytes, times and counts since they were 0."""

    def __init__(self, device: DeviceModel, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.level = self.peak = self.kernels_ns = self.operators = 0
        self._device = device
        self._mode = mode
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        with self._letting_go(func):
            result = func(*args, **kwargs)
        given = {address_of(tensor) for tensor in tensors_in((args, kwargs))}
        for tensor in tensors_in(result):
            if address_of(tensor) not in given:
                self._count(tensor)
        taken = operator_ns(self._device, func, args, kwargs, result)
        self.kernels_ns += taken
        self.operators += taken > 0
        return result

    @contextmanager
    def _letting_go(self, operator: torch._ops.OpOverload) -> Iterator[None]:
        """The mode's cache holds storages that it gets as arguments: so it gets none."""
        was_enabled = self._mode.cache_enabled
        self._mode.cache_enabled = was_enabled and operator.overloadpacket is not _SET
        try:
            yield
        finally:
            self._mode.cache_enabled = was_enabled

    def _count(self, tensor: torch.Tensor) -> None:
        address, storage = address_of(tensor), tensor.untyped_storage()
        if address not in self._alive:
            size = storage.nbytes()
            self._alive[address] = weakref.ref(storage, partial(self._release, address, size))
            self.level += size
            self.peak = max(self.peak, self.level)

    def _release(self, address: int, size: int, _: weakref.ref[torch.UntypedStorage]) -> None:
        del self._alive[address]
        self.level -= size
