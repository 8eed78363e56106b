"""Programs that measure; `benchmarks/README.md` says which question each of them answers.

    .venv/bin/python -m benchmarks.peers.compare

Run each from the root of the project like this one. Here their modules find `examples/` and
`testbed/`, and every program computes with one thread.
"""

import os
import sys
from pathlib import Path
from typing import Final

__all__ = ["PROFILES", "RESULTS"]

_ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = _ROOT / "benchmarks" / "results"
"""Where programs write what they find."""
PROFILES: Final = _ROOT / "benchmarks" / "profiles"
"""Measured networks as profiles."""

sys.path += [str(_ROOT / "examples"), str(_ROOT / "testbed")]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it when it is imported
