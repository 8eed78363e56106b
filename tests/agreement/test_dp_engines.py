"""Compiled code against the numpy engine and the dense table, on chains short enough for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, simulate
from chainstay.dp import jit
from chainstay.dp.bounds.bound_pruning import MultiplierBound
from chainstay.dp.bounds.knapsack_bound import KnapsackBound
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.chain import fronts as chain_fronts
from chainstay.dp.chain.fronts import ChainFronts, is_compiled
from chainstay.dp.chain.least_memory import LeastMemory
from chainstay.dp.chain.recursion_arrays import ArraysByKind, recursion_arrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.recursion import KEEP, Recursion, assemble
from chainstay.dp.table import Table
from strategies import chains
from tensors import Tensors

numba = pytest.importorskip("numba")

MANY = settings(max_examples=500)


@MANY
@given(chains(max_stages=9), st.integers(0, 150))
@pytest.mark.long
def test_compiled_optimum_equals_numpy_and_the_dense_table(
    profile: ChainProfile, extra: int
) -> None:
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    memory = min(least.root + extra, recursion.keep_all_need)
    compiled = ChainFronts.solve(recursion, memory, least, compiled=True)
    plain = ChainFronts.solve(recursion, memory, least, compiled=False)
    overhead = compiled.root.overhead[-1]
    assert overhead == plain.root.overhead[-1]
    assert overhead == Table.fill(recursion, memory).overhead(0, len(profile) - 1, memory)
    replay = simulate(profile, assemble(recursion, memory, compiled.decide))
    assert replay.makespan == profile.least_time + overhead
    assert replay.peak_bytes <= memory + profile.input_bytes


@MANY
@given(chains(max_stages=9))
@pytest.mark.long
def test_compiled_fronts_without_a_limit_equal_numpy_corner_by_corner(
    profile: ChainProfile,
) -> None:
    recursion = Recursion.from_profile(profile)
    compiled, plain = (
        ChainFronts.all(recursion, recursion.keep_all_need, compiled=is_jitted)
        for is_jitted in (True, False)
    )
    assert compiled.root.memory.tolist() == plain.root.memory.tolist()
    assert compiled.root.overhead.tolist() == plain.root.overhead.tolist()


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(chains(max_stages=6))
def test_engines_decide_for_a_sub_chain_where_it_fits(profile: ChainProfile) -> None:
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    engines = [
        ChainFronts.all(recursion, recursion.keep_all_need, compiled=is_jitted)
        for is_jitted in (True, False)
    ]
    for s in range(len(profile)):
        for t in range(s, len(profile)):
            needed = int(least.table[s, t])
            one, other = (fronts.decide(s, t, needed) for fronts in engines)
            assert (one == KEEP) == (other == KEEP)
            too_little = needed - 1 if s == t else -1
            for fronts in engines:
                with pytest.raises(AssertionError, match=rf"no decision reaches O\({s}, {t}, "):
                    fronts.decide(s, t, too_little)


@pytest.mark.long
@MANY
@given(chains(max_stages=12))
def test_compiled_least_memory_equals_numpy(profile: ChainProfile) -> None:
    recursion = Recursion.from_profile(profile)
    assert (LeastMemory(recursion, compiled=True).table == LeastMemory(recursion).table).all()


@settings(max_examples=300, deadline=None)
@given(chains(max_stages=7), st.integers(0, 150))
@pytest.mark.parametrize("kind", [KnapsackBound, LagrangianBound])
@pytest.mark.long
def test_no_schedule_spends_less_around_a_sub_chain_than_its_price(
    kind: Callable[[ArraysByKind, int, Array], MultiplierBound],
    profile: ChainProfile,
    extra: int,
) -> None:
    least = LeastMemory(Recursion.from_profile(profile))
    memory = least.root + extra
    bound = kind(recursion_arrays(Recursion.from_profile(profile)), memory, least.table)
    multipliers = np.arange(bound.outside.shape[2])
    for (s, t, m), spent in _least_spent_around(profile, memory).items():
        if s > t:
            continue
        assert (bound.outside[s, t] + multipliers * bound.step * m).max() <= spent + 1e-6
    optimum = DP()(profile, memory + profile.input_bytes).makespan - profile.least_time
    assert bound.root <= optimum + 1e-6


@pytest.mark.long
@settings(max_examples=20, deadline=None)
@given(chains(max_stages=40, families=("plain", "fat", "wild")), st.floats(0.0, 1.0))
def test_compiled_optimum_of_longer_chains(profile: ChainProfile, share: float) -> None:
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    memory = least.root + int(share * (recursion.keep_all_need - least.root))
    compiled = ChainFronts.solve(recursion, memory, least, compiled=True)
    plain = ChainFronts.solve(recursion, memory, least, compiled=False)
    assert compiled.root.overhead[-1] == plain.root.overhead[-1]
    schedule = assemble(recursion, memory, compiled.decisions(memory))
    assert schedule == assemble(recursion, memory, compiled.decide)


def test_long_chains_get_compiled_code_and_short_ones_or_lack_of_numba_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not is_compiled(10)
    assert is_compiled(1000)
    monkeypatch.setattr(jit, "find_spec", lambda _: None)
    assert not is_compiled(1000)


@pytest.mark.long
@given(chains(max_stages=12, families=("fat",)))
def test_numpy_hands_over_where_there_are_many_breakpoints(profile: ChainProfile) -> None:
    recursion = Recursion.from_profile(profile)
    least = LeastMemory(recursion)
    plain = ChainFronts.solve(recursion, least.root, least, compiled=False)
    codes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_fronts, "_MANY", 0)
        patch.setattr(chain_fronts, "growing_limits", lambda *_, **__: iter((0, *[1 << 60] * 3)))
        fill = chain_fronts._fill

        def noting(*given: Any, compiled: bool, width: int = 0) -> Any:
            codes.append(compiled)
            return fill(*given, compiled=compiled, width=width)

        patch.setattr(chain_fronts, "_fill", noting)
        handed_over = ChainFronts.solve(recursion, least.root, least, compiled=False)
    assert handed_over.best == plain.best
    if plain.best > 0:
        assert codes[0] is False
        assert codes[-1] is True


@settings(max_examples=100)
@given(chains(), st.integers(0, 150))
def test_the_front_door_gives_one_answer_by_either_engine(
    profile: ChainProfile, extra: int
) -> None:
    recursion = Recursion.from_profile(profile)
    budget = LeastMemory(recursion).root + profile.input_bytes + extra
    plain = DP()(profile, budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chain_fronts, "_LONG", 0)
        compiled, curve = DP()(profile, budget), DP().curve(profile)
    assert compiled == plain
    assert curve.makespan(budget) == plain.makespan
    assert curve.schedule(budget) == plain.schedule or (
        simulate(profile, curve.schedule(budget)).makespan == plain.makespan
    )


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def refuse(*, nogil: bool, cache: bool = False) -> Callable[[object], object]:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        decorator: Callable[[object], object] = real(nogil=nogil)
        return decorator

    monkeypatch.setattr(numba, "njit", refuse)
    assert jit.kernel(_doubled)(21) == 42


def _doubled(x: int) -> int:
    return 2 * x


def _least_spent_around(profile: ChainProfile, memory: int) -> dict[tuple[int, int, int], float]:
    """For each (s, t, m) of any schedule: the least overhead outside, over all its schedules."""

    @cache
    def overhead(s: int, t: int, m: int) -> float:
        if s > t:
            return 0
        return min(
            (
                rerun + sum(overhead(*part) for part in parts)
                for rerun, parts in _decisions(profile, s, t, m)
            ),
            default=float("inf"),
        )

    n = len(profile)
    spent = defaultdict(lambda: float("inf"), {(0, n - 1, memory): 0.0})
    for length in range(n - 1, 0, -1):
        for (s, t, m), outside in [item for item in spent.items() if _distance(item[0]) == length]:
            for rerun, parts in _decisions(profile, s, t, m):
                total = outside + rerun + sum(overhead(*part) for part in parts)
                for part in parts:
                    if total < float("inf"):
                        spent[part] = min(spent[part], total - overhead(*part))
    return spent


def _distance(state: tuple[int, int, int]) -> int:
    return state[1] - state[0]


def _decisions(
    profile: ChainProfile, s: int, t: int, m: int
) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """Time of the rerun, and parts, of each decision for (s, t, m) as in Theorem 4.8."""
    stages, tensors = profile.stages, Tensors(profile)
    gradient = stages[t].gradient_bytes
    stage = stages[s]
    backward = tensors.gradients(s) + stage.backward_overhead_bytes
    if m >= stage.saved_bytes + max(gradient + stage.forward_overhead_bytes, backward):
        yield 0, [(s + 1, t, m - stage.saved_bytes)]
    rerun, floor = 0, 0
    for k in range(s + 1, t + 1):
        stage = stages[k - 1]
        rerun += stage.forward_time
        running = tensors.added(k - 1, [s]) + tensors.added(k, [s, k - 1])
        floor = max(floor, running + stage.forward_overhead_bytes)
        if m >= gradient + floor:
            yield rerun, [(k, t, m - tensors.added(k, [s])), (s, k - 1, m)]
