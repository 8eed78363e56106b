"""The front of estimating: a model and a sample in, an `Estimated` out, nothing computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.extract import require_granularity, require_module_and_tuple
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.isolation import functions_of, require_initialised
from chainstay.runtime.capture.trials.world import world_kept
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.estimate.attention import leave_out_attention_dropout
from chainstay.runtime.estimate.devices import DeviceModel, device_model
from chainstay.runtime.estimate.estimated import Estimated
from chainstay.runtime.estimate.observer import instruments_on
from chainstay.runtime.estimate.refusals import told_by_name
from chainstay.runtime.estimate.stage_estimates import estimate_stages
from chainstay.runtime.estimate.stand_ins import FakeStandIns
from chainstay.runtime.estimate.traced_call import traced_call
from chainstay.runtime.execute.items import movable_chain
from chainstay.runtime.measures.costs import ChainAccountant
from chainstay.runtime.measures.option_costs import observe_options, with_options
from chainstay.runtime.stage.loss_stage import loss_stage, require_loss
from chainstay.runtime.stage.staged_graph import subject_of


def estimate(  # noqa: PLR0913  # one call for everything; all but three have defaults
    model: nn.Module | Callable[[], nn.Module],
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | DeviceModel,
    loss: Callable[[Any], torch.Tensor] | None = None,
    granularity: Granularity = "fine",
    stage_options: bool = True,
) -> Estimated:
    """Estimate what every stage of `model` costs on a device, without computing anything.

    Memory is counted on fake tensors, which have storages but no memory, in a forward and a
    backward of each stage: the model may be larger than this machine. Times are a roofline:
    arithmetic or memory traffic, whichever takes longer, plus a launch, operator by operator; but
    no stage is faster than the host issues its operators. The model is not touched.

    What fake tensors cannot see is not counted: workspaces inside kernels (convolutions have
    large ones, on CPUs and in cuDNN), the allocator's rounding (512 bytes per tensor on CUDA)
    and fragments; leave a margin in the budget. Operators that the CPU decomposes otherwise
    than a GPU are counted as on the CPU, but for attention.

    Args:
        model: A module in the mode it trains in, on any device: on ``meta`` it needs no memory.
            Or a function that builds one; it is called with ``meta`` as torch's default device.
            The present autocast counts; where there is no GPU, enter that of ``"cpu"``.
        sample_args: Positional arguments of a call, on any device; values do not matter.
        sample_kwargs: Keyword arguments of that call.
        device: Name of a known device, ``"A100-80GB"`` for instance, or its figures.
        loss: A function from the model's output to a scalar; targets that it holds must be on the
            CPU. Without it, the output's own ``loss`` counts if it has one; otherwise the last
            stage is free, and gradients of all outputs are counted.
        granularity: The granularity, as for `chainstay.runtime.capture.extract.extract`.
        stage_options: Whether stages may be kept in part, as by `chainstay.fit`.

    Raises:
        UnknownDeviceError: There is no such device; the text lists those that are.
        UnsupportedModelError: The model decides by values of tensors, has an operator that
            says nothing of its shapes, or cannot be cut into stages.

    Complexity:
        Seconds: tracing, one forward of fake tensors, and two more forwards and a backward
        of stages that are not like others, and of each of their options.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)).to("meta")
        >>> estimated = estimate(model, (torch.zeros(2, 8),), device="H100", loss=torch.mean)
        >>> [(stage.name, stage.saved_bytes) for stage in estimated.profile.stages]
        [('0+1', 128), ('2', 8), ('loss', 4)]
    """
    figures = device_model(device)
    require_loss(loss)
    require_granularity(granularity)
    built = _built(model)
    require_module_and_tuple(built, sample_args)
    require_initialised(built)
    stand_ins = FakeStandIns()
    shadow = stand_ins.call_like(Call.of(built, sample_args, sample_kwargs))
    here, name = shadow.device, shadow.name
    with (
        told_by_name(name),
        world_kept(functions_of(shadow.model), here),
        _autocast_as_on_gpu(),
        torch.enable_grad(),
        stand_ins.mode,
    ):
        traced, inputs, output = traced_call(shadow)
        if figures.fuses_attention:
            leave_out_attention_dropout(traced.captured.graph)
        graph = cut_into_chain(traced, granularity, repeated_blocks(shadow.model))
        behind = loss_stage(loss, output, graph.output, graph.begin(inputs)[1])
        instruments = instruments_on(figures, stand_ins.mode)
        subject = replace(subject_of(graph, inputs, behind, here), instruments=instruments)
        observed, memories = estimate_stages(subject, figures, stand_ins.mode)
        accountant = ChainAccountant.of(observed, memories, subject, Autocast.now(here))
        account = accountant.account(observed, memories)
        if stage_options:
            options = observe_options(observed, memories, [subject], is_whole=True)
            account, _ = with_options(account, options, accountant.kept)
    parameters = list(built.parameters())
    return Estimated(
        model=name,
        device=figures,
        profile=account.by_kind() if stage_options else account.profile(),
        movable_profile=movable_chain(account.with_flat_options(account.profile())),
        parameters=sum(parameter.numel() for parameter in parameters),
        parameter_bytes=sum(parameter.nbytes for parameter in parameters),
        trained_bytes=sum(parameter.nbytes for parameter in parameters if parameter.requires_grad),
    )


def _built(model: object) -> Any:
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


@contextmanager
def _autocast_as_on_gpu() -> Iterator[None]:
    """Autocast on a GPU is autocast of stand-ins."""
    autocast = Autocast.on_gpu()
    if autocast is None:
        yield
        return
    with torch.autocast("cpu", dtype=autocast.dtype, cache_enabled=autocast.has_cache):
        yield
