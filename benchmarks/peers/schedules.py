"""Schedules of checkpoint-schedules (PyPI) on homogeneous chains beside chainstay's, by makespan.

**Revolve**: its actions become a schedule in chainstay's language, the referee replays that, and
chainstay gets the peak as its budget.

**H-Revolve**: a second memory for checkpoints (a disk) with so many slots, and a time to write
and to read one, for which its computation stands still. chainstay gets the memory of Revolve with
as many slots in memory, and a link that moves a checkpoint in that time, to a place of as many
slots; `solve_hybrid` computes while the link is at work, as machines do: its model is the kinder
one. `checkpoint_schedules` 1.0.4 swaps forward and backward time on the way to its recurrence, so
that both orders are tried, and the better counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from importlib import import_module
from typing import Any, Final

from benchmarks.training import cells, heading
from chainstay import ChainProfile, Link, Op, OpKind, Schedule, Stage, solve_chain, solve_hybrid
from chainstay.validation.simulate import simulate

__all__ = ["homogeneous_lines"]

FORWARD, BACKWARD, SIZE = 10, 20, 100
"""Times of a stage, and bytes of an activation."""
REVOLVED: Final = tuple(
    (stages, slots, saved)
    for stages, slots in ((10, 2), (24, 3), (50, 4), (120, 6))
    for saved in (1, 3, 20)
)
"""Stages, checkpoints in memory, and saved bytes of a stage in those of an activation."""
HIERARCHICAL: Final = tuple(
    (stages, memory, disk, time)
    for stages, memory, disk in ((12, 2, 3), (24, 2, 4))
    for time in (10, 40)
)
"""Stages, checkpoints in memory and on disk, and the time to write or read one there."""


def homogeneous_lines() -> Iterator[str]:
    """Of the report."""
    try:
        library: Any = import_module("checkpoint_schedules")
    except ImportError:
        yield "checkpoint-schedules is not installed, see benchmarks/peers/requirements.txt."
        return
    yield (
        f"checkpoint-schedules 1.0.4; forward {FORWARD}, backward {BACKWARD}, activations and "
        f"gradients of {SIZE} bytes. Peaks and makespans are the referee's."
    )
    yield ""
    yield from heading(
        "Revolve", "saved bytes", "its peak", "its makespan", "chainstay", "ratio", "proved best"
    )
    for case in REVOLVED:
        yield _revolved(library, *case)
    yield ""
    yield (
        "H-Revolve waits for its disk, chainstay computes meanwhile: memory, disk and the time of "
        "a transfer are the same, but the model is not."
    )
    yield ""
    yield from heading("H-Revolve", "write, read", "its makespan", "chainstay", "ratio", "bound")
    for hierarchy in HIERARCHICAL:
        yield _hierarchical(library, *hierarchy)


def _chain(stages: int, saved: int) -> ChainProfile:
    stage = Stage(
        forward_time=FORWARD,
        backward_time=BACKWARD,
        output_bytes=SIZE,
        saved_bytes=saved * SIZE,
        gradient_bytes=SIZE,
    )
    return ChainProfile(input_bytes=SIZE, input_gradient_bytes=SIZE, stages=(stage,) * stages)


def _revolved(library: Any, stages: int, slots: int, saved: int) -> str:
    chain = _chain(stages, saved)
    theirs = simulate(chain, translated(library, _revolve(library, stages, slots)))
    ours = solve_chain(chain, theirs.peak_bytes, method="dp")
    return cells(
        f"{stages} stages, {slots} slots",
        str(saved * SIZE),
        str(theirs.peak_bytes),
        str(theirs.makespan),
        str(ours.makespan),
        f"{ours.makespan / theirs.makespan:.3f}",
        f"yes, {ours.family}" if ours.is_optimal else f"bound {ours.lower_bound}",
    )


def _revolve(library: Any, stages: int, slots: int) -> list[Any]:
    return list(library.Revolve(stages, slots, uf=FORWARD, ub=BACKWARD))


def translated(library: Any, actions: Sequence[Any]) -> Schedule:
    """Actions on memory alone, in chainstay's language."""
    ops: list[Op] = []
    is_kept = False  # whether the activation that comes next stays in its slot
    for action in actions:
        if isinstance(action, library.Forward):
            for step in range(action.n0, action.n1):
                if action.write_adj_deps:
                    kind = OpKind.FORWARD_KEEP_ALL
                elif step == action.n0 and (action.write_ics or is_kept):
                    kind = OpKind.FORWARD_KEEP_INPUT
                else:
                    kind = OpKind.FORWARD_DROP
                ops.append(Op(kind, step))
        elif isinstance(action, library.Reverse):
            ops += [Op(OpKind.BACKWARD, step) for step in reversed(range(action.n0, action.n1))]
        is_kept = isinstance(action, library.Copy)
    return Schedule(tuple(ops))


def _hierarchical(library: Any, stages: int, memory: int, disk: int, time: int) -> str:
    chain = _chain(stages, saved=memory + 1)
    budget = simulate(chain, translated(library, _revolve(library, stages, memory))).peak_bytes
    theirs = min(
        _makespan(
            library,
            list(library.HRevolve(stages, memory, disk, uf=uf, ub=ub, wd=time, rd=time)),
            time,
        )
        for uf, ub in ((FORWARD, BACKWARD), (BACKWARD, FORWARD))
    )
    link = Link(bandwidth=Fraction(SIZE, time), capacity=disk * SIZE)
    ours = solve_hybrid(chain, budget, link=link)
    return cells(
        f"{stages} stages, {memory} slots, {disk} on disk",
        str(time),
        str(theirs),
        f"{float(ours.makespan):.0f}",
        f"{float(ours.makespan) / theirs:.3f}",
        f"{float(ours.lower_bound):.0f}",
    )


def _makespan(library: Any, actions: Sequence[Any], time: int) -> int:
    """Of actions done one after another."""
    total = 0
    for action in actions:
        if isinstance(action, library.Forward):
            total += (action.n1 - action.n0) * FORWARD
            total += time * (action.write_ics and action.storage is library.StorageType.DISK)
        elif isinstance(action, library.Reverse):
            total += abs(action.n1 - action.n0) * BACKWARD
        elif isinstance(action, library.Copy | library.Move):
            total += time * (action.from_storage is library.StorageType.DISK)
    return total
