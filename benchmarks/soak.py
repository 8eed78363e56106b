"""Train for a thousand steps by every kind of plan, and see whether anything grows.

    PYTHONPATH=.:tests:examples python benchmarks/soak.py [--steps 1000] [--subjects NAME ...]

After each tenth of the steps are counted: live tensors, threads, bytes of host memory in use and
kept, open files, and the memory of the process. From the second tenth on, none but the last may
grow; that may grow by 1 KiB a step, which is less than the smallest saved tensor here. The status
is 1 if anything does.
"""

from __future__ import annotations

import argparse
import gc
import sys
import threading
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import torch
from rich.console import Console
from rich.table import Table

from fault_subjects import MAKERS, Subject, subject

__all__ = ["Sample", "growth", "main", "soak"]

_PARTS: Final = 10
_KIB: Final = 1024


@dataclass(frozen=True)
class Sample:
    """What there is at some time.

    Attributes:
        step: How many have been made.
        tensors: Alive; those of host memory that waits for the next step are left out.
        threads: Of Python.
        host_bytes: Of host memory, used.
        files: Open.
        resident: Bytes of the process.
    """

    step: int
    tensors: int
    threads: int
    host_bytes: int
    files: int
    resident: int

    @classmethod
    def now(cls, step: int, subject: Subject) -> Sample:
        """Counted now."""
        gc.collect()
        pool = subject.engine.pool if subject.engine else None
        alive = sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return cls(
            step=step,
            tensors=alive - (sum(map(len, pool._idle.values())) if pool else 0),  # noqa: SLF001
            threads=threading.active_count(),
            host_bytes=pool.used_bytes if pool else 0,
            files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            resident=int(pages) * 4 * _KIB,
        )


def soak(subject: Subject, steps: int) -> list[Sample]:
    """Train with momentum, clipping and accumulation now and then; samples from the second part."""
    model = subject.planned
    model.load_state_dict(subject.initial)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    samples = []
    part = max(1, steps // _PARTS)
    for step in range(1, steps + 1):
        if step % 3:
            optimizer.zero_grad()
        loss = subject.sample.loss(model)
        if step % 7:  # a forward without a backward now and then
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 11 == 0:
            with torch.no_grad():
                subject.sample.loss(model)
        del loss
        if step % part == 0 and step >= 2 * part:
            samples.append(Sample.now(step, subject))
    return samples


def growth(samples: list[Sample]) -> list[str]:
    """What grew, in words."""
    first, last = samples[0], samples[-1]
    found = [
        f"{field.name} grew from {getattr(first, field.name)} to {getattr(last, field.name)}"
        for field in fields(Sample)
        if field.name not in ("step", "resident")
        and getattr(last, field.name) > getattr(first, field.name)
    ]
    slope = (last.resident - first.resident) / max(1, last.step - first.step)
    if slope > _KIB and last.step >= 1000:  # of fewer steps, the allocator's pages say nothing
        found.append(f"the process grew by {slope:.0f} bytes a step")
    return found


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--subjects", nargs="+", choices=MAKERS, default=list(MAKERS))
    arguments = parser.parse_args()
    names = ("model", "steps", "tensors", "threads", "host bytes", "files", "bytes/step", "grew")
    table, wrong = Table(*names, title="soak"), 0
    for name in arguments.subjects:
        samples = soak(subject(name), arguments.steps)
        first, last = samples[0], samples[-1]
        found = growth(samples)
        wrong += bool(found)
        slope = (last.resident - first.resident) / max(1, last.step - first.step)
        table.add_row(
            name,
            str(last.step),
            f"{first.tensors} → {last.tensors}",
            f"{first.threads} → {last.threads}",
            f"{first.host_bytes} → {last.host_bytes}",
            f"{first.files} → {last.files}",
            f"{slope:.0f}",
            "; ".join(found) or "no",
        )
    Console(width=140).print(table)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
