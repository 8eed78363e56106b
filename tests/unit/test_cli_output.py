"""What is printed and drawn: tables of every kind, bars on a terminal, pictures of memory."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner, Result

from chainstay import ChainProfile, JoinProfile, Schedule, Stage, load_plan
from chainstay.cli import app, output_files, strategies, terminal, training_steps
from chainstay.cli.commands.profile import stage_costs_table
from chainstay.cli.exit_codes import ExitCode, exit_code_for
from chainstay.cli.models.workload import default_loss
from chainstay.cli.terminal import short_bytes
from chainstay.cli.training_steps import TrainingRecord, fits_here
from chainstay.errors import (
    BackendError,
    CertificateError,
    ChainstayError,
    InvalidProfileError,
    SolverLimitError,
    UnsupportedModelError,
)
from chainstay.solve import solve_chain
from chainstay.validation.simulate import simulate
from comparison_table import ComparisonRow, comparison

STAGE = Stage(
    name="stage", forward_time=10**6, backward_time=2 * 10**6, output_bytes=1000,
    saved_bytes=3000, gradient_bytes=1000, backward_overhead_bytes=2048,
)  # fmt: skip
CHAIN = ChainProfile(input_bytes=1000, input_gradient_bytes=0, stages=(STAGE,) * 4)
CONTRADICTION = CertificateError(
    "the replay says 7", profile=CHAIN, budget=3, statements=("dp",), report="all of it"
)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chain.json").write_text(CHAIN.to_json())


def chainstay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def printed(*tables: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=100)
    for table in tables:
        console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1.00 KiB"), (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"), (5 * 2**30 // 2, "2.50 GiB"),
    ],
)  # fmt: skip
def test_sizes_have_three_digits(size: int, text: str) -> None:
    assert short_bytes(size) == text


def test_every_stage_has_a_row() -> None:
    chain = printed(stage_costs_table(CHAIN))
    assert " ".join(chain[2].split()) == "0 stage 1 ms 2 ms 1000 B 2.93 KiB 2.00 KiB"
    assert len(chain) == 2 + len(CHAIN)


def test_what_was_measured_is_shown_beside_what_was_planned() -> None:
    way = ComparisonRow(
        name="planned", predicted_peak=2**20, measured_peak=2**20, predicted_time=10**6,
        measured_time=3 * 10**6, is_optimal=True,
    )  # fmt: skip
    over = replace(way, name="other", measured_peak=2**20 + 2**10, is_optimal=False)
    other = replace(way, name="torch", predicted_peak=None, predicted_time=None, is_optimal=None)
    table = comparison("a net", 2**20, 2 * 10**6, (way, over, other))
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if "+50.0%" in line]
    assert [row.split()[-1] for row in rows] == ["yes", "no", "–"]
    assert [row.count("–") for row in rows] == [0, 0, 3]
    red, green = "\x1b[31m", "\x1b[32m"
    assert [(red in row, green in row) for row in rows] == [
        (False, True), (True, False), (False, True),
    ]  # fmt: skip


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("measured", [(), (0.0, 1.0, 2.0)])
def test_memory_is_drawn(suffix: str, measured: Sequence[float]) -> None:
    plots = pytest.importorskip("memory_plot")
    plain = simulate(CHAIN, Schedule.keep_all(len(CHAIN)))
    panel = plots.MemoryPanel(
        title="a net\n" + "long " * 40, planned=plain, plain_peak_bytes=plain.peak_bytes,
        budget=plain.peak_bytes, measured_times=measured,
        measured_bytes=[500 * (1 + index) for index in range(len(measured))],
    )  # fmt: skip
    path = Path(f"memory.{suffix}")
    plots.plot_memory([panel] * 2, path)
    content = path.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])
    if suffix == "svg":  # whose words are comments beside their outlines
        assert content.count(b"<!-- planned: gradients -->") == 2
        assert content.count(b"<!-- measured -->") == (2 if measured else 0)
        assert content.count(b"<!-- a net") == 2


def test_bars_and_spinners_are_for_people_who_look(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(encoding: str, *, is_terminal: bool) -> str:
        raw = io.BytesIO()
        file = io.TextIOWrapper(raw, encoding=encoding, errors="replace")
        console = Console(file=file, force_terminal=is_terminal, width=80)
        monkeypatch.setattr(terminal, "error_console", lambda: console)
        with terminal.progress_bar("first [bold]\x1b", 2) as step:
            step("second")
            step("third")
        with terminal.spinner("waiting\x07") as stop:
            stop()
        file.flush()
        return raw.getvalue().decode(encoding)

    assert drawn("utf-8", is_terminal=False) == ""
    for encoding in ("utf-8", "ascii"):
        text = drawn(encoding, is_terminal=True)
        assert "2/2" in text
        assert "third" in text
        assert "\x07" not in text
        assert ("━" in text) == (encoding == "utf-8")


def test_text_that_is_to_be_copied_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result("word " * 100, wrap=False)
    terminal.print_result("word " * 100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].count("word") == 100
    assert len(lines) > 2
    assert max(map(len, lines[1:])) <= 200


def test_what_a_solver_says_instead_of_a_plan() -> None:
    def failing(error: ChainstayError) -> Callable[[], Any]:
        def solve() -> None:
            raise error

        return solve

    for error, remark in (
        (SolverLimitError("no time"), "time limit reached"),
        (InvalidProfileError("it has skips"), "no skips allowed"),
        (InvalidProfileError("it has no stage"), "not applicable"),
        (UnsupportedModelError("no"), "not applicable"),
        (BackendError("no solver"), "solver not installed"),
    ):
        strategy = strategies.solve_strategy("a strategy", failing(error))
        assert (strategy.remark, strategy.solution) == (remark, None)
        told = "raise --time-limit" if isinstance(error, SolverLimitError) else str(error)
        with pytest.raises(type(error), match=told):
            strategies.fastest_strategy([strategy])
    solution = solve_chain(CHAIN, 10**6)
    unproved = replace(solution, lower_bound=0)
    assert strategies.solve_strategy("a strategy", lambda: unproved).remark == "no bound"
    assert strategies.solve_strategy("a strategy", lambda: solution).remark == "optimal"


def test_every_error_has_its_status() -> None:
    assert exit_code_for(SolverLimitError("no time")) == ExitCode.UNSOLVED
    assert exit_code_for(BackendError("no solver")) == ExitCode.UNSOLVED
    assert exit_code_for(CONTRADICTION) == ExitCode.FAILED


def test_a_contradiction_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    def contradicted(*_: object, **__: object) -> None:
        raise CONTRADICTION

    monkeypatch.setattr("chainstay.cli.profile_plans.solve_chain", contradicted)
    result = chainstay("plan", "chain.json", "-b", "80%")
    assert result.exit_code == 1
    assert "the replay says 7" in result.stderr
    assert Path("chainstay-contradiction.json").read_text() == "all of it"


@pytest.mark.parametrize("discards", ["tape", "table1", "free"])
def test_exact_solvers_of_profile_files_agree(discards: str) -> None:
    """Two programs that share no code, and the dynamic program, which on such chains is exact."""
    pytest.importorskip("ortools")
    found = {}
    for method in ("dp", "weak", "mip", "cpsat"):
        line = ("plan", "chain.json", "-b", "70%", "--method", method, "--discards", discards)
        result = chainstay(*line)
        assert result.exit_code == 0, result.output
        solution = load_plan("plan.json").solution
        assert solution.is_optimal
        found[method] = solution.makespan
    assert found["mip"] == found["cpsat"]
    assert found["mip"] <= min(found["weak"], found["dp"])
    if discards != "free":  # which the weak program does not use
        assert found["weak"] <= found["dp"]


def test_joins_of_files_are_not_offloaded_and_slots_are_no_bytes() -> None:
    slots = JoinProfile.homogeneous((2, 3), forward_time=1, backward_time=1, turn_time=1)
    Path("slots.json").write_text(slots.to_json())
    result = chainstay("plan", "slots.json", "-b", "6")
    assert result.exit_code == 0, result.output
    assert "budget: 6 slots" in result.stdout
    assert "  6 slots  " in result.stdout
    assert " B " not in result.stdout
    assert " ns " not in result.stdout
    assert " time units in " in result.stdout
    assert "bytes" not in result.stdout
    refused = chainstay("plan", "slots.json", "-b", "6", "--offload", "--link", "1GB/s")
    assert refused.exit_code == 2
    assert "joins are not offloaded yet" in refused.stderr
    for method in ("mip", "cpsat"):
        again = chainstay("plan", "slots.json", "-b", "6", "--method", method, "-o", "other.json")
        assert again.exit_code == 0, again.output
        assert load_plan("other.json").solution.makespan <= load_plan("plan.json").solution.makespan


def test_a_report_never_replaces_its_plan_or_half_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chainstay("plan", "chain.json", "-b", "80%").exit_code == 0
    before = Path("plan.json").read_bytes()
    refused = chainstay("report", "plan.json", "--trace", "plan.json")
    assert refused.exit_code == 2
    assert "plan.json is the file that is read" in refused.stderr
    assert Path("plan.json").read_bytes() == before

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_files, "write_file", full)
    refused = chainstay("report", "plan.json", "--svg", "p.svg")
    assert refused.exit_code == 2
    assert "p.svg cannot be written: No space left on device" in refused.stderr


def test_trainings_differ_in_what_is_named() -> None:
    ones, twos = torch.ones(2), torch.full((2,), 2.0)
    odd = torch.tensor([1.0, float("nan")])
    first = TrainingRecord((ones[0],), {"a": ones, "b": odd, "c": ones})
    assert not list(first.differences(first)), "no number is the same as no number"
    other = TrainingRecord((twos[0],), {"a": ones.double(), "b": odd.clone(), "d": ones})
    assert list(first.differences(other)) == ["loss of step 1", "a", "c", "d"]
    assert list(first.differences(replace(first, tensors={**first.tensors, "a": odd}))) == ["a"]


def test_what_fits_is_known_where_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = "MemTotal: 1000 kB\nMemAvailable: 100 kB\n"

    class File:
        def __init__(self, _: str) -> None: ...

        def read_text(self, **_: str) -> str:
            if not meminfo:
                raise FileNotFoundError(2, "No such file or directory")
            return meminfo

    monkeypatch.setattr(training_steps, "Path", File)
    cpu = torch.device("cpu")
    assert fits_here(81_919, cpu)
    assert not fits_here(81_921, cpu)
    meminfo = "MemTotal: 1 kB\n"
    assert fits_here(2**60, cpu)
    meminfo = ""
    assert fits_here(2**60, cpu)
    accelerator = SimpleNamespace(free_bytes=lambda: 1000)
    monkeypatch.setattr(training_steps, "accelerator_at", lambda _: accelerator)
    assert fits_here(799, torch.device("cuda"))
    assert not fits_here(800, torch.device("cuda"))


def test_the_usual_loss_depends_on_all_that_can_be_trained() -> None:
    scores = torch.zeros(2, 5, requires_grad=True)
    pixels = torch.zeros(2, 3, 4, 4, requires_grad=True)
    number = torch.ones(3, requires_grad=True)
    loss = default_loss({"a": scores, "b": (pixels, torch.arange(3)), "c": number})
    expected = torch.tensor(5.0).log() + torch.tensor(3.0).log() + 1
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert all(tensor.grad is not None for tensor in (scores, pixels, number))
    with pytest.raises(ChainstayError, match="a Tensor, has no tensor that could be trained"):
        default_loss(torch.arange(3))


def test_printing_never_fails_for_want_of_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # as some programs put in its place
    terminal.use_nearest_characters()
    sys.stdout.write("4 µs → 5 × 日")
    sys.stdout.flush()
    assert raw.getvalue() == b"4 us -> 5 x ?"
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("ascii", errors="chainstay-nearest")


@pytest.mark.long
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_failure(as_json: tuple[str, ...]) -> None:
    """As in ``chainstay plan ... | head -1``: the file is there, and the status 0."""
    reader, writer = os.pipe()
    os.close(reader)
    line = [sys.executable, "-m", "chainstay", "plan", "chain.json", "-b", "80%", "-o", "p.json"]
    root = str(Path(__file__).parents[2])
    result = subprocess.run(
        [*line, *as_json], stdout=writer, stderr=subprocess.PIPE, check=False,
        env={**os.environ, "PYTHONPATH": root},
    )  # fmt: skip
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")
    assert Path("p.json").exists()


def test_tables_are_at_least_80_columns_wide(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    table = terminal.new_table()
    table.add_column("name")
    table.add_row("x" * 70)
    terminal.print_table(table)
    assert "x" * 70 in capsys.readouterr().out
