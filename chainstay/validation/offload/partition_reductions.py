r"""Proofs that offloading is hard: 3-Partition and 2-Partition in chains ([BES20], corrected).

*3-Partition*: can 3m numbers with ``V/4 < u_i < V/2`` and sum ``mV`` be split into m triples
of sum V? The chain has 5m stages; its first 3m activations are the numbers and fill the
memory of mV. Then m times a forward takes 1 and the next one but it makes V bytes, so that in
every unit of time whole activations of V bytes must leave, over a link of V bytes per unit.
``B_{3m}`` takes m, in which all come back. Whole transfers meet the deadline 2m exactly if
there are such triples. (As printed it does not work: sizes and times belong to other
indices.)

*2-Partition*: whole activations of sum V must leave during one forward that takes 1, and
come back during one backward that takes 1; so even interruptible transfers meet the deadline
2 exactly if numbers of sum 2V split in two halves.

================================  ===============================================
3-Partition, stages 0 .. 5m-1     2-Partition of n numbers, stages 0 .. n+2
================================  ===============================================
``|x_i| = u_i``, i < 3m           ``|x_i| = u_i``, i < n
``|x_{3m+2k}| = V``, k = 1 .. m   ``|x_{n+2}| = V``
``u_F = 1``: ``3m+2k``, k < m     ``u_F = 1``: ``n``
``u_B = m``: ``3m``               ``u_B = 1``: ``n``
``M = mV``, ``T = 2m``            ``M = 2V``, ``T = 2``
================================  ===============================================

All else is 0, and the bandwidth V.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.offload.simulate import simulate_offload


class OffloadGadget(NamedTuple):
    """A problem that some schedule finishes by `deadline` if and only if the numbers split.

    Attributes:
        profile: The chain.
        budget: Bytes on the device.
        link: The link to the host.
        deadline: Time in ns.
    """

    profile: OffloadProfile
    budget: int
    link: Link
    deadline: int


def three_partition_gadget(numbers: Sequence[int]) -> OffloadGadget:
    """Return the problem that can be met iff 3m numbers split into m triples of equal sum.

    Raises:
        InvalidProfileError: Not three numbers a triple, a sum that m does not divide, or a
            number that is not between a quarter and a half of a triple's sum.

    Example:
        >>> gadget = three_partition_gadget([26, 27, 28, 29, 35, 35])
        >>> len(gadget.profile), gadget.budget, gadget.deadline
        (10, 180, 4)
    """
    triples, rest = divmod(len(numbers), 3)
    if rest or not triples or sum(numbers) % triples:
        raise InvalidProfileError(
            f"{len(numbers)} numbers of sum {sum(numbers)} are no triples of equal whole sum"
        )
    target = sum(numbers) // triples
    for number in numbers:
        if not target < 4 * number < 2 * target:
            raise InvalidProfileError(
                f"{number} is not between a quarter and a half of {target}, the sum of a triple"
            )
    stages, first = 5 * triples, 3 * triples
    profile = _profile(
        stages,
        sizes={
            **dict(enumerate(numbers)),
            **{first + 2 * k: target for k in range(1, triples + 1)},
        },
        forwards={first + 2 * k: 1 for k in range(triples)},
        backwards={first: triples},
    )
    return OffloadGadget(profile, triples * target, Link(bandwidth=target), 2 * triples)


def three_partition_schedule(
    numbers: Sequence[int], triples: Sequence[Collection[int]]
) -> Schedule:
    """Return the schedule in which each of `triples` (of positions) leaves in its unit of time.

    It meets the budget and deadline of `three_partition_gadget` when all have equal sums.
    """
    first = len(numbers)
    ops = [Op(OpKind.FORWARD_KEEP_ALL, i) for i in range(first)]
    for k, triple in enumerate(triples):
        ops += [Op(OpKind.OFFLOAD_ACTIVATION, j) for j in sorted(triple)]
        ops += [Op(OpKind.FORWARD_KEEP_ALL, first + 2 * k + i) for i in (0, 1)]
    stages = first + 2 * len(triples)
    ops += [Op(OpKind.BACKWARD, i) for i in reversed(range(first, stages))]
    ops += [Op(OpKind.PREFETCH_ACTIVATION, j) for j in reversed(range(first))]
    ops += [Op(OpKind.BACKWARD, i) for i in reversed(range(first))]
    return Schedule(tuple(ops))


def triples_from_schedule(schedule: Schedule, numbers: Sequence[int]) -> tuple[frozenset[int], ...]:
    """Read the triples (of positions) out of a schedule that meets budget and deadline.

    Raises:
        InvalidScheduleError: The schedule is invalid, over the budget, or late.

    Example:
        >>> numbers = [26, 27, 28, 29, 35, 35]
        >>> schedule = three_partition_schedule(numbers, [{0, 3, 4}, {1, 2, 5}])
        >>> [sorted(triple) for triple in triples_from_schedule(schedule, numbers)]
        [[0, 3, 4], [1, 2, 5]]
    """
    replay = _in_time(three_partition_gadget(numbers), schedule)
    ends = {
        move.op.stage: move.end
        for move in replay.timetable.moves
        if move.op.kind is OpKind.OFFLOAD_ACTIVATION
    }
    return tuple(
        frozenset(j for j, end in ends.items() if k < end <= k + 1)
        for k in range(len(numbers) // 3)
    )


def two_partition_gadget(numbers: Sequence[int]) -> OffloadGadget:
    """Return the problem that can be met iff `numbers` split into two halves of equal sum.

    An odd sum, which never splits, is doubled to keep sizes whole.

    Raises:
        InvalidProfileError: There is no number, or one that is not positive.

    Example:
        >>> gadget = two_partition_gadget([1, 2, 3])
        >>> len(gadget.profile), gadget.budget, gadget.deadline
        (6, 6, 2)
    """
    if not numbers or min(numbers) <= 0:
        raise InvalidProfileError(f"numbers to split are {list(numbers)}, must be positive")
    scale, count = 1 + sum(numbers) % 2, len(numbers)
    half = scale * sum(numbers) // 2
    profile = _profile(
        count + 3,
        sizes={**{i: scale * u for i, u in enumerate(numbers)}, count + 2: half},
        forwards={count: 1},
        backwards={count: 1},
    )
    return OffloadGadget(profile, 2 * half, Link(bandwidth=half), 2)


def two_partition_schedule(numbers: Sequence[int], moved: Collection[int]) -> Schedule:
    """Return the schedule that moves the numbers at the positions `moved`.

    It meets the budget and deadline of `two_partition_gadget` when they are half of the sum.
    """
    count = len(numbers)
    ops = [Op(OpKind.FORWARD_KEEP_ALL, i) for i in range(count)]
    ops += [Op(OpKind.OFFLOAD_ACTIVATION, j) for j in sorted(moved)]
    ops += [Op(OpKind.FORWARD_KEEP_ALL, i) for i in range(count, count + 3)]
    ops += [Op(OpKind.BACKWARD, i) for i in reversed(range(count, count + 3))]
    ops += [Op(OpKind.PREFETCH_ACTIVATION, j) for j in sorted(moved, reverse=True)]
    ops += [Op(OpKind.BACKWARD, i) for i in reversed(range(count))]
    return Schedule(tuple(ops))


def halves_from_schedule(
    schedule: Schedule, numbers: Sequence[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Read the halves (positions moved, and the others) out of a schedule that meets the deadline.

    Raises:
        InvalidScheduleError: The schedule is invalid, over the budget, or late.

    Example:
        >>> moved, others = halves_from_schedule(two_partition_schedule([1, 2, 3], {2}), [1, 2, 3])
        >>> sorted(moved), sorted(others)
        ([2], [0, 1])
    """
    _in_time(two_partition_gadget(numbers), schedule)
    moved = {op.stage for op in schedule if op.kind is OpKind.OFFLOAD_ACTIVATION}
    half = frozenset(moved & set(range(len(numbers))))
    return half, frozenset(range(len(numbers))) - half


def _in_time(gadget: OffloadGadget, schedule: Schedule) -> TransferReplay:
    replay = simulate_offload(gadget.profile, schedule, budget=gadget.budget, link=gadget.link)
    if replay.makespan > gadget.deadline:
        raise InvalidScheduleError(
            f"the schedule takes {replay.makespan}, the deadline is {gadget.deadline}; it says "
            "nothing about how to split the numbers"
        )
    return replay


def _profile(
    stages: int, *, sizes: dict[int, int], forwards: dict[int, int], backwards: dict[int, int]
) -> OffloadProfile:
    """Return a chain with these sizes and times in which everything else is 0."""
    return OffloadProfile(
        activations=tuple(sizes.get(i, 0) for i in range(stages + 1)),
        gradients=(0,) * (stages + 1),
        forward_overheads=(0,) * stages,
        backward_overheads=(0,) * stages,
        forward_times=tuple(forwards.get(i, 0) for i in range(stages)),
        backward_times=tuple(backwards.get(i, 0) for i in range(stages)),
    )
