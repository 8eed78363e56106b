"""The other commands: what they print and write, and how ten wrong command lines end."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from chainstay import ChainProfile, JoinProfile, OffloadProfile, Stage, applying, load_plan
from chainstay.cli import app, output_files, profile_plans, training_run
from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.models.named_models import ModelSpec
from chainstay.cli.solver_methods import parse_link
from chainstay.documents import dump
from chainstay.errors import InvalidScheduleError

MODELS = '''
import torch
from torch import nn

def net(depth=4):
    """Returns a model only."""
    torch.manual_seed(0)
    blocks = (nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(depth))
    return nn.Sequential(*blocks)

MODEL = net()

def trained():
    return net(), (torch.randn(8, 32),), {}, lambda output: output.square().mean()

def tokens():
    return nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11))

class Wrong(nn.Linear):
    """Gives something else when it is planned."""

    def forward(self, x):
        return super().forward(x) + (hasattr(self, "odd") and self.odd)

class Cheap(nn.Linear):
    """Most of what it saves is cheap to make again."""

    def forward(self, x):
        return super().forward(nn.functional.gelu(x.sigmoid().tanh()))

def cheap():
    torch.manual_seed(0)
    return nn.Sequential(*(Cheap(256, 256) for _ in range(4))), (torch.randn(1024, 256),)

def in_a_dict():
    return net(), (torch.randn(8, 32),), {}, lambda output: {"loss": output.mean()}

def broken():
    raise RuntimeError("no such weights")

def nothing():
    return 7
'''

STAGE = Stage(
    name="stage [bold]\x1b[2J", forward_time=10**6, backward_time=2 * 10**6, output_bytes=1000,
    saved_bytes=3000, gradient_bytes=1000,
)  # fmt: skip
CHAIN = ChainProfile(input_bytes=1000, input_gradient_bytes=0, stages=(STAGE,) * 6)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "chain.json").write_text(CHAIN.to_json())


@pytest.fixture(autouse=True)
def _modules() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path


def chainstay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def read(name: str) -> dict[str, object]:
    document: dict[str, object] = json.loads(Path(name).read_text())
    return document


def test_a_model_is_profiled_planned_run_and_shown() -> None:
    profiled = chainstay("profile", "models.py:net", "-i", "16x32", "--repeats", "1")
    assert profiled.exit_code == 0, profiled.output
    assert "models.py:net on 16 x 32 float32, the CPU" in profiled.stdout
    assert "plain training: " in profiled.stdout
    assert "wrote profile.json; next: chainstay plan profile.json --budget 50%" in profiled.stdout
    profile = ChainProfile.from_json(Path("profile.json").read_text())
    assert len(profile) == 9  # two a block, and the loss
    assert profile.stages[-1].name == "loss"

    planned = chainstay("plan", "models.py:net", "-i", "16x32", "-b", "80%", "--repeats", "1")
    assert planned.exit_code == 0, planned.output
    assert "80% of what plain training needs" in planned.stdout
    assert " >  recompute " in planned.stdout
    plan = load_plan("plan.json")
    assert plan.model == "models.py:net"
    assert plan.fingerprint is not None
    assert plan.solution.peak_bytes <= plan.solution.budget

    arguments = ("run", "models.py:net", "-i", "16x32", "-p", "plan.json", "--steps", "2")
    run = chainstay(*arguments)
    assert run.exit_code == 0, run.output
    assert "equal, bit for bit" in run.stdout
    assert ": kept; 9 stages" in run.stdout
    told = json.loads(chainstay(*arguments, "--json", "--no-compare").stdout)
    assert told["within_budget"] is True
    assert told["equal"] is None
    assert told["measured_peak_bytes"] <= told["planned_peak_bytes"] <= told["budget"]

    other = chainstay("run", "models.py:net", "-i", "8x32", "-p", "plan.json")
    assert other.exit_code == 5
    assert "argument args[0]: is (8, 32)" in other.stderr

    reported = chainstay("report", "plan.json", "--png", "p.png", "--trace", "t.json")
    assert reported.exit_code == 0, reported.output
    assert Path("p.png").read_bytes()[:4] == b"\x89PNG"
    assert read("t.json")["traceEvents"]


@pytest.mark.usefixtures("equal_times")
def test_a_plan_that_keeps_stages_in_part_is_told_run_and_shown() -> None:
    line = ("plan", "models.py:cheap", "-b", "90%", "--repeats", "1")
    planned = chainstay(*line)
    assert planned.exit_code == 0, planned.output
    assert "keeps in part: " in planned.stdout
    assert "x  drops " in planned.stdout
    assert load_plan("plan.json").choices
    run = chainstay("run", "models.py:cheap", "-p", "plan.json", "--steps", "2")
    assert run.exit_code == 0, run.output
    assert "equal, bit for bit" in run.stdout
    assert chainstay("report", "plan.json", "-o", "plan.html").exit_code == 0
    assert "Kept in part" in Path("plan.html").read_text()

    whole = chainstay(*line, "--no-stage-options", "-o", "whole.json")
    assert whole.exit_code == 0, whole.output
    assert "keeps in part" not in whole.stdout
    assert not load_plan("whole.json").choices


def test_an_estimated_model_can_be_moved_and_kept_in_part() -> None:
    line = ("plan", "models.py:cheap", "--device", "T4", "-b", "70%", "--offload")
    planned = chainstay(*line, "--link", "1000GB/s")
    assert planned.exit_code == 0, planned.output
    assert "not applicable" not in planned.stdout
    plan = load_plan("plan.json")
    assert any(op.kind.is_transfer for op in plan.solution.schedule)
    assert chainstay("report", "plan.json", "-o", "plan.html").exit_code == 0


def test_a_way_that_does_not_fit_as_it_runs_is_one_row_of_the_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise InvalidScheduleError("nothing that may move is there")

    monkeypatch.setattr("chainstay.fitting.strategies.fastest.solve_offloaded", refused)
    line = ("plan", "models.py:trained", "-b", "85%", "--offload", "--link", "1GB/s")
    planned = chainstay(*line, "--repeats", "1")
    assert planned.exit_code == 0, planned.stderr
    assert "does not fit as it runs" in " ".join(planned.stdout.split())


def test_a_function_may_give_the_call_and_the_loss_and_offload() -> None:
    line = ("plan", "models.py:trained", "-b", "85%", "--offload", "--link", "1GB/s")
    planned = chainstay(*line, "--repeats", "1")
    assert planned.exit_code == 0, planned.output
    assert " offload " in planned.stdout
    run = chainstay("run", "models.py:trained", "-p", "plan.json", "--steps", "1")
    assert run.exit_code == 0, run.output
    assert "equal, bit for bit" in run.stdout


def test_tokens_are_made_for_models_that_begin_with_an_embedding() -> None:
    result = chainstay("profile", "models.py:tokens", "-i", "2x5", "--repeats", "1", "--json")
    assert result.exit_code == 0, result.output
    first = ChainProfile.from_json(result.stdout).stages[0]
    assert first.forward_overhead_bytes >= 2 * 5 * 8, "what no gradient goes back to, is there"
    assert not Path("profile.json").exists(), "with --json, files are written on request only"


def test_a_step_that_is_wrong_or_too_large_ends_with_status_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chainstay("plan", "models.py:net", "-i", "16x32", "-b", "80%", "--repeats", "1")
    line = ("run", "models.py:net", "-i", "16x32", "-p", "plan.json", "--steps", "1")
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "measure_peak", lambda _: 10**9)
        over = chainstay(*line)
    assert over.exit_code == 1
    assert "EXCEEDED" in over.stdout

    applied = applying.apply_plan

    def shifted(model, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
        applied(model, *args, **kwargs)
        plain = model.forward
        del model.forward

        def forward(*inner):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN202
            return plain(*inner) * 1.0001

        model.forward = forward
        model.chainstay.uninstall = lambda _: vars(model).pop("forward")

    monkeypatch.setattr(training_run, "apply_plan", shifted)
    wrong = chainstay(*line)
    assert wrong.exit_code == 1, wrong.output
    assert "DIFFERENT in " in wrong.stdout
    assert "loss of step 1" in wrong.stdout


def test_bench_runs_what_others_do_too() -> None:
    line = ("bench", "models.py:net?depth=3", "-i", "16x32", "-b", "90%,1%")
    result = chainstay(*line, "--steps", "1", "--segments", "2", "--repeats", "1", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    ways = [row["way"] for row in rows]
    assert ways[0] == "plain PyTorch"
    assert any(way.startswith("torch checkpoint (") for way in ways)
    assert ways[-2:] == ["chainstay 90%", "chainstay 1%"]
    assert rows[-1]["note"].startswith("needs ")
    for row in rows[:-1]:
        assert row["measured_ns"] > 0
        if not row["way"].startswith("torch"):  # which keeps a random state for each segment
            assert 0 < row["measured_peak"] <= row["planned_peak"]
    assert rows[-2]["measured_peak"] <= rows[-2]["budget"]


def test_profile_files_are_planned_without_a_model() -> None:
    result = chainstay("plan", "chain.json", "-b", "60%", "--offload", "--link", "1GB/s")
    assert result.exit_code == 0, result.output
    assert "chain.json: 6 stages" in result.stdout
    for way in ("keep everything", "torch checkpoint", "recompute", "offload", "both"):
        assert way in result.stdout
    assert load_plan("plan.json").fingerprint is None
    run = chainstay("run", "models.py:net", "-i", "16x32", "-p", "plan.json")
    assert run.exit_code in (2, 5)


@pytest.mark.long
def test_a_strategy_that_needs_more_host_memory_is_no_reason_to_give_up() -> None:
    offload = ("--offload", "--link", "1GB/s", "--host-budget", "1B")
    result = chainstay("plan", "chain.json", "-b", "60%", *offload)
    assert result.exit_code == 0, result.stderr
    assert "of host memory" in result.stdout
    assert "recompute: " in result.stdout


def test_joins_and_offloading_are_planned_from_files() -> None:
    tower = ChainProfile(input_bytes=1000, input_gradient_bytes=0, stages=(STAGE,) * 3)
    files = {
        "join.json": (JoinProfile(branches=(tower, tower)).to_json(), "80%"),
        "slots.json": (
            JoinProfile.homogeneous((2, 3), forward_time=1, backward_time=1, turn_time=1).to_json(),
            "6",
        ),
        "offload.json": (OffloadProfile.from_chain(CHAIN).to_json(), "70%"),
    }
    for name, (text, budget) in files.items():
        Path(name).write_text(text)
        link = ("--offload", "--link", "1GB/s") if name == "offload.json" else ()
        result = chainstay("plan", name, "-b", budget, *link, "--json", "-o", f"plan-{name}")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout) == read(f"plan-{name}")
        assert load_plan(f"plan-{name}").solution.makespan > 0


def test_names_from_files_do_not_steer_the_terminal() -> None:
    Path("profile.json").write_text(CHAIN.to_json())
    chainstay("plan", "profile.json", "-b", "60%")
    Path("plan.json").write_text(
        Path("plan.json").read_text().replace('"model": "', '"model": "\\u001b[31m')
    )
    result = chainstay("report", "plan.json", "--trace", "t.json")
    assert "\x1b" not in result.output


def test_a_trace_is_compressed_if_its_name_says_so() -> None:
    Path("profile.json").write_text(CHAIN.to_json())
    chainstay("plan", "profile.json", "-b", "60%")
    assert chainstay("report", "plan.json", "--trace", "t.json.gz").exit_code == 0
    assert json.loads(gzip.decompress(Path("t.json.gz").read_bytes()))["traceEvents"]


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("plan resnet50 -b 50%", 2, "for example torchvision:resnet50"),
        ("plan torchvision:resnet500 -b 50%", 2, "did you mean resnet50"),
        ("plan hf:gtp2 -b 50%", 2, "did you mean gpt2"),
        ("plan hf:gpt2?layers=2 -b 50%", 2, "the configuration of gpt2 has no 'layers'"),
        ("plan models.py -b 50%", 2, "models.py:function"),
        ("plan models.py:absent -b 50%", 2, "models.py has no function 'absent'"),
        ("plan models.py:nothing -b 50%", 2, "something of type int, must return a model"),
        ("run models.py:in_a_dict -b 100% --repeats 1", 4, "the loss returns a dict, must return"),
        ("plan models.py:MODEL -b 50%", 2, "is a model itself, must be a function"),
        ("plan models.py:broken -b 50%", 4, "RuntimeError: no such weights (models.py, line"),
        ("plan absent.py:net -b 50%", 2, "there is no file absent.py"),
        ("plan models.py:net -b 50%", 2, "write --input 32x3x224x224"),
        ("plan models.py:net -b 50% -i 8,32", 2, "--input is '8,32', must be sizes such as"),
        ("plan models.py:net -b 50% -i 8x33", 4, "fails"),
        ("plan models.py:net -b lots -i 8x32", 2, "--budget is 'lots'; write bytes, '8GiB'"),
        ("plan models.py:net -i 8x32", 2, "Missing option '--budget'"),
        ("plan models.py:net -i 8x32 -b 1% --repeats 1", 3, "the least feasible budget known is"),
        ("plan models.py:net -b 50% -i 8x32 --device cuda:7", 2, "by its data sheet"),
        (
            "plan models.py:net -b 50% -i 8x32 --device B300",
            2,
            "must be cpu, cuda, cuda:1 or one of A100-40GB",
        ),
        ("plan models.py:net -b 50% -i 8x32 --link 1GB/s", 2, "with --offload only"),
        ("plan models.py:net -b 50% -i 8x32 --offload --link fast", 2, "a speed such as 12GB/s"),
        ("plan models.py:net -b 50% -i 8x32 --granularity thin", 2, "must be fine, blocks or"),
        ("plan models.py:net -b 50% -i 8x32 -o no/where.json", 2, "there is no folder"),
        ("plan chain.json -b 50% -o chain.json", 2, "chain.json is the file that is read; choose"),
        ("profile models.py:net?depth=2 -i 8x32 -o ./models.py", 2, "models.py is the file that"),
        ("plan models.py:net -b 50% -i 8x32 --method magic", 2, "'magic'"),
        ("plan chain.json -b 1%", 3, "the least feasible budget is"),
        ("plan chain.json -b 50% -i 8x32", 2, "--input is for models, and chain.json is a profile"),
        ("plan chain.json -b 50% --no-stage-options", 2, "--no-stage-options is for models, and"),
        ("plan chain.json -b 50% --repeats 9", 2, "--repeats is for models, and chain.json is a"),
        ("plan slots.json -b 6 --method weak", 2, "--method weak is for chains, and slots.json"),
        ("plan slots.json -b 6 --discards table1", 2, "--discards table1 is for chains, and slot"),
        (
            "plan chain.json -b 50% --method dp --time-limit 3",
            2,
            "--time-limit is for --method mip",
        ),
        (
            "plan models.py:net -b 50% -i 8x32 --cache chain.json",
            2,
            "--cache is 'chain.json'",
        ),
        ("plan models.py:net -b 50% --discards tape", 2, "--discards is for profile files, and m"),
        ("plan chain.json -b 50% --offload", 2, "as in --offload --link 12GB/s"),
        ("plan absent.json -b 50%", 2, "absent.json: No such file"),
        ("plan broken.json -b 50%", 2, "not JSON"),
        ("plan menu.json -b 50%", 2, "the document is a 'menu', must be one of chain-profile"),
        ("run models.py:net -i 8x32", 2, "Give --plan plan.json, or --budget 50%"),
        ("run models.py:net -p plan.json --offload", 2, "--offload is for making a plan, and plan"),
        ("run models.py:net -p plan.json --by blocks", 2, "--by is for making a plan"),
        (
            "run models.py:net -i 8x32 -p chain.json",
            2,
            "chain.json: the document is a 'chain-profile', must be a 'plan'",
        ),
        ("run models.py:net -i 8x32 -b 90% --device A100-80GB", 2, "on which nothing runs"),
        ("bench models.py:net -i 8x32 --budgets 80%,many", 2, "--budget is 'many'"),
        ("report absent.json", 2, "absent.json: No such file"),
        ("report chain.json -o page.pdf", 2, "does not end with .html"),
        ("profiel models.py:net", 2, "Did you mean 'profile'"),
    ],
)
def test_wrong_command_lines_end_with_a_named_error_and_the_next_step(
    line: str, status: int, message: str
) -> None:
    Path("broken.json").write_text("{")
    Path("menu.json").write_text(dump("menu", 1, {}))
    slots = JoinProfile.homogeneous((2, 3), forward_time=1, backward_time=1, turn_time=1)
    Path("slots.json").write_text(slots.to_json())
    before = sorted(Path().iterdir())
    family, colon, _ = line.split()[1].partition(":")
    if (
        colon
        and ".py" not in family
        and find_spec({"hf": "transformers"}.get(family, family)) is None
    ):
        pytest.skip(f"{family} is not installed")
    result = chainstay(*line.split())
    assert result.exit_code == status, result.output
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.output
    after = [path for path in Path().iterdir() if path.name != "__pycache__"]
    assert sorted(after) == before, "nothing is written"


@pytest.mark.parametrize("command", ["profile", "plan", "run", "verify", "bench", "report"])
def test_every_command_has_help_with_examples(command: str) -> None:
    result = chainstay(command, "--help")
    assert result.exit_code == 0
    assert f"Examples:\n    chainstay {command} " in result.stdout


def test_help_lists_commands_and_exit_statuses() -> None:
    result = chainstay("--help")
    assert result.exit_code == 0
    for word in ("profile", "plan", "run", "verify", "bench", "report", "130", "--show-completion"):
        assert word in result.stdout
    assert chainstay("--version").stdout.startswith("chainstay 0.")


def test_ctrl_c_ends_with_130_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(profile_plans, "solve_chain", interrupted)
    before = sorted(Path().iterdir())
    result = chainstay("plan", "chain.json", "-b", "50%")
    assert result.exit_code == 130
    assert result.stderr.strip() == "Interrupted."
    assert sorted(Path().iterdir()) == before


def test_a_file_that_cannot_be_replaced_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output_files, "write_file", full)
    result = chainstay("plan", "chain.json", "-b", "80%")
    assert result.exit_code == 2
    assert "plan.json cannot be written: No space left on device" in " ".join(result.stderr.split())


@pytest.mark.long
def test_a_real_process_in_the_poorest_terminal(tmp_path: Path) -> None:
    """No UTF-8, thirty columns, no colours, a pipe: nothing fails, nothing but text comes."""
    quick = replace(STAGE, forward_time=20_000, backward_time=30_000)
    (tmp_path / "chain.json").write_text(replace(CHAIN, stages=(quick,) * 6).to_json())
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "COLUMNS": "30",
        "NO_COLOR": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    command = [sys.executable, "-m", "chainstay", "plan", "chain.json", "-b", "60%"]
    result = subprocess.run(
        command, capture_output=True, check=False, cwd=tmp_path, env=environment
    )
    assert result.returncode == 0, result.stderr
    text = result.stdout.decode("ascii")
    assert "recompute" in text
    assert " us " in text, "microseconds, as near as ASCII comes"
    assert "\x1b" not in text
    assert result.stderr == b""
    refused = subprocess.run(
        [*command[:-1], "1%"], capture_output=True, check=False, cwd=tmp_path, env=environment
    )
    assert refused.returncode == 3
    assert refused.stderr.startswith(b"InfeasibleBudgetError: no ")
    assert b"Traceback" not in refused.stderr


def test_help_needs_neither_torch_nor_a_solver() -> None:
    code = """
