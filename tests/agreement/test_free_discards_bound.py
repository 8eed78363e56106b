"""The price bounds of free discards against the least that any schedule spends around a part."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile
from chainstay.dp import least_budget
from chainstay.dp.free_discards.lagrangian_bound import FreeDiscardsBound
from chainstay.dp.free_discards.sizes import sizes_of
from chainstay.profiles.stage import undominated
from chainstay.schedule import Discards
from strategies import with_options_of_one_stage
from tensors import Tensors

_State = tuple[int, int, int, int, int, int]
"""Sub-chain s..l with m bytes: r, s, l, held, m, under. Its input floated there from r; -1: it
stays. The last of it is held under the option `held`, the first recorded under `under`; -1: none.
"""

STAYS = NONE = -1
NEVER = float("inf")


@settings(max_examples=150, deadline=None)
@given(with_options_of_one_stage(5), st.integers(0, 150))
@pytest.mark.parametrize("rules", [Discards.FREE, Discards.TAPE])
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    rules: Discards, profile: ChainProfile, extra: int
) -> None:
    memory = least_budget(profile, discards=rules) - profile.input_bytes + extra
    by_kind, base_time = sizes_of(profile, rules)
    bound = FreeDiscardsBound(by_kind, memory)
    multipliers = np.arange(bound.outside.shape[3])
    base = _base_times(profile)
    for state, time in _least_spent_around(profile, memory, rules).items():
        r, s, end, held, m, _ = state
        lines = (bound.outside if r == STAYS else bound.dropped)[int(held >= 0), s, end]
        spent = time - base_time + base(state)
        assert (lines + multipliers * bound.step * m).max() <= spent + 1e-6, state
    optimum = DP(discards=rules)(profile, memory + profile.input_bytes).makespan
    root = (STAYS, 0, len(profile) - 1, NONE, memory, NONE)
    assert optimum == _least_times(profile, rules)(root)
    assert bound.root <= optimum - base_time + 1e-6


def _least_times(profile: ChainProfile, rules: Discards) -> Callable[[_State], float]:
    """The least time of any state."""
    tensors = Tensors(profile)

    @cache
    def least(state: _State) -> float:
        decisions = _decisions(profile, state, tensors, rules)
        return min((time + sum(map(least, parts)) for time, parts in decisions), default=NEVER)

    return least


def _least_spent_around(profile: ChainProfile, memory: int, rules: Discards) -> dict[_State, float]:
    """For each part of any schedule: the least time outside, over all its schedules."""
    tensors, least = Tensors(profile), _least_times(profile, rules)
    # parts are shorter, or as long with saved data held that were not
    levels: dict[int, set[_State]] = defaultdict(set)
    spent: dict[_State, float] = defaultdict(lambda: NEVER)
    root = (STAYS, 0, len(profile) - 1, NONE, memory, NONE)
    spent[root] = 0.0
    levels[_level(root)].add(root)
    for level in range(_level(root), -1, -1):
        for state in levels[level]:
            for time, parts in _decisions(profile, state, tensors, rules):
                total = spent[state] + time + sum(map(least, parts))
                for part in parts if total < NEVER else ():
                    spent[part] = min(spent[part], total - least(part))
                    levels[_level(part)].add(part)
    return dict(spent)


def _level(state: _State) -> int:
    _, s, end, held, _, _ = state
    return 2 * (end - s) + 1 - (held >= 0)


def _decisions(  # noqa: C901  # one case each
    profile: ChainProfile, state: _State, tensors: Tensors, rules: Discards
) -> Iterator[tuple[int, list[_State]]]:
    """Time and parts of each decision of `chainstay.dp.free_discards.solver`."""
    r, s, end, held, m, under = state
    gradient, is_first = profile.gradient_bytes(end + 1), held < 0 and end == len(profile) - 1
    kept = {f"a {s}", *([f"saved {end} {held}"] if held >= 0 else [])}
    there = tensors.stored([f"a {s}"])
    options = profile.stages[s].all_options
    if held >= 0 and s == end:
        need = tensors.stored({*kept}) - there + tensors.gradients(s)
        if m >= need + options[held].backward_overhead_bytes:
            yield 0, []
        return
    for k in undominated(options) if r == STAYS else [under]:
        run, saved = options[k].run(first=is_first), f"saved {s} {k}"
        need = tensors.stored({*kept, saved}) - there + run.overhead_bytes + gradient
        if r == STAYS:
            backward = tensors.stored({f"a {s}", saved}) - there + tensors.gradients(s)
            need = max(need, backward + options[k].backward_overhead_bytes)
        if m >= need:
            freed = 0
            if r != STAYS:
                rest = {f"a {r}", saved}
                freed = tensors.stored({*rest, f"a {s}"}) - tensors.stored(rest)
            inner = (STAYS, s + 1, end, held, m - options[k].saved_bytes + freed, NONE)
            # the backward of a part that drops its input counts here as well
            yield run.time + run.backward_time, [inner] if s < end else []
    time = 0
    for j in range(s + 1, end + 1):
        run = profile.stages[j - 1].dropped(first=is_first)
        time += run.time
        running = tensors.stored({*kept, f"a {j - 1}", f"a {j}"}) - there
        if m < gradient + running + run.overhead_bytes:
            return
        rest_m = m - tensors.added(j, [s])
        yield time, [(STAYS, j, end, held, rest_m, NONE), (r, s, j - 1, NONE, m, under)]
        every = profile.stages[j].all_options
        for k in [] if held >= 0 and j == end else undominated(every):
            option, later = every[k], (s, j, end, held, rest_m, k)
            back = tensors.stored({f"a {s}", f"saved {j} {k}"}) - there + tensors.gradients(j)
            if not option.needs_input and m >= back + option.backward_overhead_bytes:
                yield time, [later, (r, s, j - 1, NONE, m, under)]
            if option.needs_input and rules is Discards.FREE:
                yield time, [later, (r, s, j, k, m, under)]


def _base_times(profile: ChainProfile) -> Callable[[_State], int]:
    """The time of a state above which its overhead is counted."""
    first, again = [], []
    for stage in profile.stages:
        runs = [(option.run(first=True), option.run(first=False)) for option in stage.all_options]
        again.append(min(later.time + later.backward_time for _, later in runs))
        kept = min(run.time + run.backward_time for run, _ in runs)
        first.append(min(kept, stage.dropped(first=True).time + again[-1]))

    def base(state: _State) -> int:
        _, s, end, held, _, _ = state
        if held >= 0:
            return sum(again[s:end])
        return sum((first if end == len(profile) - 1 else again)[s : end + 1])

    return base
