"""A program list of the least feasible budget: each item made once, and on the host between uses.

`HybridProblem.required_bytes` counts what it needs. It is slow, and for budgets in which searches
for faster ones find nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chainstay.errors import InvalidScheduleError
from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import Stage
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import TimedSchedule
from chainstay.validation.hybrid.simulate import simulate_hybrid


class _Form(NamedTuple):
    """An activation, plain or in what the stage before saved under an option, and its bytes."""

    item: Item
    option: int
    size: int


class _Run(NamedTuple):
    """A computation, what it reads, and what it makes."""

    op: Op
    reads: tuple[_Form, ...]
    made: _Form | None


def least_memory_program(problem: HybridProblem) -> TimedSchedule | None:
    """Return a program list for whole transfers that fits wherever one fits.

    None if the host has too little room, or would need what a stage saved under two options.
    """
    schedule = Schedule(tuple(_moved(_needed(_runs(problem)))))
    profile, budget, link = problem.profile, problem.budget, problem.link
    try:
        replay = simulate_hybrid(profile, schedule, budget=budget, link=link)
    except InvalidScheduleError:
        return None
    return TimedSchedule(replay.makespan, schedule)


def _runs(problem: HybridProblem) -> Iterator[_Run]:
    """Yield the backwards as far as they fit, and before each all forwards that fit then first."""
    profile = problem.profile
    forms: list[list[_Form]] = [[] for _ in range(len(profile) + 1)]
    forms[0] = [_Form(Item("a", 0), 0, profile.input_bytes)]
    for held in range(len(profile), 0, -1):
        room = problem.budget - profile.gradient_bytes(held)
        for i, stage in enumerate(profile.stages[:held]):
            for op, made, overhead in _forwards(i, stage):
                read = _first_within(room - made.size - overhead, forms[i])
                if read and made not in forms[i + 1]:
                    forms[i + 1].append(made)
                    yield _Run(op, (read,), made)
        room -= profile.gradient_bytes(held - 1)
        for saved in forms[held]:
            option = profile.stages[held - 1].all_options[saved.option]
            left = room - saved.size - option.backward_overhead_bytes
            read = _first_within(left, forms[held - 1])
            if read and saved.item.kind == "b":
                yield _Run(Op(OpKind.BACKWARD, held - 1), (read, saved), None)
                break


def _forwards(i: int, stage: Stage) -> list[tuple[Op, _Form, int]]:
    """Return what stage i can make, what is to be read first, and the bytes needed beside."""
    plain = _Form(Item("a", i + 1), 0, stage.output_bytes)
    forwards = [(Op(OpKind.FORWARD_KEEP_INPUT, i), plain, stage.forward_overhead_bytes)]
    for number, option in enumerate(stage.all_options):
        op = Op(OpKind.FORWARD_KEEP_ALL, i, option=number)
        saved = _Form(Item("b", i), number, option.saved_bytes)
        forwards.append((op, saved, option.first.overhead_bytes))
    # What was saved needs no forward of its own; but the host has it under one option at most.
    return forwards if stage.options else forwards[::-1]


def _first_within(room: int, forms: Iterable[_Form]) -> _Form | None:
    return next((form for form in forms if form.size <= room), None)


def _needed(runs: Iterable[_Run]) -> list[_Run]:
    """Return the runs whose outputs are read, and the backwards."""
    read: set[_Form] = set()
    needed = []
    for run in reversed(list(runs)):
        if run.made is None or run.made in read:
            read.update(run.reads)
            needed.append(run)
    return needed[::-1]


def _moved(runs: Sequence[_Run]) -> Iterator[Op]:
    """Yield the operations, with moves that leave on the device what is read next, and no more."""
    reads = [{form.item for form in run.reads} for run in runs]
    here = {Item("a", 0)}
    yield Item("a", 0).offload
    for position, run in enumerate(runs):
        yield from (item.prefetch for item in sorted(reads[position] - here))
        yield run.op
        here = reads[position]
        if run.made is None:
            here -= {Item("a", run.op.stage), Item("b", run.op.stage)}
        else:
            here.add(run.made.item)
            if any(run.made.item in later for later in reads[position + 2 :]):
                yield run.made.item.offload
        idle = here.difference(*reads[position + 1 : position + 2])
        yield from (item.discard for item in sorted(idle))
        here -= idle
