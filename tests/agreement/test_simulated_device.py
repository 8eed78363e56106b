"""Tests on a simulated asynchronous device, each file of them in a process of its own.

Registering a device changes a process to its end, so the files are not collected here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulated_device.sim import obstacle

FOLDER = Path(__file__).parents[1] / "simulated_device"
CASES = sorted(each.stem for each in FOLDER.glob("cases_*.py"))

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "it can be built"),
]


@pytest.mark.parametrize("cases", CASES)
def test_on_the_simulated_device(cases: str) -> None:
    command = [
        *(sys.executable, "-m", "pytest", "-p", "simulated_device.plugin", "-p", "no:xdist"),
        *("-p", "no:cacheprovider", "-m", "", "-q", "--tb=short", str(FOLDER / f"{cases}.py")),
    ]
    path = os.pathsep.join(each for each in sys.path if each)
    # Kernels run in the threads of streams, which shall not start others.
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
