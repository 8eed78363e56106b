"""The programs in ``examples`` run, and what they print is so: equal results, less memory."""

from __future__ import annotations

import io
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import distributed, nn

import demo
import zoo  # noqa: F401  # makes a torchvision for another torch harmless

EXAMPLES = Path(__file__).parents[2] / "examples"
PEAKS = re.compile(r"peak of a step: plain ([\d.]+) MiB, planned ([\d.]+) MiB")


def test_the_demonstration_says_what_was_planned_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a network with buffers and random draws, in place of the two that take minutes."""
    monkeypatch.setattr(demo, "TIMED_NS", 10**6)
    torch.manual_seed(0)
    layers = [(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.GELU(), nn.Dropout(0.1)) for _ in range(4)]
    model = nn.Sequential(*(module for layer in layers for module in layer))
    task = demo.Task("net", "a net", model, torch.randn(64, 32), loss=torch.Tensor.mean)
    console = Console(file=io.StringIO(), width=100)
    panel = demo.demonstrate(task, "60%", tmp_path, console)
    assert isinstance(console.file, io.StringIO)
    printed = " ".join(console.file.getvalue().split())
    assert "equal to plain PyTorch: bit for bit." in printed
    assert re.search(r"plain PyTorch .* torch checkpoint \(\d\) – .* chainstay ", printed)
    assert max(panel.measured_bytes) <= panel.planned.peak_bytes <= panel.budget
    assert panel.budget < 0.7 * panel.plain_peak_bytes
    assert (tmp_path / "net.json").is_file()


@pytest.mark.long
def test_a_loop_of_plain_pytorch() -> None:
    _require_less_memory(_printed("plain_loop"))


@pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="needs gloo"
)
@pytest.mark.parametrize("name", ["data_parallel", "fully_sharded"])
@pytest.mark.long
def test_two_processes(name: str) -> None:
    _require_less_memory(_printed(name))


@pytest.mark.filterwarnings("ignore")  # the libraries' own
@pytest.mark.parametrize(
    ("name", "library"), [("lightning_loop", "lightning"), ("hugging_face_loop", "transformers")]
)
@pytest.mark.long
def test_training_loops_of_others(
    name: str, library: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, where `zoo` has been imported."""
    pytest.importorskip(library)
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "slower than plain training at a peak of" in printed
    assert re.search(r"^weights.* equal: yes$", printed, re.MULTILINE), printed


def _printed(name: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _require_less_memory(printed: str) -> None:
    found = PEAKS.search(printed)
    assert found is not None, printed
    plain, planned = map(float, found.groups())
    assert planned < 0.7 * plain
    assert re.search(r" equal.*: yes$", printed, re.MULTILINE), printed
