"""`make mutants`: put errors into copies of the code one by one, and see tests fail.

Tests of a mutant are run unchanged first: they have to pass. Kernels are not compiled, so that no
cache can hide what a mutant changes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from mutants import fitting, formulations, programs, referees, runtime
from mutants.mutant import Mutant

MUTANTS: Final = (
    *programs.MUTANTS,
    *formulations.MUTANTS,
    *referees.MUTANTS,
    *runtime.MUTANTS,
    *fitting.MUTANTS,
)
_ROOT: Final = Path(__file__).parents[2]
_COPIED: Final = ("chainstay", "tests", "testbed", "examples", "pyproject.toml")
_LIMIT_S: Final = 1200.0
_WITHOUT_SHRINKING: Final = ("--hypothesis-profile", "mutants")
_PASSED, _FAILED = 0, 1
"""Exit statuses of pytest; all others say that tests did not run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant."""

    mutant: Mutant
    fate: str
    seconds: float


def main() -> int:
    """Try all mutants, or those whose names contain a word that is given."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="try only mutants whose names have one of these")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    asked = parser.parse_args()
    chosen = [
        mutant
        for mutant in MUTANTS
        if not asked.words or any(word in mutant.name for word in asked.words)
    ]
    if not chosen:
        parser.error(f"no mutant has one of these words in its name: {' '.join(asked.words)}")
    copies: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(asked.workers) as pool:
        for number in range(asked.workers):
            copies.put(_copied(Path(folder) / str(number)))
        copy = copies.get()
        tests = sorted({test for mutant in chosen for test in mutant.tests.split()})
        if _status(tests, copy, is_shown=True):
            print("the tests of these mutants do not all pass without them")  # noqa: T201
            return 2
        copies.put(copy)
        fates = []
        for verdict in pool.map(lambda mutant: _tried(mutant, copies), chosen):
            print(f"{verdict.fate:>8} {verdict.seconds:5.0f} s  {verdict.mutant.name}", flush=True)  # noqa: T201
            fates.append(verdict.fate)
    killed = fates.count("killed")
    print(f"{killed} of {len(chosen)} mutants killed")  # noqa: T201
    return int(killed < len(chosen))


def _copied(place: Path) -> Path:
    """`place`, with all that tests need."""
    for name in _COPIED:
        source = _ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(source, place / name, ignore=ignored)
        else:
            shutil.copy(source, place / name)
    return place


def _tried(mutant: Mutant, copies: SimpleQueue[Path]) -> Verdict:
    start = time.perf_counter()
    copy = copies.get()
    try:
        fate = _fate(mutant, copy)
    finally:
        copies.put(copy)
    return Verdict(mutant, fate, time.perf_counter() - start)


def _fate(mutant: Mutant, copy: Path) -> str:
    file = copy / "chainstay" / mutant.file
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    if before.count(mutant.old) != 1:
        return "no text"
    file.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        status = _status(mutant.tests.split(), copy)
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        file.write_text(before, encoding="utf-8")
    return {_PASSED: "SURVIVED", _FAILED: "killed"}.get(status, f"exit {status}")


def _status(tests: Sequence[str], copy: Path, *, is_shown: bool = False) -> int:
    """Exit status of pytest in a copy; what is shown is no mutant's, and may take its time.

    Raises:
        TimeoutExpired: It did not end in time.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMBA_DISABLE_JIT": "1",
        "OMP_NUM_THREADS": "1",
    }
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *_WITHOUT_SHRINKING]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "", *options, *(f"tests/{test}" for test in tests)],
        cwd=copy,
        env=environment,
        capture_output=not is_shown,
        timeout=None if is_shown else _LIMIT_S,
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
