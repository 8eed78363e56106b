"""A chain's sizes as the program for free discards counts them, tensors of skips once.

Everything that is stored while stages ``s..l`` are to be solved has an index of at most s
(saved data ``ā_i`` counting as i + 1), but for the saved data of stage l where they are held.
So what an item adds to memory depends on ``a^s`` and, for an activation that is dropped, on
the activation kept before it: ``docs/derivations/free-discards.md``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.forward_costs import Array
from chainstay.profiles import ChainProfile, StageOption
from chainstay.profiles.stage import undominated
from chainstay.schedule import Discards

STAYS: Final = 0
"""Saved data that stay with their input."""
RETURNED: Final = 1
"""Saved data that need no input: where it is dropped, their backward comes at once."""
HELD: Final = 2
"""Saved data that may be held without their input, which is made again before their backward."""


class Sizes(NamedTuple):
    """Sizes in bytes and times in ns, by stage, by option and by node, for one kind of forwards.

    A *node* is where a sub-chain starts and what becomes of its input. Node s < n: at stage s,
    whose input stays. Nodes from n on: at a stage whose input ``a^s`` was swept there from a stage
    r and will be dropped, the stage being kept under one option; stages r for which the drop gives
    equally many bytes share the nodes.

    Attributes:
        elapsed: Shape (n + 1,), ns: overhead of running the stages before.
        gradient: Shape (n + 1,), bytes of ``δ^s``.
        fresh: Shape (n, n + 1), at [s, k]: bytes of ``a^k`` that are no part of ``a^s``.
        nearest: Shape (n + 1,), at [k]: the least of them, in bytes.
        made: Shape (n,), at [s]: bytes of ``a^s`` that stage s - 1 makes and stage s passes on.
        forward: Shape (n,): bytes that running a stage adds to its input.
        start: Shape (n + 1,): the first option of each stage.
        number: Shape (options,): an option's number in the profile.
        extra: Shape (options,), ns: overhead of keeping a stage under an option.
        saved: Shape (options,), bytes of ``ā_s`` without what passes through.
        record: Shape (options,): bytes that recording a stage adds.
        backward: Shape (options,): bytes of saved data and both gradients while its backward runs.
        outlives: Shape (options,): `STAYS`, `RETURNED` or `HELD`.
        held: Shape (n, options), at [s, o]: bytes of ``ā`` under option o that are no part of
            ``a^s``.
        returned: Shape (n, options): bytes of it and both gradients while its backward runs.
        node: Shape (n, n), at [r, s], r < s: the node of stage s, under its first option, reached
            from r.
        freed: Shape (nodes,): bytes that dropping the input gives, 0 for those that stay.
        under: Shape (nodes,): the option of those that drop their input.
        least_input: Shape (n,), bytes that ``a^s`` takes at least: by itself, or in saved data; 0
            for the network's input.
        least_record: Shape (nodes,): the least bytes that recording the stage adds.
        least_backward: Shape (nodes,): the least of `backward`, 0 for those that drop their input.
        first_node: Shape (n + 1,): nodes ``first_node[s] .. first_node[s + 1] - 1`` drop ``a^s``.
    """

    elapsed: Array
    gradient: Array
    fresh: Array
    nearest: Array
    made: Array
    forward: Array
    start: Array
    number: Array
    extra: Array
    saved: Array
    record: Array
    backward: Array
    outlives: Array
    held: Array
    returned: Array
    node: Array
    freed: Array
    under: Array
    least_input: Array
    least_record: Array
    least_backward: Array
    first_node: Array


class SizesByKind(NamedTuple):
    """The sizes for both kinds of forwards.

    Attributes:
        first: Sizes for sub-chains up to the loss without saved data held: first runs.
        again: Sizes for all others; the same if the kind of run does not matter.
    """

    first: Sizes
    again: Sizes


def sizes_of(profile: ChainProfile, rules: Discards) -> tuple[SizesByKind, int]:
    """Return the sizes of a chain, and the time in ns above which overheads are counted.

    Options that others replace are left out.

    Args:
        profile: The chain; each option keeps one stage.
        rules: `Discards.FREE`; or `Discards.TAPE`, by which saved data lose an input only that
            they do not need.

    Complexity:
        O(n^2) for each skip and option.
    """
    arrays, n = profile.arrays(), len(profile)
    with_input = STAYS if rules is Discards.TAPE else HELD
    numbers, kept, start = _options_of(profile, with_input)
    stage = np.repeat(np.arange(n), np.diff(start))
    saved = np.array([option.saved_bytes for option in kept])
    needed = np.array([option.backward_overhead_bytes for option in kept]) + arrays.gradients[stage]
    needs_input = np.array([option.needs_input for option in kept])
    own, made = arrays.activation[:n].copy(), np.zeros(n, dtype=np.int64)
    held = np.tile(saved, (n, 1))
    ending = np.zeros((n, n), dtype=np.int64)  # at [r, s]: skips of a^s, but not a^r, that end
    for skip in profile.skips:
        own[skip.first : skip.last + 1] -= skip.bytes
        made[skip.first] += skip.bytes
        held[: skip.first, (skip.first <= stage) & (stage < skip.last)] += skip.bytes
        ending[: skip.first, skip.last] += skip.bytes
    outlives = np.where(needs_input, with_input, RETURNED)
    node, freed, under, first_node = _nodes(own, ending, np.split(outlives != STAYS, start[1:-1]))
    least_backward = np.zeros_like(freed)
    least_backward[:n] = np.minimum.reduceat(saved + needed, start[:-1])
    made_by = np.diagonal(arrays.fresh, 1)
    least_input = np.zeros(n, dtype=np.int64)
    least_input[1:] = np.minimum(made_by, np.minimum.reduceat(saved, start[:-1]))[:-1]

    def sizes(*, is_first: bool) -> tuple[Sizes, Array]:
        dropped = [stage.dropped(first=is_first) for stage in profile.stages]
        runs = [option.run(first=is_first) for option in kept]
        time = np.array([run.total_time for run in runs])
        record = saved + np.array([run.overhead_bytes for run in runs])
        least_record = np.concatenate([np.minimum.reduceat(record, start[:-1]), record[under[n:]]])
        return Sizes(
            elapsed=np.array([run.time for run in dropped]),
            gradient=arrays.gradient,
            fresh=arrays.fresh,
            nearest=np.concatenate([arrays.activation[:1], made_by]),
            made=made,
            forward=made_by + np.array([run.overhead_bytes for run in dropped]),
            start=np.array(start),
            number=np.array(numbers),
            extra=time,
            saved=saved,
            record=record,
            backward=saved + needed,
            outlives=outlives,
            held=held,
            returned=held + needed,
            node=node,
            freed=freed,
            under=under,
            least_input=least_input,
            least_record=least_record,
            least_backward=least_backward,
            first_node=first_node,
        ), np.minimum.reduceat(time, start[:-1])

    again, base_again = sizes(is_first=False)
    first, least = sizes(is_first=True)
    base = np.minimum(least, first.elapsed + base_again)
    by_kind = SizesByKind(
        _above(first, first.elapsed + base_again - base, base[stage]),
        _above(again, again.elapsed, base_again[stage]),
    )
    return by_kind, int(base.sum())


def _options_of(
    profile: ChainProfile, with_input: int
) -> tuple[list[int], list[StageOption], list[int]]:
    """Return the options of use by stage: their numbers, themselves, and where stages begin.

    Those that stay with their input come last in each stage: they have no nodes.
    """
    numbers: list[int] = []
    kept: list[StageOption] = []
    start = [0]
    for stage in profile.stages:
        options = stage.all_options
        order = undominated(options)
        if with_input == STAYS:
            order = sorted(order, key=[option.needs_input for option in options].__getitem__)
        numbers += order
        kept += [options[k] for k in order]
        start.append(len(kept))
    return numbers, kept, start


def _above(sizes: Sizes, rerun: Array, base: Array) -> Sizes:
    """Return sizes with overheads for times: of a stage that runs on, and of its options."""
    elapsed = np.concatenate([[0], np.cumsum(rerun)])
    return sizes._replace(elapsed=elapsed, extra=sizes.extra - base)


def _nodes(
    own: Array, ending: Array, dropping: list[NDArray[np.bool_]]
) -> tuple[Array, Array, Array, Array]:
    """Return `Sizes.node`, `Sizes.freed`, `Sizes.under` and `Sizes.first_node`.

    `dropping` says, by stage, under which options its input may be dropped.
    """
    n, start = len(own), 0
    node, first_node = np.zeros((n, n), dtype=np.int64), np.full(n + 1, n, dtype=np.int64)
    freed, under = [np.zeros(n, dtype=np.int64)], [np.zeros(n, dtype=np.int64)]
    for s in range(1, n):
        start += len(dropping[s - 1])
        options = start + np.flatnonzero(dropping[s])
        more, which = np.unique(ending[:s, s], return_inverse=True)
        node[:s, s] = first_node[s] + which * len(options)
        freed.append(np.repeat(own[s] + more, len(options)))
        under.append(np.tile(options, len(more)))
        first_node[s + 1] = first_node[s] + len(freed[-1])
    return node, np.concatenate(freed), np.concatenate(under), first_node
