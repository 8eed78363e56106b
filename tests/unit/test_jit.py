"""Kernels: as they are written, and compiled, they say the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile
from chainstay.dp import jit, least_budget
from strategies import FAMILIES_WITHOUT_SKIPS, chains

pytestmark = pytest.mark.skipif(not jit.is_available(), reason="needs numba")


@settings(max_examples=60, deadline=None)
@given(
    chains(max_stages=20, families=FAMILIES_WITHOUT_SKIPS),
    st.integers(0, 300),
    st.sampled_from([("strong", "table1"), ("weak", "table1"), ("strong", "free")]),
)
@pytest.mark.long
def test_interpreted_is_compiled(
    profile: ChainProfile, extra: int, family: tuple[str, str]
) -> None:
    persistence, discards = family
    method = DP(persistence=persistence, discards=discards)
    budget = least_budget(profile, persistence=persistence, discards=discards) + extra
    with jit.interpreted():
        written = method(profile, budget)
    assert method(profile, budget) == written


@jit.kernel
def _doubled(number: int) -> int:
    return 2 * number


@jit.kernel
def _and_one(number: int) -> int:
    return _doubled(number) + 1


def test_kernels_call_kernels_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _and_one(3) == 7
    with jit.interpreted():
        assert _and_one(3) == 7
        monkeypatch.setattr(f"{__name__}._doubled", lambda number: 100 * number)
        assert _and_one(3) == 301
    assert _and_one(3) == 7  # compiled before


def test_interpretation_ends_when_it_has_cost_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_spent_s", [0.0])
    ran = []
    times = iter([0.0, jit._ALLOWANCE_S + 1.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(times))
    for _ in range(2):
        with jit.at_first_interpreted(when=True):
            ran.append(jit._INTERPRETED.get())
    with jit.at_first_interpreted(when=False):
        ran.append(jit._INTERPRETED.get())
    assert ran == [True, False, False]


def test_compiled_code_is_kept_by_a_hash_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = jit.cache_folder()
    assert jit.cache_folder.__wrapped__() == folder
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"# edited")
    assert jit.cache_folder.__wrapped__() != folder
    assert _and_one(3) == 7
    assert list(folder.rglob("*.nbi"))
    assert jit.is_compiled()
    monkeypatch.setattr(jit, "cache_folder", jit.cache_folder.__wrapped__)
    assert not jit.is_compiled()


def test_the_first_compilation_on_a_machine_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(jit, "_compiled", [])
    monkeypatch.setattr(jit, "cache_folder", lambda: tmp_path / "kernels")
    told: list[str] = []
    with jit.compilation_told(told.append):
        for _ in range(2):
            assert jit.kernel(lambda number: 3 * number)(2) == 6
    assert told == [jit.COMPILING]
    jit._compiled.clear()
    (tmp_path / "kernels").mkdir(exist_ok=True)
    with jit.compilation_told(told.append):
        assert jit.kernel(lambda number: 4 * number)(2) == 8
    assert len(told) == 1
