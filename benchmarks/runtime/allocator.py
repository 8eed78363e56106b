"""How much more an accelerator's allocator reserves than planned steps ask it for.

Six networks are fitted at three budgets on the CPU, with all defaults. The allocations of two
steps, with their addresses, are replayed through a model of PyTorch's caching allocator (see
``testbed/caching_allocator.py``), with expandable segments and without, after the model's
parameters, buffers and gradients. Sizes are those of the CPU: its kernels have temporaries that a
GPU's do not have, and no workspaces. ``x16`` replays the same steps with 16 times the sizes, as of
larger batches and models.

``budget=None`` takes a budget from what is free, and leaves a margin. The table says how much had
been free where this gives each budget, the peak of what a step asks for, and by how much more is
allocated and reserved on a device that always has more. On a device that has no more, steps run as
they are (``yes``), or once unused memory has been given back to it, which the allocator does
before it raises an error (``cache emptied``), or by a smaller plan, which `fit` makes then
(``second plan`` to ``fourth plan``); or they do not (``no``).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from torch import nn
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

import chainstay
from benchmarks.models.options import NETWORKS, OTHERS, case_of
from benchmarks.training import cells, heading, machine, mebibytes
from caching_allocator import Block, CachingAllocator
from chainstay.runtime.devices.accelerator import AllocatorBytes
from chainstay.runtime.devices.device_memory import free_for, smaller_budget
from chainstay.runtime.devices.profiled_memory import garbage_at_rest

__all__ = ["main"]

_ALL: Final = (*NETWORKS, *OTHERS)
_SIX: Final = (*NETWORKS, "DenseNet-121")
_BUDGETS: Final = (80, 60, 40)
_SCALES: Final = (1, 16)
_COLUMNS: Final = (
    *("network", "budget", "sizes", "budget, MiB", "free, MiB", "requested, MiB"),
    *("segments: allocated", "reserved", "run", "expandable: allocated", "reserved", "run"),
)

Event = tuple[int, int]
"""An address, and the bytes allocated there, or less than 0 for those that are freed."""


def events_of(function: Callable[[], object]) -> list[Event]:
    """Return the allocations and releases of a function on the CPU, in their order."""
    with garbage_at_rest(), profile(use_cpu=True, profile_memory=True) as profiler:
        function()
    assert profiler.kineto_results is not None
    found, waiting = [], list(profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    found.sort(key=lambda allocation: allocation[0])
    return [(address, size) for _, address, size in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What steps took, beyond what stands.

    Attributes:
        peaks: The most bytes.
        lost: Of bytes reserved in the end, those that are more than were asked for at most.
        is_complete: Whether the steps did not run out of memory.
    """

    peaks: AllocatorBytes
    lost: int
    is_complete: bool


def replayed(
    events: Sequence[Event],
    standing: Sequence[int],
    *,
    is_expandable: bool,
    free: int | None = None,
) -> Replay:
    """Return what steps take.

    Args:
        events: Of the steps.
        standing: Bytes of each tensor that was there before.
        is_expandable: Whether segments are.
        free: The bytes that the device has for the steps; endless if ``None``.
    """
    allocator = CachingAllocator(is_expandable=is_expandable)
    for size in standing:
        allocator.allocate(size)
    before = allocator.allocated
    allocator.limit = None if free is None else before + free
    held: dict[int, tuple[int, Block]] = {}
    requested = peak = 0
    is_complete = True
    for address, size in events:
        if size > 0:
            try:
                held[address] = size, allocator.allocate(size)
            except MemoryError:
                is_complete = False
                break
            requested += size
            peak = max(peak, requested)
        elif address in held:
            gone, block = held.pop(address)
            requested -= gone
            allocator.free(block)
    peaks = AllocatorBytes(
        requested=peak,
        allocated=allocator.allocated_peak - before,
        reserved=allocator.reserved_peak - before,
    )
    return Replay(peaks=peaks, lost=allocator.reserved - before - peak, is_complete=is_complete)


