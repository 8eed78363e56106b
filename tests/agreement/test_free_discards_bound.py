"""The price bounds of free discards against the least that any schedule spends around a part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile
from chainstay.dp import least_budget
from chainstay.dp.free_discards.lagrangian_bound import FreeDiscardsBound
from chainstay.dp.free_discards.sizes import sizes_of
from strategies import chains
from tensors import Tensors

_State = tuple[int, int, int, int, int]
"""Sub-chain s..l with m bytes: r, s, l, held, m. Its input floated there from r; -1: it stays."""

STAYS = -1


@settings(max_examples=150, deadline=None)
@given(chains(max_stages=5), st.integers(0, 150))
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    profile: ChainProfile, extra: int
) -> None:
    memory = least_budget(profile, discards="free") - profile.input_bytes + extra
    bound = FreeDiscardsBound(sizes_of(profile), memory)
    multipliers = np.arange(bound.outside.shape[3])
    for (r, s, end, held, m), spent in _least_spent_around(profile, memory).items():
        lines = (bound.outside if r == STAYS else bound.dropped)[held, s, end]
        assert (lines + multipliers * bound.step * m).max() <= spent + 1e-6, (r, s, end, held, m)
    optimum = DP(discards="free")(profile, memory + profile.input_bytes)
    assert bound.root <= optimum.makespan - profile.least_time + 1e-6


def _least_spent_around(profile: ChainProfile, memory: int) -> dict[_State, float]:
    """For each part of any schedule: the least overhead outside, over all its schedules."""
    tensors = Tensors(profile)

    @cache
    def overhead(state: _State) -> float:
        return min(
            (
                rerun + sum(map(overhead, parts))
                for rerun, parts in _decisions(profile, state, tensors)
            ),
            default=float("inf"),
        )

    # parts are shorter, or as long with saved data held that were not
    levels: dict[int, set[_State]] = defaultdict(set)
    spent: dict[_State, float] = defaultdict(lambda: float("inf"))
    root = (STAYS, 0, len(profile) - 1, 0, memory)
    spent[root] = 0.0
    levels[_level(root)].add(root)
    for level in range(_level(root), -1, -1):
        for state in levels[level]:
            for rerun, parts in _decisions(profile, state, tensors):
                total = spent[state] + rerun + sum(map(overhead, parts))
                for part in parts if total < float("inf") else ():
                    spent[part] = min(spent[part], total - overhead(part))
                    levels[_level(part)].add(part)
    return dict(spent)


def _level(state: _State) -> int:
    _, s, end, held, _ = state
    return 2 * (end - s) + 1 - held


def _decisions(
    profile: ChainProfile, state: _State, tensors: Tensors
) -> Iterator[tuple[int, list[_State]]]:
    """Time of the rerun, and parts, of each decision of `chainstay.dp.free_discards.solver`."""
    r, s, end, held, m = state
    stage, gradient = profile.stages[s], profile.gradient_bytes(end + 1)
    kept = {f"a {s}", *([f"saved {end}"] if held else [])}
    there = tensors.stored([f"a {s}"])
    backward = stage.saved_bytes + tensors.gradients(s) + stage.backward_overhead_bytes
    if held and s == end:
        if m >= backward:
            yield 0, []
        return
    record = tensors.stored({*kept, f"saved {s}"}) - there + stage.forward_overhead_bytes + gradient
    if m >= (record if r != STAYS else max(record, backward)):
        freed = 0
        if r != STAYS:
            rest = {f"a {r}", f"saved {s}"}
            freed = tensors.stored({*rest, f"a {s}"}) - tensors.stored(rest)
        inner = (STAYS, s + 1, end, held, m - stage.saved_bytes + freed)
        yield 0, [inner] if s < end else []
    rerun = 0
    for j in range(s + 1, end + 1):
        stage = profile.stages[j - 1]
        rerun += stage.forward_time
        running = tensors.stored({*kept, f"a {j - 1}", f"a {j}"}) - there
        if m < gradient + running + stage.forward_overhead_bytes:
            return
        rest_m = m - tensors.added(j, [s])
        yield rerun, [(STAYS, j, end, held, rest_m), (r, s, j - 1, 0, m)]
        if not (held and j == end):
            yield rerun, [(s, j, end, held, rest_m), (r, s, j, 1, m)]
