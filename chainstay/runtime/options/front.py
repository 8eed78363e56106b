"""Pareto front of what a stage may keep for its backward: bytes kept against time of replays.

A stage is a list of operators. Each has a result that others read, and may save more than that
(the noise of dropout, the statistics of a norm). For the backward, whatever autograd saves must
be there: kept since the forward, or made again by *replaying* its operator, whose inputs then
must be there, too. `pareto_front` gives all choices that no other beats in both bytes and time.

The recursion goes through the operators from the last to the first. Let S be the operators
whose results later replays read. For operator i with time t_i, reads r_i, and s_i what is saved
of it::

    F_i(S) = F_{i-1}(S)                                   i is neither saved nor in S
    F_i(S) = min( bytes_i + F_{i-1}(S - i),               it is kept
                  t_i + F_{i-1}(S - i | r_i) )            it is replayed

where ``min`` is the union of fronts without what is dominated. A state has only operators in
front of i, and inputs of the stage, which are always there, are in none: so there are as
many as the widest place of the graph lets replays cross it.

Nothing here knows torch; `formulations.stage_front` states the same as an integer program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final, TypeAlias

from chainstay.profiles.operators import Operator
from chainstay.runtime.options.front_hull import convex_front
from chainstay.runtime.options.selection import Selection

LIMIT: Final = 256
"""Choices that are looked at per state; see `pareto_front`."""

_MOST_STATES: Final = 16_000
"""See `pareto_front`; so many take a second."""
_HULL: Final = 32
"""Choices that are looked for where there are more."""


_Steps: TypeAlias = "tuple[int, bool, _Steps] | None"
"""An operator, whether it is replayed or only draws its noise again, and the steps before."""
_Label: TypeAlias = tuple[int, int, _Steps]
"""Bytes, ns, and what was decided so far, the last decision first."""
_Labels: TypeAlias = list[_Label]


def pareto_front(
    operators: Sequence[Operator], limit: int = LIMIT, most_states: int = _MOST_STATES
) -> list[Selection]:
    """Return the choices that no other beats, from the most bytes to the fewest.

    It is exact while no state has more than `limit` choices. From one that has more, so many
    are taken at even distances, both ends among them: what is found is then still
    right, but there may be better. Of a stage of hundreds of operators with many states at once
    (a loop over time), choices on the hull of the front are found alone.

    Args:
        operators: The stage, in the order of its forward.
        limit: Choices per state; at least 2.
        most_states: States at the widest place, times operators, up to which all are looked at.

    Complexity:
        O(n W L log L) for n operators, W states at the widest place and L choices per state. Where
            n W is more than `most_states`, that of 32 minimum cuts.

    Example:
        A convolution whose result is saved, and a rectifier that could be replayed from it:

        >>> stage = (
        ...     Operator(time=90, result_bytes=8, is_saved=True),
        ...     Operator(time=2, inputs=(0,), result_bytes=8, is_saved=True),
        ... )
        >>> [(selection.kept_bytes, selection.replay_time) for selection in pareto_front(stage)]
        [(16, 0), (8, 2), (0, 92)]
    """
    reads = [sum(1 << source for source in set(operator.inputs)) for operator in operators]
    states: dict[int, _Labels] = {0: [(0, 0, None)]}
    for index in reversed(range(len(operators))):
        operator, bit = operators[index], 1 << index
        is_saved = operator.is_saved or operator.extra_bytes > 0
        if not is_saved and not any(state & bit for state in states):
            continue
        found: dict[int, list[_Labels]] = {}
        for state, labels in states.items():
            for target, changed in _decided(operator, index, (state, reads[index]), labels):
                found.setdefault(target, []).append(changed)
        if len(operators) * len(found) > most_states:
            return convex_front(operators, _HULL)
        states = {state: _merged(parts, limit) for state, parts in found.items()}
    labels = _merged(states.values(), limit)
    return [_selection(label) for label in reversed(labels)]


def _decided(
    operator: Operator, index: int, masks: tuple[int, int], labels: _Labels
) -> Iterable[tuple[int, _Labels]]:
    """Yield every decision about an operator: the state in front of it, and the choices there."""
    state, reads = masks
    bit = 1 << index
    is_wanted = operator.is_saved or bool(state & bit)
    rest = state & ~bit
    if not is_wanted and not operator.extra_bytes:
        yield state, labels
        return
    result = operator.result_bytes if is_wanted else 0
    if operator.is_keepable or not is_wanted:
        yield rest, _changed(labels, result + operator.extra_bytes, 0, None)
        if operator.is_redrawable and operator.extra_bytes:
            kept = result + operator.state_bytes
            yield rest, _changed(labels, kept, operator.time, (index, False))
    if operator.is_replayable:
        yield rest | reads, _changed(labels, operator.state_bytes, operator.time, (index, True))


def _changed(labels: _Labels, size: int, time: int, step: tuple[int, bool] | None) -> _Labels:
    if step is None:
        return [(b + size, t, steps) for b, t, steps in labels] if size else labels
    return [(b + size, t + time, (*step, steps)) for b, t, steps in labels]


def _merged(parts: Iterable[_Labels], limit: int) -> _Labels:
    """The undominated ones by rising bytes, at most `limit` of them."""
    several = list(parts)
    if len(several) == 1 and len(several[0]) <= limit:
        return several[0]
    kept: _Labels = []
    for label in sorted((label for part in several for label in part), key=itemgetter(0, 1)):
        if not kept or label[1] < kept[-1][1]:
            kept.append(label)
    if len(kept) <= limit:
        return kept
    step = (len(kept) - 1) / (limit - 1)
    return [kept[round(number * step)] for number in range(limit)]


def _selection(label: _Label) -> Selection:
    size, time, steps = label
    replayed: set[int] = set()
    redrawn: set[int] = set()
    while steps is not None:
        index, is_replayed, steps = steps
        (replayed if is_replayed else redrawn).add(index)
    return Selection(
        kept_bytes=size,
        replay_time=time,
        replayed=frozenset(replayed),
        redrawn=frozenset(redrawn),
    )


def thinned(front: Sequence[Selection], most: int = 8) -> list[Selection]:
    """At most `most` of a front: both ends, then always the one whose loss would cost most.

    What the loss of a choice costs is an area: the bytes of budget for which it is the best
    that fits, times the time that the next smaller one of those taken takes more.
    """
    if len(front) <= most:
        return list(front)
    taken = [0, len(front) - 1]
    while len(taken) < most:
        gaps = pairwise(taken)
        inner = ((low, index, high) for low, high in gaps for index in range(low + 1, high))
        _, index, _ = max(inner, key=lambda triple: _lost_area(front, *triple))
        taken = sorted([*taken, index])
    return [front[index] for index in taken]


def _lost_area(front: Sequence[Selection], low: int, index: int, high: int) -> int:
    size = front[low].kept_bytes - front[index].kept_bytes
    return size * (front[high].replay_time - front[index].replay_time)
