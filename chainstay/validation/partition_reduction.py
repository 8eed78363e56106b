r"""A reduction that shows the problem hard: 2-Partition hidden in a chain ([BEHJS24], Theorem 3.6).

Given whole numbers ``x_0 .. x_{m-1}`` that sum to ``2V``, can they be split into two parts
of sum ``V``? `partition_chain` makes a chain of ``n = 2m + 2`` stages, a budget and a
deadline that is met exactly if they can; `partition_schedule` meets it, given the parts,
and `partition_from_schedule` reads the parts out of any schedule that does.

The paper's construction, read so that it works (stages from 0, ``ω_ā = ω_δ = ω_a``):

=================  ============================  ===========================
stage              ``u_f`` and ``ω_a``           ``u_b``
=================  ============================  ===========================
``2k``, ``k < m``  ``x_k``                       1
``2m``             ``V``                         1
the odd ones       0                             1
=================  ============================  ===========================

Budget ``3V``, deadline ``4V + n``. When the loss runs backward, ``V`` bytes of saved data
of stage 2m (or of its output) and ``V`` of its gradient are there, so what is saved of the
numbers is at most ``V``. Stages without saved data run again: with the ``3V`` of running
everything once, the deadline has room for ``V``. What is saved sums to ``V`` exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.validation.simulate import simulate


class PartitionChain(NamedTuple):
    """A chain that some schedule within `budget` finishes by `deadline` iff numbers split.

    Attributes:
        profile: The chain.
        budget: Bytes.
        deadline: Time in ns.
    """

    profile: ChainProfile
    budget: int
    deadline: int


def partition_chain(numbers: Sequence[int]) -> PartitionChain:
    """Return a chain with budget (bytes) and deadline (ns) that can be met iff `numbers` split.

    An odd sum, which never splits, is doubled to keep sizes whole. A number over three
    quarters of the sum does not even fit in the budget.

    Raises:
        InvalidProfileError: There is no number, or one that is not positive.

    Example:
        >>> chain = partition_chain([1, 2, 3])
        >>> len(chain.profile), chain.budget, chain.deadline
        (8, 9, 20)
    """
    if not numbers or min(numbers) <= 0:
        raise InvalidProfileError(f"numbers to split are {list(numbers)}, must be positive")
    scale = 1 + sum(numbers) % 2
    half = scale * sum(numbers) // 2
    heavy = [scale * number for number in numbers] + [half]
    stages = [stage for size in heavy for stage in (_stage(size), _stage(0))]
    profile = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=tuple(stages))
    return PartitionChain(profile, budget=3 * half, deadline=4 * half + len(stages))


def partition_schedule(numbers: Sequence[int], kept: Collection[int]) -> Schedule:
    """Return the schedule that saves the numbers at the positions `kept` and runs the others twice.

    It meets the budget and deadline of `partition_chain` when the kept ones are half of the sum.

    Example:
        >>> str(partition_schedule([1, 1], {0}))
        'Fa0 Fa1 Fc2 Fn3 Fa4 Fa5 B5 B4 Fa2 Fa3 B3 B2 B1 B0'
    """
    positions = range(len(numbers) + 1)
    is_kept = [k in kept or k == len(numbers) for k in positions]
    ops: list[Op] = []
    for k in positions:
        first, second = OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_DROP
        if is_kept[k]:
            first = second = OpKind.FORWARD_KEEP_ALL
        ops += [Op(first, 2 * k), Op(second, 2 * k + 1)]
    for k in reversed(positions):
        if not is_kept[k]:
            ops += [Op(OpKind.FORWARD_KEEP_ALL, stage) for stage in (2 * k, 2 * k + 1)]
        ops += [Op(OpKind.BACKWARD, stage) for stage in (2 * k + 1, 2 * k)]
    return Schedule(tuple(ops))


def partition_from_schedule(
    schedule: Schedule, numbers: Sequence[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Read the two halves of `numbers` out of a schedule that meets budget and deadline.

    Args:
        schedule: A schedule of `partition_chain(numbers)`, under any rules of discards.
        numbers: The numbers to split.

    Returns:
        Positions in `numbers`: those saved when the loss runs backward, and the others.

    Raises:
        InvalidScheduleError: The schedule is invalid, over the budget, or late.

    Example:
        >>> saved, others = partition_from_schedule(partition_schedule([1, 2, 3], {2}), [1, 2, 3])
        >>> sorted(saved), sorted(others)
        ([2], [0, 1])
    """
    profile, budget, deadline = partition_chain(numbers)
    replay = simulate(profile, schedule, discards=Discards.FREE)
    if replay.peak_bytes > budget:
        raise InvalidScheduleError(
            f"the schedule needs {replay.peak_bytes} bytes, the budget is {budget}"
        )
    if replay.makespan > deadline:
        raise InvalidScheduleError(
            f"the schedule takes {replay.makespan} ns, the deadline is {deadline}; "
            "it says nothing about how to split the numbers"
        )
    saved = _saved_before_backward(schedule)
    half = frozenset(k for k in range(len(numbers)) if 2 * k in saved)
    return half, frozenset(range(len(numbers))) - half


def _saved_before_backward(schedule: Schedule) -> set[int]:
    """Return the stages whose saved data is stored when the first backward runs."""
    saved: set[int] = set()
    for op in schedule:
        if op.kind is OpKind.BACKWARD:
            break
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            saved.add(op.stage)
        if op.kind is OpKind.DISCARD_SAVED:
            saved.discard(op.stage)
    return saved


def _stage(size: int) -> Stage:
    return Stage(
        forward_time=size,
        backward_time=1,
        output_bytes=size,
        saved_bytes=size,
        gradient_bytes=size,
    )
