"""Joins without an optimal schedule: keep everything, or treat the join as one chain.

Joins have a `tail` or end with a turn; every schedule here can be replayed by
`chainstay.validation.join.simulate.simulate_join`.
"""

from __future__ import annotations

from collections.abc import Iterator

from chainstay.errors import InfeasibleBudgetError, InvalidProfileError
from chainstay.problems.binomial import IMPOSSIBLE, least_reversal_forwards, reversal
from chainstay.profiles import HomogeneousJoin, JoinProfile
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs


def keep_all_join(profile: JoinProfile) -> Schedule:
    """Return the schedule of plain training: everything is kept, the last branch goes back first.

    Example:
        >>> from chainstay.profiles import ChainProfile, Stage
        >>> tower = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))
        >>> str(keep_all_join(JoinProfile(branches=(tower, tower))))
        '0:Fa0 1:Fa0 T 1:B0 0:B0'
    """
    forwards: list[Op] = []
    backwards: list[Op] = []
    for j, branch in enumerate(profile.branches):
        forwards += [Op(OpKind.FORWARD_KEEP_ALL, i, j) for i in range(len(branch))]
        backwards += [Op(OpKind.BACKWARD, i, j) for i in range(len(branch))]
    tail = Schedule.keep_all(len(profile.tail)) if profile.tail else [Op(OpKind.TURN)]
    return Schedule((*forwards, *tail, *reversed(backwards)))


def equivalent_chain(profile: HomogeneousJoin, slots: int) -> Schedule:
    """Return EQUIV-CHAIN of [BHPS20], Section 6: the join as one chain, reversed optimally (REV).

    Step i of that chain is step i of every branch, counted back from the join where they
    differ in length. Its values take k slots each, so there are ``slots // k`` of them.
    Ignores that branches need not be at the same step.

    Raises:
        InvalidProfileError: There is a tail, which that chain does not have.
        InfeasibleBudgetError: Not even the equivalent chain fits.

    Example:
        >>> from chainstay.profiles import JoinProfile
        >>> join = JoinProfile.homogeneous((1, 1), forward_time=1, backward_time=1, turn_time=1)
        >>> str(equivalent_chain(join, 6))
        '0:Fc0 1:Fc0 T 0:B0 1:B0'
    """
    if profile.tail_length:
        raise InvalidProfileError(
            f"the join has {profile.tail_length} tail steps; EQUIV-CHAIN takes joins that turn "
            "where the branches meet"
        )
    k, steps = len(profile.lengths), max(profile.lengths)
    required = k * (1 if steps == 0 else min(steps + 1, 3))
    if slots < required:
        raise InfeasibleBudgetError(
            budget=slots,
            required=required,
            stages=profile.stages,
            family="grouped",
            network="join",
            unit="slots",
        )
    grouped = _rev(steps, slots // k)
    return Schedule(tuple(op for step in grouped for op in _each(profile, step, steps)))


def _rev(steps: int, slots: int) -> Iterator[Op]:
    """Yield the optimal schedule of one homogeneous chain with a turn: REV of [BHPS20]."""
    start = 0
    cuts: list[tuple[int, int, int]] = []
    for stride in _strides(steps, slots):
        yield from forwards_dropping_inputs(start, start + stride - 1)
        cuts.append((start, stride, slots - len(cuts)))
        start += stride
    yield Op(OpKind.TURN)
    for first, stride, free in reversed(cuts):
        yield from reversal(None, first, stride, free)


def _strides(steps: int, slots: int) -> Iterator[int]:
    """Yield how far to run from each checkpoint to the next, the last one being the turn."""
    enough = min(slots, steps + 1)
    least = [[0] + [IMPOSSIBLE] * steps]  # [c - 1][n]: forwards to turn n steps with c slots
    for c in range(2, enough + 1):
        row = [0]
        for n in range(1, steps + 1):
            cuts = (i + least[-1][n - i] + least_reversal_forwards(i, c) for i in range(1, n + 1))
            row.append(min(*cuts, IMPOSSIBLE))
        least.append(row)
    c, left = enough, steps
    while left:
        stride = min(
            range(1, left + 1),
            key=lambda i: i + least[c - 2][left - i] + least_reversal_forwards(i, c),
        )
        yield stride
        c, left = c - 1, left - stride


def _each(profile: HomogeneousJoin, grouped: Op, steps: int) -> Iterator[Op]:
    """Yield one operation of the equivalent chain, branch by branch."""
    if grouped.kind is OpKind.TURN:
        yield grouped
        return
    for j, length in enumerate(profile.lengths):
        step = grouped.stage - (steps - length)
        if step >= 0:
            # Nothing recomputes the input of a shorter branch: it stays like the longest's.
            is_first = step == 0 and grouped.kind is OpKind.FORWARD_DROP
            yield Op(OpKind.FORWARD_KEEP_INPUT if is_first else grouped.kind, step, j)
