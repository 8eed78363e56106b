"""``chainstay verify``: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chainstay.cli import app
from chainstay.dp import DP
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule
from chainstay.solution import Claim, Family
from chainstay.verify import ChainSuite, Check, MethodUnderTest
from chainstay.verify.chains import CHAIN_METHODS
from chainstay.verify.offloads import OFFLOAD_METHODS


@dataclasses.dataclass(frozen=True)
class Liar:
    """Promises too much."""

    def __str__(self) -> str:
        return "liar"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        claim = DP()(profile, budget, hint=hint)
        return dataclasses.replace(claim, lower_bound=claim.makespan + 1)


LIAR = MethodUnderTest(method=Liar(), family=Family.PERSISTENT, most_stages=20)


def chainstay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})


def test_a_clean_run_ends_with_a_summary_and_status_0() -> None:
    result = chainstay("verify", "--instances", "8", "--seed", "1")
    assert result.exit_code == 0
    assert "No contradiction: 8 chains of seed 1 in" in result.stdout
    for tested in CHAIN_METHODS:
        assert tested.name in result.stdout
        assert tested.sampling in result.stdout


def test_a_method_that_is_run_on_other_networks_has_a_row_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = tuple(MethodUnderTest(method=DP(), most_stages=most) for most in (3, 20))
    monkeypatch.setattr("chainstay.verify.SUITES", {"chain": ChainSuite(methods)})
    result = chainstay("verify", "--instances", "12", "--workers", "1", "--json")
    few, all_of_them = json.loads(result.stdout)["methods"]
    assert (few["method"], few["run_on"]) == ("dp", "all, n ≤ 3")
    assert 0 < few["number"] < all_of_them["number"] == 12


def test_a_contradiction_is_written_down_and_ends_with_status_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chainstay.verify.SUITES", {"chain": ChainSuite((LIAR,))})
    folder = str(tmp_path / "new")
    result = chainstay(
        "verify", "--seed", "4", "--first", "7", "--workers", "1", "--output", folder
    )
    assert result.exit_code == 1
    assert "Contradiction: " in result.stdout
    assert "less than the claimed lower bound" in result.stdout
    assert "Minimised to 1 stages" in result.stdout
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith("counter-example-chain-4-")
    document = json.loads(path.read_text())
    assert document["number"] >= 7
    assert document["answers"][0]["method"] == "liar"


def test_offloading_is_verified_too() -> None:
    result = chainstay("verify", "--problem", "offload", "--instances", "24", "--seed", "1")
    assert result.exit_code == 0
    assert "No contradiction: 24 offloading instances of seed 1 in" in result.stdout
    for tested in OFFLOAD_METHODS:
        assert tested.name in result.stdout


@pytest.mark.long
def test_several_processes_check_all_instances() -> None:
    result = chainstay("verify", "--instances", "101", "--seed", "1", "--workers", "2")
    assert result.exit_code == 0
    assert "No contradiction: 101 chains of seed 1 in" in result.stdout


@pytest.mark.long
def test_hybrids_are_checked_too() -> None:
    result = chainstay("verify", "--problem", "hybrid", "--instances", "12", "--workers", "1")
    assert result.exit_code == 0
    assert "No contradiction: 12 hybrid instances of seed 0 in" in result.stdout


def test_joins_are_checked_too() -> None:
    result = chainstay("verify", "--problem", "join", "--instances", "6", "--seed", "1")
    assert result.exit_code == 0
    assert "No contradiction: 6 joins of seed 1 in" in result.stdout


def test_unknown_problems_are_refused() -> None:
    assert chainstay("verify", "--problem", "knapsack").exit_code == 2


def test_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainstay.dp.jit.is_compiled", lambda: False)
    result = chainstay("verify", "--instances", "1000000", "--seconds", "0")
    assert "the solvers are compiled, which takes a minute or two" in result.stderr
    assert result.exit_code == 0
    assert "No contradiction: 0 chains" in result.stdout


def test_ctrl_c_shows_what_is_known_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(ChainSuite):
        def checks(self, numbers: Iterable[int], *, seed: int, workers: int = 1) -> Iterator[Check]:
            del numbers, seed, workers
            raise KeyboardInterrupt

    monkeypatch.setattr("chainstay.verify.SUITES", {"chain": Interrupted()})
    result = chainstay("verify")
    assert result.exit_code == 130
    assert "Interrupted before the first instance was checked." in result.stderr
    assert not result.stdout
    result = chainstay("verify", "--json")
    assert json.loads(result.stdout)["checked"] == 0
    assert "Traceback" not in result.output


def test_without_a_command_there_is_help() -> None:
    assert "verify" in chainstay().output


def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "chainstay", "verify", "--seconds", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "No contradiction: 0 chains" in result.stdout
