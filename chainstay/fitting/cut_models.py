"""Whole models cut into stages, measured or not, and ready to run by a schedule.

`measured_model` is what a plan is made from. `cut_model` gives the same stages without looking
at a clock or at memory: for a plan that is known already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.fitting.caches import caches_off
from chainstay.profiles import ChainProfile
from chainstay.runtime.alternatives import Alternative
from chainstay.runtime.block_calls import BlockExecutor
from chainstay.runtime.calls import Ends, Planned, PlannedBlocks, PlannedCall, TensorEnds
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.environment import Traits, observe_traits
from chainstay.runtime.executor import Executor
from chainstay.runtime.extracted import AnyLoss, measure_extracted
from chainstay.runtime.extraction import ExtractedChain, InterceptedChain, extract
from chainstay.runtime.extraction.calls import device_of
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.extraction.intercepting import intercept_sampled
from chainstay.runtime.fusing import blaming, fuse_stages, run_stage
from chainstay.runtime.intercepted import measure_intercepted
from chainstay.runtime.measurement import Measurement, measuring
from chainstay.runtime.measuring import measure
from chainstay.runtime.merging import merge_idle_cuts
from chainstay.runtime.mode import Mode, titled_modules
from chainstay.runtime.outside import Around
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.runtime.sharding import is_sharded, left_sharded
from chainstay.runtime.stages import ChainStage, split_model
from chainstay.runtime.states import State, copied, detached
from chainstay.runtime.transfers import Transport
from chainstay.solution import Solution

__all__ = ["CutBy", "CutModel", "cut_model", "measured_model"]

CutBy = Literal["chain", "export", "blocks"]
"""Between the stages of a `torch.nn.Sequential`, in its exported graph, or between blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutModel:
    """A model as stages.

    Attributes:
        model: The user's.
        by: How it was cut.
        chain: The stages, and what they hold for.
        traits: Of each stage.
        ends: From a call to the first state, and from the last one to the output; not of blocks.
        blocks: Where the model goes on calling its stages itself.
        reason: Why it was cut by blocks, if so.
    """

    model: nn.Module
    by: CutBy
    chain: Chain
    traits: tuple[Traits, ...]
    ends: Ends | None = None
    blocks: InterceptedChain | None = None
    reason: str = ""

    def planned(  # noqa: PLR0913  # all but the first two are told only
        self,
        solution: Solution,
        profile: ChainProfile,
        *,
        overheads: tuple[int, ...] | None = None,
        transport: Transport | None = None,
        alternatives: tuple[Alternative, ...] = (),
        plain_time: int | None = None,
    ) -> Planned:
        """The model's forward by the schedule of `solution`.

        Args:
            solution: For these stages and the loss.
            profile: What they cost.
            overheads: Of each operation, where that was measured.
            transport: Makes the solution's transfers.
            alternatives: What it was weighed against, itself included.
            plain_time: Of plain training, in ns, where that was measured.

        Raises:
            PlanMismatchError: The schedule is for another number of stages, or cannot be run.
            InvalidScheduleError: An operation lacks what it needs.
        """
        if self.blocks is not None:
            names = [stage.name for stage in self.chain.stages]
            return PlannedBlocks(
                forward=self.model.forward,
                executor=BlockExecutor(self.blocks, self, solution.schedule),
                solution=solution,
                profile=profile,
                origin=f"by blocks ({names[0]} to {names[-1]}){self.reason}\n",
                overheads=overheads,
                alternatives=alternatives,
                plain_time=plain_time,
            )
        assert self.ends is not None, "only blocks have none"
        schedule = solution.schedule if transport is None else transport.schedule
        executor = Executor(self.chain, self.traits, schedule, transport)
        return PlannedCall(
            ends=self.ends,
            executor=executor,
            solution=solution,
            profile=profile,
            overheads=overheads,
            alternatives=alternatives,
            plain_time=plain_time,
        )


def measured_model(  # noqa: PLR0913  # all but the call have defaults
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    by: Literal["auto", "export", "blocks"] = "auto",
    granularity: Granularity = "fine",
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
    once_cut: Callable[[], None] = lambda: None,
) -> tuple[CutModel, Measurement]:
    """Cut a model into stages, and measure them; arguments as for `chainstay.fit`.

    `once_cut` is called between the two: measuring shows a bar of its own.

    Raises:
        UnsupportedModelError: It cannot be cut; the text says why in each way.
    """
    settings: dict[str, Any] = {
        "loss": loss,
        "repeats": repeats,
        "progress": progress,
        "cache": cache,
    }
    if is_sharded(model):
        once_cut()
        with left_sharded(model):  # its own hooks are what makes it whole
            return _measured_blocks(model, (args, kwargs), settings, ": its parameters are sharded")
    with own_hooks_aside(model):
        if by == "blocks":
            once_cut()
            return _measured_blocks(model, (args, kwargs), settings, ": as asked for")
        try:
            with caches_off(model):
                extracted = _extracted(model, args, kwargs, granularity)
                once_cut()
                with parameter_hooks_aside(model.modules()):
                    if extracted is None:
                        assert isinstance(model, nn.Sequential), "only a plain chain needs none"
                        measured: Measurement = measure(model, *args, **settings)
                        return _cut(model, "chain", measured, ends=TensorEnds.of(model))
                    measured = measure_extracted(extracted, args, kwargs, **settings)
        except UnsupportedModelError as refusal:
            if by == "export":
                raise
            return _measured_instead(model, (args, kwargs), settings, refusal)
        return _cut(model, "export", measured, ends=extracted)


