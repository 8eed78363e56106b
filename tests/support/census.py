"""What is alive after a step: tensors, threads, host memory, open files, pages of the process."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from fault_subjects import Subject
from live_tensors import tensors_alive

__all__ = ["Census", "growth", "soak"]

_PARTS: Final = 10
_KIB: Final = 1024


@dataclass(frozen=True)
class Census:
    """What is alive.

    Attributes:
        tensors: Those of host memory that waits for the next step are left out.
        threads: Of Python.
        host_bytes: Of host memory in use.
        files: Open.
        resident: Bytes of the process.
    """

    tensors: int
    threads: int
    host_bytes: int
    files: int
    resident: int

    @classmethod
    def take(cls, subject: Subject) -> Census:
        pool = subject.engine.pool if subject.engine else None
        alive = tensors_alive()
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return cls(
            tensors=alive - (sum(map(len, pool._idle.values())) if pool else 0),
            threads=threading.active_count(),
            host_bytes=pool.used_bytes if pool else 0,
            files=sum(1 for _ in Path("/proc/self/fd").iterdir()),
            resident=int(pages) * 4 * _KIB,
        )

    def growth_to(self, later: Census) -> list[str]:
        """What there is more of `later`, in words; pages of the process apart."""
        return [
            f"{name} grew from {getattr(self, name)} to {getattr(later, name)}"
            for name in ("tensors", "threads", "host_bytes", "files")
            if getattr(later, name) > getattr(self, name)
        ]


def soak(subject: Subject, steps: int) -> list[Census]:
    """Train with momentum, clipping and accumulation now and then.

    Returns:
        What is alive after each tenth of the steps, from the second on.
    """
    model = subject.planned
    model.load_state_dict(subject.initial)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    found = []
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
            found.append(Census.take(subject))
    return found


def growth(found: list[Census], steps: int) -> list[str]:
    """What grew over `steps` steps, in words; the process may by 1 KiB a step.

    That is less than the smallest saved tensor of any subject.
    """
    grown = found[0].growth_to(found[-1])
    slope = (found[-1].resident - found[0].resident) / steps
    if slope > _KIB and steps >= 1000:  # over fewer steps, the allocator's pages say nothing
        grown.append(f"the process grew by {slope:.0f} bytes a step")
    return grown