class Network:
    """A network that is planned, and whose steps are looked at.

    Attributes:
        case: The network and its call.
        costs: The folder of what was measured of it; the next budget goes by that.
        standing: The bytes of its parameters, buffers and gradients.
    """

    def __init__(self, name: str, costs: Path) -> None:
        self.case, self.costs = case_of(name), costs
        parameters = list(self.case.model.parameters())
        tensors = (*parameters, *self.case.model.buffers(), *parameters)
        self.standing = [tensor.nbytes for tensor in tensors]

    def planned(self, budget: int | str) -> tuple[int, list[Event]]:
        """Return a budget in bytes, and the events of two steps within it.

        Raises:
            chainstay.InfeasibleBudgetError: Nothing fits.
        """
        case, model = self.case, self.case.model
        chainstay.fit(
            *(model, case.args, case.kwargs),
            budget=budget, loss=case.loss, repeats=1, progress=False, cache=self.costs,
        )  # fmt: skip
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        case.step(model)
        batch = [tensor.nbytes for tensor in (*case.args, *case.kwargs.values())]
        given = [(-1 - place, size) for place, size in enumerate(batch)]  # it counts in budgets
        taken: int = model.chainstay.solution.budget  # type: ignore[union-attr,assignment]
        return taken, [*given, *events_of(lambda: _twice(case.step, model))]

    def outcome(
        self, events: Sequence[Event], budget: int, scale: int, *, is_expandable: bool
    ) -> str:
        """Say whether steps run on a device with so much memory that this is their budget."""
        standing = [size * scale for size in self.standing]
        run = partial(replayed, standing=standing, is_expandable=is_expandable)
        free = free_for(budget)
        if run(events).peaks.reserved <= free:
            return "yes"
        replay = run(events, free=free)
        if replay.is_complete:
            return "cache emptied"
        for word in ("second plan", "third plan", "fourth plan"):
            budget = smaller_budget(budget, free, replay.lost)
            try:
                _, again = self.planned(budget // scale)
            except chainstay.InfeasibleBudgetError:
                break
            replay = run(scaled(again, scale), free=free)
            if replay.is_complete:
                return word
        return "no"


def scaled(events: Sequence[Event], scale: int) -> list[Event]:
    """Return events with so many times the sizes."""
    return [(address, size * scale) for address, size in events]


def rows_of(name: str, budgets: Sequence[int]) -> Iterator[str]:
    """Yield the rows of a network."""
    with TemporaryDirectory() as folder:
        yield from _rows(name, Network(name, Path(folder)), budgets)


def _rows(name: str, network: Network, budgets: Sequence[int]) -> Iterator[str]:
    for share in budgets:
        try:
            planned, seen = network.planned(f"{share}%")
        except chainstay.InfeasibleBudgetError as refusal:
            needs = f"needs {mebibytes(refusal.required)}"
            yield cells(name, f"{share} %", needs, *[""] * (len(_COLUMNS) - 3))
            continue
        for scale in _SCALES:
            budget, events = planned * scale, scaled(seen, scale)
            standing = [size * scale for size in network.standing]
            told: list[str] = []
            for is_expandable in (False, True):
                peaks = replayed(events, standing, is_expandable=is_expandable).peaks
                if not told:
                    sizes = (budget, free_for(budget), peaks.requested)
                    told += [f"{size / 2**20:,.1f}" for size in sizes]
                more = (peaks.allocated, peaks.reserved)
                told += [f"{count / peaks.requested - 1:+.1%}" for count in more]
                told += [network.outcome(events, budget, scale, is_expandable=is_expandable)]
            yield cells(name, f"{share} %", f"x{scale}", *told)


def _twice(step: Callable[[nn.Module], None], model: nn.Module) -> None:
    for _ in range(2):
        step(model)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", choices=_ALL, default=_SIX)
    parser.add_argument(
        "--budgets", nargs="*", type=int, default=_BUDGETS, help="per cent of plain"
    )
    parser.add_argument("--output", type=Path, help="a file for the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    lines = [machine(torch.device("cpu")), "", *heading(*_COLUMNS)]
    print(*lines, sep="\n", flush=True)
    for name in given.networks:
        for row in rows_of(name, given.budgets):
            print(row, flush=True)
            lines.append(row)
            if given.output is not None:
                given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
