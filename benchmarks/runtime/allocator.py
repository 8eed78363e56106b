"""How much more an accelerator's allocator reserves than planned steps ask it for.

Six networks are fitted at three budgets on the CPU, with all defaults. The allocations of two
steps, with their addresses, are replayed through a model of PyTorch's caching allocator (see
``testbed/caching_allocator.py``), with expandable segments and without, after the model's
parameters, buffers and gradients. Sizes are those of the CPU: its kernels have temporaries that a
GPU's do not have, and no workspaces. ``x16`` replays the same steps with 16 times the sizes, as of
larger batches and models.

``budget=None`` takes a budget from what is free, and leaves a margin. The table says how much had
been free where this gives each budget, the peak of what a step asks for, by how much more is
allocated and reserved, and whether what is reserved with expandable segments would have fitted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

import chainstay
from benchmarks.models.options import NETWORKS, OTHERS, case_of
from benchmarks.training import cells, heading, machine, mebibytes
from caching_allocator import CachingAllocator
from chainstay.runtime.devices.device_memory import MARGIN, PAGES
from chainstay.runtime.devices.profiled_memory import garbage_at_rest

__all__ = ["main"]

_ALL: Final = (*NETWORKS, *OTHERS)
_SIX: Final = (*NETWORKS, "DenseNet-121")
_BUDGETS: Final = (80, 60, 40)
_SCALES: Final = (1, 16)
_COLUMNS: Final = (
    *("network", "budget", "sizes", "budget, MiB", "free, MiB", "requested, MiB"),
    *("segments: allocated", "reserved", "expandable: allocated", "reserved", "fits"),
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


def requested_peak(events: Sequence[Event]) -> int:
    """Return the most bytes that the events have in use, by themselves."""
    held: dict[int, int] = {}
    peak = total = 0
    for address, size in events:
        if size > 0:
            held[address] = size
            total += size
        else:
            total -= held.pop(address, 0)
        peak = max(peak, total)
    return peak


def replayed(
    events: Sequence[Event], standing: Sequence[int], *, is_expandable: bool
) -> tuple[int, int]:
    """Return the peak of allocated bytes, and the reserved ones, beyond those of what stands.

    Args:
        events: Of the steps.
        standing: Bytes of each tensor that was there before.
        is_expandable: Whether segments are.
    """
    allocator = CachingAllocator(is_expandable=is_expandable)
    for size in standing:
        allocator.allocate(size)
    before = allocator.allocated
    held = {}
    for address, size in events:
        if size > 0:
            held[address] = allocator.allocate(size)
        elif address in held:
            allocator.free(held.pop(address))
    return allocator.allocated_peak - before, allocator.reserved - before


def rows_of(name: str, budgets: Sequence[int]) -> Iterator[str]:
    """Yield the rows of a network."""
    case = case_of(name)
    model = case.model
    parameters = list(model.parameters())
    standing = [tensor.nbytes for tensor in (*parameters, *model.buffers(), *parameters)]
    for share in budgets:
        try:
            chainstay.fit(
                *(model, case.args, case.kwargs),
                budget=f"{share}%", loss=case.loss, repeats=1, progress=False,
            )  # fmt: skip
        except chainstay.InfeasibleBudgetError as refusal:
            yield cells(name, f"{share} %", f"needs {mebibytes(refusal.required)}", *[""] * 8)
            continue
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        case.step(model)
        seen = [*_given(case.args, case.kwargs), *events_of(lambda: _twice(case.step, model))]
        planned: int = model.chainstay.solution.budget  # type: ignore[union-attr,assignment]
        for scale in _SCALES:
            events = [(address, size * scale) for address, size in seen]
            budget, sizes = planned * scale, [size * scale for size in standing]
            free, requested = int(budget / (1 - MARGIN)) + PAGES, requested_peak(events)
            plain = replayed(events, sizes, is_expandable=False)
            grown = replayed(events, sizes, is_expandable=True)
            ratios = [f"{count / requested - 1:+.1%}" for count in (*plain, *grown)]
            fits = "yes" if grown[1] <= free else f"{mebibytes(grown[1] - free)} more"
            told = [f"{size / 2**20:,.1f}" for size in (budget, free, requested)]
            yield cells(name, f"{share} %", f"x{scale}", *told, *ratios, fits)


def _given(args: Sequence[torch.Tensor], kwargs: dict[str, torch.Tensor]) -> list[Event]:
    """Return the allocation of the batch, which counts in budgets."""
    return [(-1 - place, tensor.nbytes) for place, tensor in enumerate((*args, *kwargs.values()))]


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
