"""FSDP2 over two processes: shard the model, then fit it; both agree on one plan.

Run it: python examples/fully_sharded.py
"""

from __future__ import annotations

import tempfile

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.linalg import vector_norm
from torch.multiprocessing.spawn import start_processes

import chainstay
from chainstay.runtime import trace_memory
from chainstay.units import format_bytes

PROCESSES = 2


class Residual(nn.Module):
    """Blocks in a list: they are the stages, each with its own shards."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU()) for _ in range(6)]
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """As many shortcuts as blocks."""
        for block in self.blocks:
            hidden = hidden + block(hidden).unflatten(-1, (4, -1)).mean(-2)
        return hidden


def sharded() -> Residual:
    """Always the same weights, half of them in each process."""
    torch.manual_seed(0)
    model, mesh = Residual(), init_device_mesh("cpu", (PROCESSES,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def gradients(model: nn.Module, batch: torch.Tensor) -> tuple[list[torch.Tensor], int]:
    """Of one step, whole again, and the most memory that it takes besides weights."""
    vector_norm(model(batch)).backward()  # what is made once is made
    model.zero_grad()
    trace = trace_memory(lambda: vector_norm(model(batch)).backward(), "cpu")
    shards = [parameter.grad for parameter in model.parameters()]
    return [shard.full_tensor() for shard in shards if isinstance(shard, DTensor)], trace.peak_bytes


def worker(rank: int, meeting: str) -> None:
    """What each process does, with a batch of its own."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", meeting, rank=rank, world_size=PROCESSES)
    batch = torch.randn(512, 64, generator=torch.Generator().manual_seed(rank))
    expected, plain_peak = gradients(sharded(), batch)
    model = chainstay.fit(sharded(), (batch,), budget="60%", loss=vector_norm, progress=False)
    found, peak = gradients(model, batch)
    is_equal = len(found) == len(expected) > 0 and all(map(torch.equal, found, expected))
    if rank == 0:
        print(model.chainstay)
        print(f"peak of a step: plain {format_bytes(plain_peak)}, planned {format_bytes(peak)}")
        print(f"gradients equal: {'yes' if is_equal else 'NO'}")
    distributed.barrier()  # a process that leaves early takes the other's connections along
    distributed.destroy_process_group()


def main() -> None:
    """Start the processes."""
    with tempfile.TemporaryDirectory() as folder:
        # "forkserver": at exit, "spawn" tears Python down below threads of torch that still run
        meeting = f"file://{folder}/meeting"
        start_processes(worker, (meeting,), PROCESSES, start_method="forkserver")


if __name__ == "__main__":
    main()