def _extracted(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], granularity: Granularity
) -> ExtractedChain | None:
    """The model's exported graph, cut; ``None`` of a plain chain whose own stages are as fine.

    Raises:
        UnsupportedModelError: It cannot be cut, and is no plain chain.
    """
    if not is_plain_chain(model, args, kwargs):
        return extract(model, args, kwargs, granularity=granularity)
    try:
        extracted = extract(model, args, kwargs, granularity=granularity)
    except UnsupportedModelError:
        return None  # hooks, compiled stages: its own stages are run as they are
    is_finer = granularity != "fine" or len(extracted.stages) > len(model)
    return extracted if is_finer else None


def cut_model(  # noqa: PLR0913  # all but the model and the call decide where it is cut
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    by: CutBy,
    granularity: Granularity = "fine",
    has_loss: bool = True,
) -> CutModel:
    """Cut a model into the stages that `measured_model` finds, without measuring them.

    Args:
        model: As for `chainstay.fit`.
        args: Of a call.
        kwargs: Of a call.
        by: How.
        granularity: Of an export.
        has_loss: Whether a loss was measured; it decides about the last cut of an export.

    Raises:
        UnsupportedModelError: It cannot be cut in that way.
    """
    with own_hooks_aside(model), parameter_hooks_aside(model.modules()):
        device = device_of(model, args, kwargs)
        if by == "blocks":
            return _cut_blocks(model, args, kwargs, device)
        if by == "chain":
            if not is_plain_chain(model, args, kwargs):
                raise UnsupportedModelError(
                    f"this {type(model).__name__} is no torch.nn.Sequential called with one "
                    "tensor, as that of the plan was"
                )
            single = split_model(model)
            source = detached((args[0],))
            with measuring(model.modules(), device):
                stages = fuse_stages(single, source)
                traits = tuple(_traits(stages, source, (), device))
            chain = _chain(stages, source, device)
            return CutModel(
                model=model, by=by, chain=chain, traits=traits, ends=TensorEnds.of(model)
            )
        with caches_off(model):
            extracted = extract(model, args, kwargs, granularity=granularity)
        with caches_off(model), measuring(model.modules(), device):
            first, shared = extracted.begin(args, kwargs)
            parts = [ChainStage(each.name, (each,)) for each in extracted.stages]
            if has_loss:
                parts.append(ChainStage("loss", (AnyLoss(),), is_loss=True))
            merged = merge_idle_cuts(parts, first, shared)
            stages = merged[: len(merged) - has_loss]
            source = detached(first)
            traits = tuple(_traits(stages, source, shared, device))
        chain = _chain(stages, source, device)
        return CutModel(model=model, by=by, chain=chain, traits=traits, ends=extracted)


def is_plain_chain(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> TypeGuard[nn.Sequential]:
    """Whether the model is a chain as it is, called like one."""
    return (
        isinstance(model, nn.Sequential)
        and type(model).forward is nn.Sequential.forward
        and "forward" not in vars(model)  # libraries replace it, for mixed precision above all
        and len(args) == 1
        and isinstance(args[0], torch.Tensor)
        and not kwargs
    )


def _cut(
    model: nn.Module, by: CutBy, measured: Measurement, *, ends: Ends
) -> tuple[CutModel, Measurement]:
    cut = CutModel(model=model, by=by, chain=measured.chain, traits=measured.traits, ends=ends)
    return cut, measured


def _measured_blocks(
    model: nn.Module,
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    settings: Mapping[str, Any],
    reason: str,
) -> tuple[CutModel, Measurement]:
    with parameter_hooks_aside(model.modules()):
        blocks, measured = measure_intercepted(model, *call, **settings)
    cut, _ = _cut(model, "blocks", measured, ends=TensorEnds.of(model))
    return replace(cut, ends=None, blocks=blocks, reason=reason), measured


def _measured_instead(
    model: nn.Module,
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    settings: Mapping[str, Any],
    refusal: UnsupportedModelError,
) -> tuple[CutModel, Measurement]:
    """By blocks, since the other way is refused."""
    try:
        return _measured_blocks(model, call, settings, f": {refusal}")
    except UnsupportedModelError as other:
        if str(other) == str(refusal):
            raise refusal from other
        raise UnsupportedModelError(
            f"{refusal} (by export). Nor can its blocks be stages: {other} (by blocks)"
        ) from refusal


def _cut_blocks(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], device: torch.device
) -> CutModel:
    with measuring(model.modules(), device):
        chain, sample = intercept_sampled(model, args, kwargs)
        held = Around(chain, sample, args, kwargs, None, device).held()
        if held:
            chain, sample = intercept_sampled(model, args, kwargs, held=held)
        stages = tuple(ChainStage(each.name, (each,)) for each in chain.stages)
        traits: list[Traits] = []
        for segment in chain.segments():
            source = copied(sample.states[segment.start], device)
            shared = sample.shared[segment.start]
            traits += _traits(stages[segment.start : segment.stop], source, shared, device)
    return CutModel(
        model=model,
        by="blocks",
        chain=_chain(stages, sample.states[0], device),
        traits=tuple(traits),
        blocks=chain,
    )


def _chain(stages: tuple[ChainStage, ...], source: State, device: torch.device) -> Chain:
    modules = titled_modules(stages)
    return Chain(
        stages=stages,
        layouts=tuple(map(TensorLayout.of, source)),
        device=device,
        mode=Mode.now(modules, device),
        modules=modules,
    )


def _traits(
    stages: tuple[ChainStage, ...], source: State, shared: State, device: torch.device
) -> Iterator[Traits]:
    """Of every stage, in two runs of each."""
    for index, stage in enumerate(stages):
        with blaming(stage, index, source):
            yield observe_traits(stage, source, shared, device)
        source = detached(run_stage(stage, index, source, shared))
