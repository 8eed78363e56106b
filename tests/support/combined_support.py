"""Program lists with recomputation and transfers, for tests of the runtime."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.runtime import MeasuredChain
from chainstay.runtime.execute.items import TransferPlan, movable_chain, standing_bytes
from chainstay.runtime.transfer.transfer_plan import plan_transfers
from chainstay.schedule import Op, OpKind, Schedule
from runtime_support import random_persistent

__all__ = ["kept_in_part", "least_plan", "least_plan_in_part", "with_random_transfers"]

_Item = tuple[str, int]

_OFFLOAD = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
_PREFETCH = {"a": OpKind.PREFETCH_ACTIVATION, "b": OpKind.PREFETCH_SAVED}
_DISCARD = {"a": OpKind.DISCARD_ACTIVATION, "b": OpKind.DISCARD_SAVED}


@dataclass
class _Life:
    """Of an item from one making to its removal: positions of operations."""

    made: int
    reads: list[int] = field(default_factory=list)


def with_random_transfers(schedule: Schedule, seed: int, share: float = 0.6) -> Schedule:
    """`schedule`, where many items are on the host between two of their uses, some twice."""
    generator = random.Random(seed)
    before: dict[int, list[Op]] = defaultdict(list)
    for (kind, number), life in _first_lives(schedule).items():
        if generator.random() > share or not life.reads:
            continue
        first = generator.randrange(len(life.reads))
        start = life.reads[first - 1] + 1 if first else life.made + 1
        leave = generator.randint(life.made + 1, max(life.made + 1, life.reads[first]))
        come = generator.randint(max(start, leave), max(start, leave, life.reads[first]))
        before[leave].append(Op(_OFFLOAD[kind], number))
        before[come].append(Op(_PREFETCH[kind], number))
        if first + 1 < len(life.reads) and generator.random() < 0.5:
            again = generator.randint(first + 1, len(life.reads) - 1)
            go = generator.randint(life.reads[again - 1] + 1, life.reads[again])
            before[go].append(Op(_DISCARD[kind], number))
            come = generator.randint(go, life.reads[again])
            before[come].append(Op(_PREFETCH[kind], number))
    ops: list[Op] = []
    for position, op in enumerate(schedule):
        ops += [*before[position], op]
    return Schedule(tuple(ops))


def _first_lives(schedule: Schedule) -> dict[_Item, _Life]:
    """Of every item but the caller's, as if all of it stayed on the device."""
    output = max(op.stage for op in schedule)
    here: set[_Item] = {("a", 0)}
    lives: dict[_Item, _Life] = {}
    over: set[_Item] = {("a", 0)}
    for position, op in enumerate(schedule):
        i, kind = op.stage, op.kind
        gone: set[_Item] = set()
        if kind.is_computation:
            reads = {("a", i) if ("a", i) in here else ("b", i - 1)}
            if kind is OpKind.BACKWARD:
                reads.add(("b", i))
                gone = {("a", i), ("b", i)}
            for item in reads & (lives.keys() - over):
                lives[item].reads.append(position)
        if kind in (OpKind.FORWARD_DROP, OpKind.DISCARD_ACTIVATION):
            gone = {("a", i)}
        if kind is OpKind.DISCARD_SAVED:
            gone = {("b", i)}
        here -= gone
        over |= gone & lives.keys()
        if kind.is_forward:
            made = ("b", i) if kind is OpKind.FORWARD_KEEP_ALL else ("a", i + 1)
            here.add(made)
            if made in lives:
                over.add(made)
            elif i + 1 < output:
                lives[made] = _Life(position)
    return lives


def least_plan(
    schedule: Schedule, profile: ChainProfile, overheads: Sequence[int] | None = None
) -> tuple[int, TransferPlan]:
    """The least budget that the runtime can run `schedule` in, and how."""
    plan = plan_transfers(schedule, profile, 1 << 40, overheads=overheads)
    low, high = 0, plan.peak_bytes
    while high - low > 1:
        middle = (low + high) // 2
        try:
            plan_transfers(schedule, profile, middle, overheads=overheads)
        except InvalidScheduleError:
            low = middle
        else:
            high = middle
    return high, plan_transfers(schedule, profile, high, overheads=overheads)


def kept_in_part(measured: MeasuredChain, seed: int) -> Schedule:
    """A random program list that keeps stages under any of their options."""
    generator = random.Random(seed)
    counts = [len(stage.options) for stage in measured.movable_profile.stages]
    ops = (
        replace(op, option=generator.randint(0, counts[op.stage]))
        if op.kind is OpKind.FORWARD_KEEP_ALL
        else op
        for op in random_persistent(len(counts), seed, keep=0.6)
    )
    return with_random_transfers(Schedule(tuple(ops)), seed)


def least_plan_in_part(measured: MeasuredChain, schedule: Schedule) -> tuple[int, TransferPlan]:
    """The same for a program list of a measured chain that keeps stages in part."""
    costs = measured.flat_profile_for(schedule)
    standing = standing_bytes(costs, schedule)
    overheads = [sum(both) for both in zip(measured.overheads_for(schedule), standing, strict=True)]
    return least_plan(schedule, movable_chain(costs), overheads)
