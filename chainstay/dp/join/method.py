"""The choice of a program for a join, of its units, and of what its claim may promise."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Final

from chainstay.dp.join.canonical import LeastMemoryProgram, OverheadProgram
from chainstay.dp.join.half_sums import HalfSums
from chainstay.dp.join.sizes import in_units, states_of
from chainstay.dp.join.slots import SlotProgram
from chainstay.dp.table import require_table
from chainstay.errors import InfeasibleBudgetError
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import HomogeneousJoin, Join, JoinProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family

_USUAL_SLOTS: Final = 500
_FEWEST_SLOTS: Final = 20
_QUICK_ENTRIES: Final = 2**23
"""Table entries up to which there may be more slots than usual: some tenths of a second."""
_EXACT_ENTRIES: Final = 2**26
"""Table entries up to which sizes are not rounded unless asked: some seconds."""
_LARGE_TABLE: Final = 2**24
"""Entries from which a coarser table comes first, to learn how large overheads may be."""
_COARSER: Final = 4


def claim_join(
    profile: Join, budget: int, *, keep: tuple[bool, ...], slots: int | None = None
) -> Claim:
    """Return the optimum of the dynamic program for a join.

    Args:
        profile: A `HomogeneousJoin` is solved exactly among all schedules that turn once; a
            `JoinProfile` among canonical persistent ones (`canonical`).
        budget: Slots of a `HomogeneousJoin`, bytes of a `JoinProfile`.
        keep: For each branch, whether the gradient of its input stays until the end.
        slots: How many memory slots the sizes of a `JoinProfile` are rounded to, both ways. None:
            exact in bytes where that takes seconds, else 500, more where that takes no second, and
            fewer where it takes longer than that.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        InvalidProfileError: The tables, which have an axis for each branch, would not fit in
            memory.
    """
    if isinstance(profile, HomogeneousJoin):
        return _homogeneous(profile, budget, keep)
    _require_room(profile, slots or _FEWEST_SLOTS)
    least = LeastMemoryProgram(profile, keep)
    _require_room(profile, slots or _FEWEST_SLOTS, _rows(least.sums))
    required = max(1, least.root + least.inputs)
    if budget < required:
        raise InfeasibleBudgetError(
            budget=budget,
            required=required,
            stages=profile.stages,
            family=Family.CANONICAL_PERSISTENT,
            network="join",
        )
    budget = min(budget, _plenty(profile))
    unit = _unit(profile, budget, slots, _rows(least.sums))
    schedule, makespan, bound = _both_ways(profile, keep, least, budget, unit)
    return Claim(
        schedule=schedule,
        makespan=makespan,
        lower_bound=bound,
        family=Family.ALL if makespan == profile.least_time else Family.CANONICAL_PERSISTENT,
        discards=Discards.TAPE,
    )


def least_join(profile: JoinProfile, keep: tuple[bool, ...], *, is_sparing: bool) -> Schedule:
    """Return a canonical schedule of the least budget for a join, which depends on no times.

    Args:
        profile: The join.
        keep: For each branch, whether the gradient of its input stays until the end.
        is_sparing: Whether branches store as little as they can on their way, or run again as
            little as they can.
    """
    least = LeastMemoryProgram(profile, keep)
    least.is_sparing = is_sparing
    return least.schedule(least.root)


def _homogeneous(profile: HomogeneousJoin, budget: int, keep: tuple[bool, ...]) -> Claim:
    """Return the optimum of a homogeneous join within `budget` slots."""
    program = SlotProgram(profile, keep)
    slots = min(budget, profile.enough_slots)
    if not program.is_feasible(slots):
        raise program.infeasible(budget, program.least_slots())
    makespan = program.makespan(slots)
    return Claim(
        schedule=program.schedule(slots),
        makespan=makespan,
        lower_bound=makespan,
        family=Family.ALL if makespan == profile.least_time else Family.SINGLE_TURN,
        discards=Discards.TAPE,
    )


def _both_ways(
    profile: JoinProfile, keep: tuple[bool, ...], least: LeastMemoryProgram, budget: int, unit: int
) -> tuple[Schedule, int, int]:
    """Return schedule, makespan and lower bound in ns, with sizes rounded up and then down."""

    def program(unit: int, *, up: bool, attained: int | None = None) -> OverheadProgram:
        """Return the program in units, sizes rounded one way and the budget the other."""
        sums = least.sums.scaled(lambda sizes: -(-sizes // unit) if up else sizes // unit)
        memory = budget // unit if up else -(-budget // unit)
        rounded = in_units(profile, unit, up=up)
        return OverheadProgram(rounded, keep, sums, memory, attained=attained)

    attained = None
    if (_entries_per_slot(profile) + _rows(least.sums)) * (budget // unit) > _LARGE_TABLE:
        attained = program(_COARSER * unit, up=True).root
    careful = program(unit, up=True, attained=attained)
    overhead = careful.root
    if overhead is not None:
        schedule = careful.schedule(careful.room)
    else:  # only rounding made it infeasible: fall back on what is known to fit
        schedule = least.schedule(budget - least.inputs)
        overhead = time_of(profile, schedule) - careful.base_time
    makespan = overhead + careful.base_time
    if all(size % unit == 0 for size in _sizes(profile)):
        return schedule, makespan, makespan
    del careful  # half of the memory in use
    optimist = program(unit, up=False, attained=overhead)
    bound = optimist.root
    assert bound is not None, "what fits with sizes rounded up fits with sizes rounded down"
    return schedule, makespan, min(makespan, bound + optimist.base_time)


def _unit(profile: JoinProfile, budget: int, slots: int | None, rows: int) -> int:
    """Return the bytes per slot; every size is a whole number of them where nothing is lost."""
    divisor = gcd(*_sizes(profile)) or 1
    entries = _entries_per_slot(profile) + rows
    exact = budget // divisor
    if slots is None:
        slots = max(min(_USUAL_SLOTS, _EXACT_ENTRIES // entries), _QUICK_ENTRIES // entries)
        if exact * entries <= _EXACT_ENTRIES:
            slots = exact
    return divisor if exact <= slots else max(1, -(-budget // max(slots, _FEWEST_SLOTS)))


def _require_room(profile: JoinProfile, slots: int, rows: int = 0) -> None:
    """Refuse a table that would not fit in memory, as `require_table` does."""
    lengths = ", ".join(str(len(branch)) for branch in profile.branches)
    entries = (_entries_per_slot(profile) + rows) * (slots + 1)
    require_table(entries, f"branches of {lengths} stages", slots)


def _entries_per_slot(profile: JoinProfile) -> int:
    """Return the table entries for each slot of memory."""
    return states_of(profile) * len(profile.closing)


def _rows(sums: HalfSums) -> int:
    """Return the rows of tables for parts of branches, beyond those of one case for each."""
    rows = [len(backward) ** 2 // 2 for backward in sums.backward]
    alone = dict(zip(sums.chain, rows, strict=True))
    return sum(rows) - sum(alone.values())


def _plenty(profile: JoinProfile) -> int:
    """Return bytes that are enough for anything: more are of no use."""
    inputs = sum(chain.input_bytes + chain.input_gradient_bytes for chain in profile.chains)
    stages = (stage for chain in profile.chains for stage in chain.stages)
    shared = sum(gradient.bytes for gradient in profile.shared)
    return inputs + shared + sum(max(sizes) for stage in stages for sizes in _stage_sizes(stage))


def _sizes(profile: JoinProfile) -> Iterator[int]:
    """Yield every size there is, in bytes; the tail's input is the branches' outputs."""
    yield from (gradient.bytes for gradient in profile.shared)
    for chain in profile.chains:
        yield from (chain.input_bytes, chain.input_gradient_bytes)
        for stage in chain.stages:
            for sizes in _stage_sizes(stage):
                yield from sizes


def _stage_sizes(stage: Stage) -> Iterator[list[int]]:
    """Yield the sizes of a stage, by what they are of: under all options, in all kinds of runs."""
    options = stage.all_options
    yield [stage.output_bytes]
    yield [option.saved_bytes for option in options]
    yield [stage.gradient_bytes]
    yield [run.overhead_bytes for run in stage.all_runs]
    yield [option.backward_overhead_bytes for option in options]
