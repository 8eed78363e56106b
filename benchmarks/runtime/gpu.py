"""What only a GPU can tell, question by question, the cheapest first.

    .venv/bin/python -m benchmarks.runtime.gpu [--device cuda] [--seconds 540] [--only works,link]

Each row is written as soon as it is there, to ``gpu-NAME.md`` and ``gpu-NAME.json``, NAME being the
device's, so that a run that is cut short leaves what it found. docs/gpu.md says how to read them.
Needs torch and numpy; solvers that are installed apart and model libraries are not used. With
``--device cpu`` the same code runs on small networks, so that it can be tested anywhere. Exits
with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

# cuBLAS and the allocator read these once, when they are first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
os.environ.setdefault("PYTORCH_ALLOC_CONF", os.environ["PYTORCH_CUDA_ALLOC_CONF"])  # its new name

import torch  # see above

from benchmarks import RESULTS
from benchmarks.runtime.gpu_plans import Row, let_go
from benchmarks.runtime.gpu_questions import QUESTIONS, Setting
from benchmarks.training import cells, heading
from chainstay.runtime.devices.device import default_device, device_at


@dataclass
class Report:
    """What has been found so far, in two files.

    Attributes:
        file: The files' path, without their endings.
        machine: Names and versions.
        tables: Rows by question, each with the question's text.
        failures: What should not be, in words.
    """

    file: Path
    machine: dict[str, str]
    tables: dict[str, tuple[str, list[Row]]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def begin(self, question: str, text: str) -> None:
        """Begin a table."""
        print(f"\n{question}: {text}", flush=True)
        self.tables[question] = (text, [])

    def add(self, question: str, row: Row) -> None:
        """Print a row and write all that is known."""
        print("  " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        self.tables[question][1].append(row)
        if row.get("verdict", "").startswith("FAILED"):
            self.failures.append(f"{question}: {next(iter(row.values()))}")
        self.write()

    def fail(self, text: str) -> None:
        """Tell a failure at once."""
        print(f"FAILED: {text}", flush=True)
        self.failures.append(text)
        self.write()

    def write(self) -> None:
        """Write both files."""
        found = {name: rows for name, (_, rows) in self.tables.items()}
        document = {"machine": self.machine, "questions": found, "failures": self.failures}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
        lines = [f"# {self.machine['device']}", ""]
        lines += [f"- {name}: {value}" for name, value in self.machine.items()]
        for name, (text, rows) in self.tables.items():
            columns = list(dict.fromkeys(column for row in rows for column in row))
            lines += ["", f"## {name}", "", text, ""]
            if rows:
                lines += heading(*columns)
            lines += [cells(*(row.get(column, "") for column in columns)) for row in rows]
        lines += ["", f"Failures: {'; '.join(self.failures) or 'none'}."]
        self.file.with_suffix(".md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    """Ask, print and store; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [question.__name__ for question in QUESTIONS]
    parser.add_argument("--device", default=str(default_device()))
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--seconds", type=float, default=540, help="nothing is begun after them")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each kind")
    parser.add_argument("--only", help=f"questions with commas between: {', '.join(names)}")
    options = parser.parse_args()
    only = names if options.only is None else options.only.split(",")
    if unknown := set(only) - set(names):
        parser.error(f"--only has {', '.join(sorted(unknown))}; questions are {', '.join(names)}")
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu runs the same code on the CPU")
    torch.set_num_threads(1)
    name = device_at(device).name() or "cpu"
    short = re.sub("[^A-Za-z0-9]+", "-", name).strip("-").lower()
    report = Report(options.output / f"gpu-{short}", _machine(device, name))
    setting = Setting(device, time.monotonic() + options.seconds, options.rounds, _sheet(name))
    for question in QUESTIONS:
        if question.__name__ not in only:
            continue
        report.begin(question.__name__, (question.__doc__ or "").strip())
        if time.monotonic() > setting.deadline:
            report.fail(f"{question.__name__}: not asked, for lack of time")
            continue
        begin = time.monotonic()
        try:
            for row in question(setting):
                report.add(question.__name__, row)
        except LookupError as reason:
            report.add(question.__name__, {"not asked": str(reason)})
        except Exception as error:  # noqa: BLE001  # other questions are still of interest
            traceback.print_exc()
            report.fail(f"{question.__name__}: {type(error).__name__}: {error}")
        print(f"  ({time.monotonic() - begin:.0f} s)", flush=True)
        let_go(device)
    report.write()
    return 1 if report.failures else 0


def _machine(device: torch.device, name: str) -> dict[str, str]:
    driver = ""
    if device.type == "cuda" and shutil.which("nvidia-smi"):
        command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603  # a fixed command
    return {
        "device": name,
        "driver": driver,
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()),
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "allocator": os.environ["PYTORCH_CUDA_ALLOC_CONF"],
        "date": datetime.now(tz=UTC).date().isoformat(),
        "command": f"python -m benchmarks.runtime.gpu {' '.join(sys.argv[1:])}",
    }


def _sheet(name: str) -> str:
    """Name of the data sheet for `estimate`."""
    known = {"H100": "H100", "A100-SXM4-80GB": "A100-80GB", "A100": "A100-40GB"}
    return next((sheet for part, sheet in known.items() if part in name), "")


if __name__ == "__main__":
    sys.exit(main())
