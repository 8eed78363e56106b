"""The front of estimating: a model and a sample in, an `Estimated` out, nothing computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.costs import Subject, assemble_profile
from chainstay.runtime.estimating.attention import attention_as_on
from chainstay.runtime.estimating.devices import DeviceModel, device_model
from chainstay.runtime.estimating.estimated import Estimated
from chainstay.runtime.estimating.faults import told_by_name
from chainstay.runtime.estimating.pricing import Pricing
from chainstay.runtime.estimating.probing import estimate_stages
from chainstay.runtime.estimating.stand_ins import StandIns
from chainstay.runtime.estimating.watching import Watching
from chainstay.runtime.extracted import LossPart
from chainstay.runtime.extraction.calls import require_module_and_tuple
from chainstay.runtime.extraction.chain import ExtractedChain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.extraction.extracting import extract
from chainstay.runtime.losses import loss_in
from chainstay.runtime.measurement import require_loss
from chainstay.runtime.merging import merge_idle_cuts
from chainstay.runtime.mode import Autocast
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import detached

__all__ = ["estimate"]


def estimate(  # noqa: PLR0913  # one call for everything; all but three have defaults
    model: nn.Module | Callable[[], nn.Module],
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | DeviceModel,
    loss: Callable[[Any], torch.Tensor] | None = None,
    granularity: Granularity = "fine",
) -> Estimated:
    """Estimate what every stage of `model` costs on a device, without computing anything.

    Memory is counted on fake tensors, which have storages but no memory, in a forward and a
    backward of each stage: the model may be larger than this machine. Times are a roofline:
    arithmetic or memory traffic, whichever takes longer, plus a launch, operator by operator.
    The model is not touched.

    What fake tensors cannot see is not counted: workspaces inside kernels (convolutions have
    large ones, on CPUs and in cuDNN), the allocator's rounding (512 bytes per tensor on CUDA)
    and fragments; leave a margin in the budget. Operators that the CPU decomposes otherwise
    than a GPU are counted as on the CPU, but for attention.

    Args:
        model: A module in the mode it trains in, on any device: on ``meta`` it needs no memory.
            Or a function that builds one; it is called with ``meta`` as torch's default device.
            The present autocast counts; where there is no GPU, enter that of ``"cpu"``.
        sample_args: Positional arguments of a call, on any device; values do not matter.
        sample_kwargs: Keyword arguments, likewise.
        device: Name of a known device, ``"A100-80GB"`` for instance, or its figures.
        loss: From the model's output to a scalar; targets that it holds must be on the CPU.
            Without it, the output's own ``loss`` counts if it has one; otherwise the last
            stage is free, and gradients of all outputs are counted.
        granularity: As for `chainstay.runtime.extraction.extract`.

    Raises:
        UnknownDeviceError: There is no such device; the text lists those that are.
        UnsupportedModelError: The model decides by values of tensors, has an operator that
            says nothing of its shapes, or cannot be cut into stages.

    Complexity:
        Seconds: tracing, one forward of fake tensors, and two more forwards and a backward
        of stages that are not like others.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).to("meta")
        >>> estimated = estimate(model, (torch.zeros(2, 8),), device="H100", loss=torch.mean)
        >>> [(stage.name, stage.saved_bytes) for stage in estimated.profile.stages]
        [('0+1', 128), ('2', 8), ('loss', 4)]
    """
    pricing = Pricing(device_model(device))
    require_loss(loss)
    built = _built(model)
    require_module_and_tuple(built, sample_args)
    stand_ins = StandIns()
    likeness = stand_ins.model_like(built)
    args, kwargs = stand_ins.arguments_like((sample_args, dict(sample_kwargs or {})))
    name = type(built).__name__
    with told_by_name(name), _autocast_as_on_gpu(), torch.enable_grad(), stand_ins.mode:
        chain = extract(likeness, args, kwargs, granularity=granularity)
        with attention_as_on(pricing.device):
            subject = _subject_of(chain, args, kwargs, loss)
            observed, memories = estimate_stages(subject, Watching(pricing, stand_ins.mode))
        autocast = Autocast.now(subject.device)
        profile = assemble_profile(observed, memories, subject, autocast)
    parameters = list(built.parameters())
    return Estimated(
        model=name,
        device=pricing.device,
        profile=profile,
        parameters=sum(each.numel() for each in parameters),
        parameter_bytes=sum(each.nbytes for each in parameters),
        trained_bytes=sum(each.nbytes for each in parameters if each.requires_grad),
    )


def _built(model: object) -> Any:  # noqa: ANN401  # whether it is a module is asked later
    """The model itself, or what a function builds where tensors need no memory."""
    if isinstance(model, nn.Module) or not callable(model):
        return model
    try:
        with torch.device("meta"):
            return model()
    except Exception as cause:  # the function is the user's code and may raise anything
        raise UnsupportedModelError(
            f"the model cannot be built on the meta device: {type(cause).__name__}: {cause}; "
            "leave what needs values out of its construction, or pass a model built elsewhere"
        ) from cause


def _subject_of(
    chain: ExtractedChain,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], torch.Tensor] | None,
) -> Subject:
    """The chain as stages to be run, the loss behind them if there is one."""
    source, shared = chain.begin(args, kwargs)
    stages = [ChainStage(each.name, (each,)) for each in chain.stages]
    state = source
    with torch.no_grad():
        for stage in stages:
            state = stage(state, shared)
        function = loss or (None if loss_in(chain.finish(state, shared)) is None else loss_in)
    if function is not None:
        stages.append(ChainStage("loss", (LossPart(chain.finish, function),), is_loss=True))
    return Subject(
        stages=merge_idle_cuts(stages, source, shared),
        source=detached(source),
        shared=shared,
        device=torch.device("cpu"),  # where stand-ins are
    )


@contextmanager
def _autocast_as_on_gpu() -> Iterator[None]:
    """Autocast on a GPU is autocast of stand-ins."""
    if not torch.is_autocast_enabled("cuda"):
        yield
        return
    dtype, has_cache = torch.get_autocast_dtype("cuda"), torch.is_autocast_cache_enabled()
    with torch.autocast("cpu", dtype=dtype, cache_enabled=has_cache):
        yield
