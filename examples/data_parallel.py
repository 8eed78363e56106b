"""DistributedDataParallel over two processes: fit the model, then wrap it; gradients are equal.

Run it: python examples/data_parallel.py
"""

from __future__ import annotations

import copy
import tempfile

import torch
from torch import distributed, nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import chainstay
from chainstay.runtime import trace_memory
from chainstay.units import format_bytes
from plain_loop import CRITERION, convolutional

PROCESSES = 2


def worker(rank: int, meeting: str) -> None:
    """What each process does, with a batch of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=PROCESSES)
    torch.manual_seed(0)
    plain = convolutional()
    planned = copy.deepcopy(plain)
    torch.manual_seed(rank + 1)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    chainstay.fit(
        planned, (images,), budget="50%", loss=lambda out: CRITERION(out, labels), progress=False
    )
    peaks = [train(DistributedDataParallel(model), images, labels) for model in (plain, planned)]
    is_equal = all(map(torch.equal, plain.state_dict().values(), planned.state_dict().values()))
    verdicts: list[bool | None] = [None] * PROCESSES
    distributed.all_gather_object(verdicts, is_equal)
    if rank == 0:
        print(planned.chainstay)
        print(f"peak of a step: plain {format_bytes(peaks[0])}, planned {format_bytes(peaks[1])}")
        print(f"weights equal on {PROCESSES} processes: {'yes' if all(verdicts) else 'NO'}")
    distributed.destroy_process_group()


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> int:
    """A few steps; tells the most memory that the last one takes besides weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(7)

    def step() -> None:
        CRITERION(model(images), labels).backward()

    for _ in range(3):
        step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    peak = trace_memory(step, "cpu").peak_bytes + images.nbytes
    optimizer.step()
    return peak


def main() -> None:
    """Start the processes."""
    with tempfile.TemporaryDirectory() as folder:
        # "forkserver": at exit, "spawn" tears Python down below threads of torch that still run
        meeting = f"file://{folder}/meeting"
        start_processes(worker, (meeting,), PROCESSES, start_method="forkserver")


if __name__ == "__main__":
    main()