import sys
from chainstay.cli import app
try:
    app(["plan", "--help"])
finally:
    heavy = {"torch", "numpy", "pyomo", "matplotlib", "transformers"} & set(sys.modules)
    print("heavy:", sorted(heavy))
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.stdout.rstrip().endswith("heavy: []"), result.stdout + result.stderr


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency", "duplex"),
    [
        ("12GB/s", 12, 0, "half"),
        ("1GiB/s,5us", Fraction(2**30, 10**9), 5000, "half"),
        ("500MB/s, full, 2ms", Fraction(1, 2), 2 * 10**6, "full"),
    ],
)
def test_links_are_read(text: str, bandwidth: Fraction, latency: int, duplex: str) -> None:
    link = parse_link(text)
    assert (link.bandwidth, link.latency, link.duplex) == (bandwidth, latency, duplex)


@pytest.mark.parametrize(
    "text", ["", "12GB", "0GB/s", "12GB/s,soon", "12GB/s,half,full,half", "/s"]
)
def test_what_is_no_link_is_refused(text: str) -> None:
    with pytest.raises(CommandLineError, match="--link is "):
        parse_link(text)


def test_settings_follow_a_question_mark() -> None:
    spec = ModelSpec.parse("hf:gpt2?n_layer=2&attn_pdrop=0.5&activation_function=relu")
    assert dict(spec.settings) == {"n_layer": 2, "attn_pdrop": 0.5, "activation_function": "relu"}
    with pytest.raises(CommandLineError, match="'n_layer' is no setting"):
        ModelSpec.parse("hf:gpt2?n_layer")
