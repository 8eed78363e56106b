r"""The costs of forwards by kind of run, and of the ways to keep stages, as arrays.

In ``C(s, t, m)`` of `chainstay.dp.recursion` no stage of s..t has run before if t is the loss, and
every one has otherwise. So one column of sub-chains pays for *first* runs and all others for runs
*again*; each kind has arrays of its own, in which options that no schedule needs are left out.

Overheads are times above a *base*. With options that keep several stages, a base of each stage
has to be such that no option costs less than its stages' bases together. Least times of what is
left are potentials with this property: with ``w_k = u_k + b_k`` and e the first stage after the
span of option k of stage s (it keeps s alone where e = s + 1)::

    again[s] = min_k  w_k + again[e]                                  again[n] = 0
    first[s] = min( min_k  w_k + first[e],
                    u[s] + again[s] - again[s+1] + first[s+1] )       first[n] = 0

An option costs ``w_k - (first[s] - first[e]) >= 0`` above the bases (again likewise), and a stage
that runs on and is made again later costs ``u[s]``, in a first run plus
``again[s] - again[s+1] - (first[s] - first[s+1])``, which is not negative either.

Running from s to k without keeping saves *environments*, ``e[s] + .. + e[k-1]`` bytes, which stay
while stages k.. are dealt with. Then stages s..k-1 run again, within the memory of ``C(s, k-1, m)``
that these bytes are part of from its start. There ``r[i]`` bytes of ``e[i]`` go when stage i is
kept, the rest with its backward:

- every forward in ``C(s, t, m)`` has ``e[s] + .. + e[t]`` beside it; in first runs, in which there
  are none yet, ``Fc s .. Fn j`` has ``e[s] + .. + e[j]``;
- what a later run saves takes ``e[i] - r[i]`` more, for each of its stages;
- a restart at k takes ``a[s, k] + e[s] + .. + e[k-1]`` of memory.

So it is the recursion without environments, in other sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from chainstay.profiles import ChainArrays, ChainProfile, Stage

Array = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCosts:
    """Costs of one kind of forwards, and every way to keep stages that can be of use.

    Stage s has options ``start[s] .. start[s + 1] - 1``; in a plain chain option s is stage s.

    Attributes:
        elapsed: Shape (n + 1,), ns: ``elapsed[i]`` is the overhead of running stages ``0..i-1``
            without keeping them.
        held: Shape (n + 1,), at [i]: bytes of environments of stages 0 .. i-1 that are there when
            sub-chains begin; 0 before first runs.
        transit: Shape (n, n), at [s, k-1]: bytes that running ``s..k-1`` needs besides ``δ`` and
            ``held[t+1]``, in sub-chains that end at t; ``held[s]``, which they do not have, is off.
        start: Shape (n + 1,): the first option of each stage.
        end: Shape (options,): the first stage after those that an option keeps.
        saved: Shape (options,), bytes of the saved data.
        extra: Shape (options,), ns: overhead of keeping stages under this option.
        number: Shape (options,): the option's number in the profile.
        keep_floor: Shape (options, n), at [o, t]: least m for ``Fa`` and ``B`` under option o in
            a sub-chain that ends at stage t.
    """

    elapsed: Array
    held: Array
    transit: Array
    start: Array
    end: Array
    saved: Array
    extra: Array
    number: Array
    keep_floor: Array

    def options(self, s: int, t: int) -> list[int]:
        """Return the options of stage s that keep nothing after stage t."""
        return [o for o in range(self.start[s], self.start[s + 1]) if self.end[o] <= t + 1]

    def option(self, s: int, number: int) -> int:
        """Return the option of stage s that has this number in the profile."""
        o = int(self.start[s])
        while self.number[o] != number:
            o += 1
        return o

    def scaled(self, scale: Callable[[Array], Array]) -> Self:
        """Return these costs with all sizes as `scale` makes them."""
        return replace(
            self,
            held=scale(self.held),
            transit=scale(self.transit),
            saved=scale(self.saved),
            keep_floor=scale(self.keep_floor),
        )


def costs_by_kind(
    profile: ChainProfile, arrays: ChainArrays
) -> tuple[ForwardCosts, ForwardCosts, int]:
    """Return the costs of first runs, those of later runs, and the base time of the chain in ns.

    The two are one object if a stage's first run costs what any other does.
    """
    if profile.is_plain:
        costs = _plain(arrays)
        return costs, costs, profile.plain_time
    ways = [list(_ways(profile, arrays, s)) for s in range(len(profile))]
    first, again = ([[way[kind] for way in options] for options in ways] for kind in (0, 1))
    dropped = [_dropped(profile.stages, is_first=is_first) for is_first in (True, False)]
    base_again = _base(again)
    bases = np.diff(base_again)
    base_first = _base(first, dropped[0][0] - bases)
    before = environments_before(profile)
    held, made = _Environments(before, 0 * before), _Environments(0 * before, before)
    costs = _costs(arrays, again, dropped[1], base_again, held)
    is_alike = first == again and (dropped[0] == dropped[1]).all()
    if is_alike and not profile.has_environments:
        return costs, costs, int(base_again[0])
    rerun = dropped[0] - np.stack([bases - np.diff(base_first), np.zeros_like(bases)])
    return _costs(arrays, first, rerun, base_first, made), costs, int(base_first[0])


def environments_before(profile: ChainProfile) -> Array:
    """Return at [i] the bytes of the environments of stages 0 .. i-1; the shape is (n + 1,)."""
    return np.cumsum([0, *(stage.environment_bytes for stage in profile.stages)], dtype=np.int64)


class _Way(NamedTuple):
    """One way to keep stages: the stage after them, and its bytes and ns.

    `forward` and `backward` are what ``Fa`` needs besides the gradient that is there, and ``B``.
    """

    end: int
    saved: int
    time: int
    forward: int
    backward: int
    number: int

    def replaces(self, other: _Way) -> bool:
        """Return whether no schedule needs `other`: it keeps the same stages and is no better."""
        return (
            self.end == other.end
            and self.saved <= other.saved
            and self.time <= other.time
            and self.forward <= other.forward
            and self.backward <= other.backward
        )


class _Environments(NamedTuple):
    """Environments of stages before each stage, in bytes; of shape (n + 1,).

    Attributes:
        held: Those with which runs of one kind begin.
        saved: Those that they save.
    """

    held: Array
    saved: Array


def _plain(arrays: ChainArrays) -> ForwardCosts:
    n = len(arrays.saved)
    forward_need = arrays.saved + arrays.forward_overhead
    backward_need = arrays.saved + arrays.backward_overhead + arrays.gradients
    keep_floor = np.maximum(
        arrays.gradient[None, 1:] + forward_need[:, None], backward_need[:, None]
    )
    stages = np.arange(n + 1)
    return ForwardCosts(
        elapsed=np.concatenate([[0], np.cumsum(arrays.forward_time)]),
        held=np.zeros(n + 1, dtype=np.int64),
        transit=_transit(arrays.fresh, arrays.forward_overhead, np.zeros(n + 1, dtype=np.int64)),
        start=stages,
        end=stages[1:],
        saved=arrays.saved,
        extra=np.zeros(n, dtype=np.int64),
        number=np.zeros(n, dtype=np.int64),
        keep_floor=keep_floor,
    )


def _costs(
    arrays: ChainArrays,
    ways: list[list[_Way]],
    dropped: Array,
    base: Array,
    environments: _Environments,
) -> ForwardCosts:
    """Return the arrays of options that are of use.

    Args:
        arrays: The chain.
        ways: By stage, every way to keep it.
        dropped: Shape (2, n): ns and overhead bytes of ``Fc`` and ``Fn``.
        base: Shape (n + 1,): what overheads are counted from, in ns.
        environments: Those that are there, and that are saved.
    """
    held = environments.held
    needed = [_undominated(options) for options in ways]
    flat = np.array([way for options in needed for way in options], dtype=np.int64)
    end, saved, time, forward, backward, number = flat.T.copy()
    start = np.concatenate([[0], np.cumsum([len(options) for options in needed])])
    stage = np.repeat(np.arange(len(needed)), np.diff(start))
    needed_to_keep = arrays.gradient[None, 1:] + held[None, 1:] + (forward - held[stage])[:, None]
    return ForwardCosts(
        elapsed=np.concatenate([[0], np.cumsum(dropped[0])]),
        held=held,
        transit=_transit(arrays.fresh, dropped[1], environments.saved) - held[:-1, None],
        start=start,
        end=end,
        saved=saved,
        extra=time - (base[stage] - base[end]),
        number=number,
        keep_floor=np.maximum(needed_to_keep, backward[:, None]),
    )


def _undominated(options: list[_Way]) -> list[_Way]:
    """Return the options that none of the others replaces, the fastest first."""
    kept: list[_Way] = []
    for way in sorted(options, key=lambda way: (way.time, way[1:])):
        if not any(other.replaces(way) for other in kept):
            kept.append(way)
    return kept


def _base(ways: list[list[_Way]], dropped: Array | None = None) -> Array:
    """Return the base times of stages i..n-1, in ns; shape (n + 1,)."""
    n = len(ways)
    base = np.zeros(n + 1, dtype=np.int64)
    for s in range(n - 1, -1, -1):
        base[s] = min(way.time + base[way.end] for way in ways[s])
        if dropped is not None:
            base[s] = min(base[s], dropped[s] + base[s + 1])
    return base


def _dropped(stages: tuple[Stage, ...], *, is_first: bool) -> Array:
    """Return ns and overhead bytes of runs that are not kept; shape (2, n)."""
    runs = [stage.dropped(first=is_first) for stage in stages]
    return np.array([[run.time for run in runs], [run.overhead_bytes for run in runs]])


def _ways(profile: ChainProfile, arrays: ChainArrays, s: int) -> Iterator[tuple[_Way, _Way]]:
    """Yield every way to keep stage s on, in a first run and in a later one."""
    stages, gradient = profile.stages, int(arrays.gradient[s])
    for number, option in enumerate(stages[s].all_options):
        end, saved = s + option.stages, option.saved_bytes
        buffers = sum([stage.environment_bytes - stage.random_bytes for stage in stages[s:end]])
        backward = saved + option.backward_overhead_bytes + gradient + profile.gradient_bytes(end)
        for skip in profile.skips:  # a gradient that passes through counts once
            if skip.first <= s < end <= skip.last:
                backward -= skip.gradient_bytes
        first, again = option.runs
        way = _Way(end, saved, first.total_time, saved + first.overhead_bytes, backward, number)
        if again is first and not buffers:
            yield way, way
            continue
        yield (
            way,
            way._replace(
                saved=saved + buffers,
                time=again.total_time,
                forward=saved + again.overhead_bytes,
                backward=backward + buffers,
            ),
        )


def _transit(fresh: Array, overhead: Array, environments: Array) -> Array:
    """Return at [s, j] the bytes that ``Fc s, Fn s+1 .. Fn j`` needs besides ``a^s`` and ``δ``.

    They save the environments of stages s..j, given as those of all stages before each.
    """
    made = np.diagonal(fresh, 1) + overhead
    saved = np.subtract.outer(environments[:-1], environments[1:])
    need = np.triu(fresh[:, :-1] + made - saved)
    running: Array = np.maximum.accumulate(need, axis=1)
    return running
