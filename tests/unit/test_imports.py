"""What importing chainstay loads, seen from fresh interpreters."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import chainstay

HEAVY = ("torch", "pyomo", "highspy", "ortools", "matplotlib", "rich", "typer")


def _run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_import_chainstay_loads_nothing_heavy() -> None:
    loaded = _run("import sys, chainstay; print(*sys.modules)").split()
    assert not {"numpy", *HEAVY} & set(loaded)


def test_solving_by_dp_needs_neither_torch_nor_a_solver() -> None:
    code = f"""
import sys
sys.modules.update(dict.fromkeys({HEAVY!r}))  # importing any of them raises ImportError
from chainstay import ChainProfile, Stage, solve_chain
stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4)
print(solve_chain(chain, 100, method="dp").schedule)
"""
    assert _run(code).startswith("F")


@pytest.mark.parametrize("heavy", ["pyomo.environ", "highspy"])
def test_a_missing_mip_backend_is_named_with_the_next_step(heavy: str) -> None:
    code = f"""
import sys
sys.modules[{heavy!r}] = None
from chainstay import BackendError, ChainProfile, Stage, solve_chain
chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))
try:
    solve_chain(chain, 100, method="mip")
except BackendError as error:
    print(error)
"""
    assert "pip install" in _run(code)


def test_one_version_everywhere() -> None:
    assert metadata.version("chainstay") == chainstay.__version__
    citation = (Path(__file__).parents[2] / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {chainstay.__version__}" in citation.splitlines()


def test_annotations_are_shipped() -> None:
    assert (Path(chainstay.__file__).parent / "py.typed").is_file()
