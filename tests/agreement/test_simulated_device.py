"""Tests on a simulated asynchronous device, each file of them in a process of its own.

Registering a device changes a process to its end, so the files are not collected here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from simulated_device.sim import obstacle

FOLDER = Path(__file__).parents[1] / "simulated_device"
CASES = sorted(path.stem for path in FOLDER.glob("cases_*.py"))


def run_cases(cases: str, device: str) -> None:
    """Run a file of cases in a process of its own."""
    command = [
        *(sys.executable, "-m", "pytest", "-p", "simulated_device.plugin", "-p", "no:xdist"),
        *("-p", "no:cacheprovider", "-m", "", "-q", "--tb=short", str(FOLDER / f"{cases}.py")),
    ]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder),
        "OMP_NUM_THREADS": "1",  # streams have threads of their own
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CHAINSTAY_TEST_DEVICE": device,
    }
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.long
@pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "it can be built")
@pytest.mark.parametrize("cases", CASES)
def test_on_the_simulated_device(cases: str) -> None:
    run_cases(cases, "sim")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("cases", CASES)
def test_on_a_cuda_device(cases: str) -> None:
    run_cases(cases, "cuda")
