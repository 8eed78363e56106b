"""Two processes over gloo train bit for bit as without a plan: DistributedDataParallel, FSDP2.

Two processes train a plain and a fitted model in turn, under one condition after another, and
report what differs.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from queue import Empty
from typing import Any, Final

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import chainstay
from chainstay.integrations.first_call import FitSettings
from intercepted_training import sharded_trials
from training_conditions import (
    RECOMPUTING,
    SHARES,
    Record,
    Sample,
    ShareOf,
    differences,
    fit_to,
    pair,
    plain_step,
    recomputes,
    shown,
    trained,
)

pytestmark = pytest.mark.skipif(
    not (distributed.is_available() and distributed.is_gloo_available()), reason="needs gloo"
)

_PATIENCE_S: Final = 300

Reports = dict[str, list[str]]
Trial = Callable[[int], list[str]]
"""What a process does, given its rank; it reports what is wrong."""


def _run_trials(rank: int, port: int, queue: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}  # as torchrun
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", rank=rank, world_size=2)
    faulthandler.enable()
    faulthandler.dump_traceback_later(_PATIENCE_S - 20)
    queue.put({name: _report(trial, rank) for name, trial in TRIALS.items()})
    faulthandler.cancel_dump_traceback_later()
    distributed.destroy_process_group()


def _report(trial: Trial, rank: int) -> list[str]:
    try:
        return trial(rank)
    except Exception:  # noqa: BLE001  # told to the process that runs the tests
        traceback.print_exc()  # at once: the other process may wait for this one
        return [traceback.format_exc()]


def shard(sample: Sample, rank: int) -> Sample:
    """Each process has its own batch."""
    first = sample.args[0]
    return Sample((first.roll(rank + 1, 0).contiguous(),), sample.kwargs)


def accumulating(
    model: nn.Module, sample: Sample, optimizer: torch.optim.Optimizer
) -> torch.Tensor:
    """Gradients are exchanged in the last of three backwards only."""
    optimizer.zero_grad()
    losses = []
    for number in range(3):
        is_last = number == 2
        with nullcontext() if is_last else model.no_sync():  # type: ignore[operator]
            losses.append(sample.loss(model))
            losses[-1].backward()
    optimizer.step()
    return torch.stack(losses)


class Partial(nn.Module):
    """Some of its parameters get no gradient."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.unused = nn.Parameter(torch.zeros(3))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


def data_parallel(
    rank: int, subject: str, options: Mapping[str, Any], *, accumulates: bool = False
) -> list[str]:
    wrong = []
    for share in ("60 %", "least"):
        plain, planned, sample = pair(subject, share)
        records: list[Record] = []
        for model in (plain, planned):
            inner = Partial(model) if options.get("find_unused_parameters") else model
            wrapped = DistributedDataParallel(inner, bucket_cap_mb=0.01, **options)
            step = accumulating if accumulates else plain_step
            records.append(trained(wrapped, shard(sample, rank), step))
        wrong += differences(*records)
        if not recomputes(planned):
            wrong.append(f"{share}: the plan recomputes nothing")
    return wrong


def data_parallel_around_first(rank: int) -> list[str]:
    """The wrapper is there already when what is in it is fitted."""
    plain, planned, sample = pair("layered", "least")
    wrapped = DistributedDataParallel(chainstay.unfit(planned))
    fit_to(planned, sample, "least")
    reference = DistributedDataParallel(plain)
    own = shard(sample, rank)
    return differences(trained(wrapped, own), trained(reference, own))


def data_parallel_with_a_new_shape(rank: int) -> list[str]:
    """A plan is made inside the wrapper's forward."""
    plain, planned, sample = pair("layered", "least")
    half = Sample((shard(sample, rank).args[0][:128],))
    wrapped, reference = DistributedDataParallel(planned), DistributedDataParallel(plain)
    return differences(trained(wrapped, half), trained(reference, half))


