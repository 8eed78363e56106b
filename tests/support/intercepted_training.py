"""Sharded models (FSDP2) train by a plan of `chainstay.fit`, in two processes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import chainstay
from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.runtime import trace_memory
from training_conditions import (
    SHARES,
    Record,
    Sample,
    Transformer,
    differences,
    fit_to,
    recomputes,
    shown,
    trained,
)

__all__ = ["sharded_trials"]

DEPTH = 4


def sharded(*, reshards: bool, depth: int = DEPTH) -> Transformer:
    """FSDP2 around every block and the model, always with the same weights."""
    torch.manual_seed(0)
    model = Transformer(depth)
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshards)
    return model


def sample_of(rank: int) -> Sample:
    tokens = torch.arange(64).reshape(4, 16) * 7 % 24
    return Sample((tokens.roll(rank, 0),), {"bias": torch.zeros(16, 16)})


def by_fit(rank: int, share: str, *, reshards: bool) -> list[str]:
    """What differs after three steps, and whether a step needs more than promised."""
    sample = sample_of(rank)
    model = fit_to(sharded(reshards=reshards), sample, share)
    found = _gathered(trained(model, sample))
    expected = _gathered(trained(sharded(reshards=reshards), sample))
    wrong = differences(found, expected)
    if recomputes(model) != (share != "all"):
        wrong.append("the plan is another one than meant")
    if "its parameters are spread over several processes" not in str(model.chainstay):
        wrong.append(f"the reason is not told: {model.chainstay}")
    measured, promised = _peak(model, sample), shown(model).solution.peak_bytes
    if measured > promised:
        wrong.append(f"measured {measured}, promised {promised}")
    plain = chainstay.unfit(model)
    if "forward" in vars(plain) or differences(_gathered(trained(plain, sample)), found) == []:
        wrong.append("unfit did nothing, or trained weights train like fresh ones")
    return wrong


def with_a_new_shape(rank: int, *, reshards: bool) -> list[str]:
    """A plan is made in the middle of a forward, parameters whole or not."""
    sample = sample_of(rank)
    half = Sample((sample.args[0][:2],), sample.kwargs)
    model = fit_to(sharded(reshards=reshards), sample, "least")
    wrong = []
    plain = sharded(reshards=reshards)
    for given in (sample, half, sample):
        records = [_gathered(trained(module, given)) for module in (model, plain)]
        wrong += differences(*records)
    return wrong


def with_texts_of_its_own(rank: int) -> list[str]:
    """One process is given a new text in every step; nobody looks at blocks by itself."""
    sample = sample_of(rank)
    model, plain = fit_to(sharded(reshards=True), sample, "least"), sharded(reshards=True)
    wrong = []
    for number in range(2):
        title = str(number) if rank == 0 else ""
        given = Sample(sample.args, {**sample.kwargs, "title": title})
        wrong += differences(*(_gathered(trained(module, given)) for module in (model, plain)))
    return wrong


def refused(rank: int) -> list[str]:
    """An export does not see what FSDP2 does; a budget that is too small is told to all."""
    model, sample = sharded(reshards=True), sample_of(rank)
    wrong = []
    try:
        chainstay.fit(model, sample.args, sample.kwargs, budget="50%", by="export")
        wrong.append("exported")
    except UnsupportedModelError as refusal:
        if "spread over several processes" not in str(refusal):
            wrong.append(str(refusal))
    try:
        chainstay.fit(model, sample.args, sample.kwargs, budget=1000, repeats=1)
        wrong.append("fits in 1000 bytes")
    except InfeasibleBudgetError as refusal:
        fit_to(model, sample, "least")
        least = shown(model).solution.peak_bytes
        if not 1000 < refusal.required <= 2 * least:
            wrong.append(f"needs {refusal.required}, least {least}")
    return wrong


def _peak(model: torch.nn.Module, sample: Sample) -> int:
    """Of a step with its inputs; gradients are there."""

    def step() -> None:
        sample.loss(model).backward()

    sample.loss(model).backward()
    given: int = sum(tensor.nbytes for tensor in (*sample.args, *sample.kwargs.values()))
    return trace_memory(step, "cpu").peak_bytes + given


def _gathered(record: Record) -> Record:
    """Whole tensors from both processes' shards."""
    return {
        name: value.full_tensor() if isinstance(value, torch.distributed.tensor.DTensor) else value
        for name, value in record.items()
    }


def sharded_trials() -> dict[str, Callable[[int], list[str]]]:
    """What a process does, given its rank; it reports what is wrong."""
    trials: dict[str, Callable[[int], list[str]]] = {
        "FSDP2, refusals": refused,
        "FSDP2, texts of its own": with_texts_of_its_own,
    }
    for reshards in (True, False):
        kind = f"FSDP2 {'resharding' if reshards else 'whole after forward'}"
        trials[f"{kind}, new shape"] = partial(with_a_new_shape, reshards=reshards)
        for share in SHARES if reshards else ("60 %", "least"):
            trials[f"{kind}, {share}"] = partial(by_fit, share=share, reshards=reshards)
    return trials
