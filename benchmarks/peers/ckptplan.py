"""ckptplan (PyPI) on a sequence of stages: declare blocks, profile, plan, apply.

Its dynamic program chooses which blocks to checkpoint within a budget of activation bytes. It
measures those on CUDA only and refuses to plan on other devices; here they are filled in, measured
as it defines them: what a forward of the block alone leaves behind. Blocks with BatchNorm it
never checkpoints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn

from benchmarks.peers.results import Contestant, Refusal
from benchmarks.trainings import Training
from chainstay.runtime import trace_memory

__all__ = ["planned_by_ckptplan"]

PEER: Final = "ckptplan"
SHARES: Final = (0.3, 0.5, 0.7)
"""Of the activation bytes of all blocks, as budgets."""


def planned_by_ckptplan(training: Training) -> Iterator[Contestant | Refusal]:
    """One way for each budget, as far as it finds one."""
    try:
        library: Any = import_module("ckptplan")
    except ImportError:
        yield Refusal(PEER, "", "not installed, see benchmarks/peers/requirements.txt")
        return
    if not isinstance(training.model, nn.Sequential):
        yield Refusal(PEER, "", "its blocks must follow one another")
        return
    named = [(f"block{index}", block) for index, block in enumerate(training.model)]
    blocks = library.declare_blocks(training.model, named)
    profiles = _profiles(library, blocks, training)
    total = sum(profile.activation_bytes_estimate for profile in profiles)
    for share in SHARES:
        budget = int(total * share)
        try:
            plan = library.plan_checkpoints(
                profiles,
                blocks,
                target_kind="activation_budget_bytes",
                target_value=budget,
            )
        except library.InfeasibleTargetError as refusal:
            yield Refusal(PEER, f"{share:.0%}", str(refusal).partition("\n")[0])
            continue
        forward = library.apply_plan(blocks, plan, training.args, None)
        setting = f"budget {share:.0%}"
        yield Contestant(peer=PEER, setting=setting, forward=forward, budget=budget)


def _profiles(library: Any, blocks: Any, training: Training) -> list[Any]:  # noqa: ANN401
    found = library.profile_blocks(
        blocks, training.args, device="cpu", dtype=torch.float32, num_warmup=1, num_trials=3
    )
    return [
        dataclasses.replace(
            profile,
            timing_only=False,
            activation_bytes_estimate=_activation_bytes(block.module, sample),
            activation_bytes_method="isolated_forward_delta",
        )
        for profile, block, sample in zip(found, blocks, _inputs_of(training), strict=True)
    ]


def _inputs_of(training: Training) -> list[torch.Tensor]:
    """Of every stage."""
    (sample,) = training.args
    found = []
    with torch.no_grad():
        for stage in training.model.children():
            found.append(sample)
            sample = stage(sample)
    return found


def _activation_bytes(block: nn.Module, sample: torch.Tensor) -> int:
    given = sample.detach().clone()
    if given.is_floating_point():
        given.requires_grad_()
    block(given)  # what stays from a first run is no activation
    return trace_memory(lambda: block(given), "cpu").end_bytes