def planning_alone(rank: int) -> list[str]:
    """One process alone meets a new shape: the other must see none of its gradients."""
    wrong = []
    for subject in ("layered", "transformer"):
        plain, planned, sample = pair(subject, "least")
        size = len(sample.args[0])
        own = Sample((shard(sample, rank).args[0][: size // 2 if rank else size],), sample.kwargs)
        wrapped = DistributedDataParallel(planned, bucket_cap_mb=0.01)
        reference = DistributedDataParallel(plain, bucket_cap_mb=0.01)
        wrong += differences(trained(wrapped, own), trained(reference, own))
        plans = len(shown(planned).plans)
        if plans != 1 + rank:
            wrong.append(f"{subject}: {plans} plans")
    return wrong


def fitting_alone(rank: int) -> list[str]:
    """One process alone fits, while the wrapper waits for gradients of a forward given up."""
    plain, planned, sample = pair("transformer", "least")
    model, own = chainstay.unfit(planned), shard(sample, rank)
    records = []
    for module in (model, plain):
        wrapped = DistributedDataParallel(module, bucket_cap_mb=0.01)
        own.loss(wrapped)
        if module is model and rank:
            fit_to(model, own, "least")
        records.append(trained(wrapped, own))
    return differences(*records)


def hooked_inside(rank: int) -> list[str]:
    """What is fitted after wrapping has a hook inside, which the graph holds."""
    plain, planned, sample = pair("transformer", "least")
    model, own = chainstay.unfit(planned), shard(sample, rank)
    for module in (plain, model):
        module.get_submodule("blocks.1").register_forward_hook(
            lambda _module, _args, out: out * 1.5
        )
    wrapped, reference = DistributedDataParallel(model), DistributedDataParallel(plain)
    fit_to(model, sample, "least")
    wrong = differences(trained(wrapped, own), trained(reference, own))
    return wrong if recomputes(model) else [*wrong, "the plan recomputes nothing"]


def prepared_by_accelerate(rank: int) -> list[str]:
    """`Accelerator.prepare` wraps the model, which is fitted by its first call in there."""
    from accelerate import Accelerator  # noqa: PLC0415  # optional, and slow to import

    from chainstay.integrations.accelerate import fit_prepared, unfit_prepared  # noqa: PLC0415  # likewise

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    plain, planned, sample = pair("transformer", "least")
    reference, wrapped = map(accelerator.prepare, (plain, chainstay.unfit(planned)))
    settings = FitSettings(budget=RECOMPUTING, method=ShareOf(SHARES["least"]), repeats=1)
    fit_prepared(accelerator, wrapped, settings)
    own = shard(sample, rank)
    wrong = differences(trained(wrapped, own), trained(reference, own))
    if not isinstance(wrapped, DistributedDataParallel) or not recomputes(planned):
        wrong.append("not in two processes, or the plan recomputes nothing")
    unfit_prepared(accelerator, wrapped)
    if hasattr(planned, "chainstay"):
        wrong.append("still fitted")
    return wrong


OPTIONS: dict[str, Mapping[str, Any]] = {
    "plain": {},
    "unused parameters": {"find_unused_parameters": True},
    "static graph": {"static_graph": True},
    "gradients in buckets": {"gradient_as_bucket_view": True},
}
TRIALS: dict[str, Trial] = {
    f"{name}, {subject}": partial(data_parallel, subject=subject, options=options)
    for name, options in OPTIONS.items()
    for subject in ("transformer", "convolutional")
} | {
    "no_sync": partial(data_parallel, subject="layered", options={}, accumulates=True),
    "around first": data_parallel_around_first,
    "new shape": data_parallel_with_a_new_shape,
    "planning alone": planning_alone,
    "fitting alone": fitting_alone,
    "hook inside": hooked_inside,
    **sharded_trials(),
}
if find_spec("accelerate"):
    TRIALS["prepared by accelerate"] = prepared_by_accelerate


@pytest.mark.long
def test_two_processes_train_as_without_a_plan() -> None:
    """All trials are run by one pair of processes, which take long to start.

    Torch's own gathering of shards over gloo has crashed in a thread without Python (once in some
    fifty runs), so a pair that dies of a signal gets a second trial; two such pairs are a failure.
    """
    try:
        found = _reports_of_two_processes()
    except _KilledError:
        found = _reports_of_two_processes()
    wrong = {name: [*found[0][name], *found[1][name]] for name in TRIALS}
    assert {name: reports for name, reports in wrong.items() if reports} == {}


class _KilledError(AssertionError):
    """A process died of a signal."""


def _reports_of_two_processes() -> list[Reports]:
    context = multiprocessing.get_context("forkserver")
    queue = context.Queue()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=_run_trials, args=(rank, port, queue)) for rank in (0, 1)]
    for process in processes:
        process.start()
    found: list[Reports] = []
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while len(found) < len(processes):
            assert time.monotonic() < deadline, "the processes hang; their stacks are in stderr"
            signals = [-process.exitcode for process in processes if process.exitcode]
            if any(number > 0 for number in signals):
                raise _KilledError(f"processes were killed by signals {signals}")
            assert not signals, f"processes ended with statuses {signals}"
            with suppress(Empty):
                found.append(queue.get(timeout=1))
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()
    return found
