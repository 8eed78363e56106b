"""The one call: extract, measure, solve, execute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.fitting.budgets import Budget, require_budget
from chainstay.fitting.means import Means
from chainstay.fitting.planner import Planner, Way
from chainstay.profiles import Link
from chainstay.runtime.device_memory import plain_bytes
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.fitted import Fitted, OnNewShape
from chainstay.runtime.measurement import require_loss, require_repeats
from chainstay.solution import Method

__all__ = ["fit", "require_model", "unfit"]

Module = TypeVar("Module", bound=nn.Module)


def fit(  # noqa: PLR0913  # one call for everything; all but the sample have defaults
    model: Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    budget: Budget,
    loss: Callable[[Any], torch.Tensor] | None = None,
    method: Method | str = "auto",
    by: Way = "auto",
    granularity: Granularity = "fine",
    on_new_shape: OnNewShape = "plan",
    reserve: int | str = 0,
    recompute: bool = True,
    offload: bool | None = None,
    link: Link | None = None,
    host_budget: int | str | None = None,
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> Module:
    """Make `model` train within a memory budget, as fast as that is possible.

    The model stays the same object: its class, parameters, buffers and ``state_dict`` are
    untouched, and ``model(...)`` gives what it gave, bit for bit, gradients, buffers and
    random numbers included. Only ``model.forward`` goes by a plan now. Without gradients it
    runs plainly. ``model.chainstay`` shows the plan; `unfit` takes it away.

    Models of ``transformers`` whose config has ``use_cache=True`` give no ``past_key_values`` by
    a plan, as under their own gradient checkpointing; a call with ``use_cache=True`` is refused.

    The plan is the fastest of keeping all, recomputing only, offloading only, and both, as
    far as each fits, by times that the referee has counted; of a model whose branches meet,
    also of planning each branch apart. Printing ``model.chainstay`` shows all of these,
    ``model.chainstay.alternatives`` has them as data.

    Several processes: inside DistributedDataParallel, each makes plans of its own, and no
    gradient is exchanged meanwhile. Where the forward itself communicates (FSDP2, SyncBatchNorm),
    all must fit at once, and meet new shapes at once; with FSDP2 they agree on one plan.

    Args:
        model: Any module in the mode it trains in. It is cut where
            `chainstay.runtime.extraction` finds fit; a plain `torch.nn.Sequential` between its
            own stages where that is finer, or where it cannot be exported.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        budget: For a step's activations, saved tensors, gradients of activations, inputs
            and temporaries together: bytes, ``"8GiB"``, a share of what plain training needs
            (``"50%"``, ``0.5``), or ``None`` for what is free on the CUDA device (see
            `reserve`). Parameters, their gradients and optimizer state are yours.
        loss: From the model's output to a scalar; holds its targets itself. Without it, the
            output's own ``loss`` counts, if it has one; otherwise gradients of all outputs
            are counted, and the loss's memory is yours to add.
        method: As for `chainstay.solve_measured`; with ``recompute=False``, as for
            `chainstay.solve_offload`.
        by: ``"export"`` cuts the model's graph as torch.export sees it; ``"blocks"`` takes the
            modules of its lists (ModuleList and the like) as stages, called by the model's
            own forward, hooks, compilation and sharding (FSDP2) included; what is around them
            runs as ever, and its memory counts. ``"auto"`` exports, and goes by blocks where
            that is refused. ``model.chainstay`` tells which, and why.
        granularity: Of the export, as for `chainstay.runtime.extraction.extract`.
        on_new_shape: A call unlike the sample (another shape, type, training flag, autocast)
            gets a plan of its own, up to 8 of them are kept; or is refused; or runs plainly.
        reserve: With ``budget=None``: bytes to leave for what is not there yet, the state of
            the optimizer above all (``"2GiB"``, or a number).
        recompute: Whether stages may run again.
        offload: Whether what is stored may go to host memory and come back. By default where
            there is a link: on a CUDA device, and anywhere else with `link`. On the CPU, threads
            that copy at its pace stand in for one; nothing is gained there.
        link: To the host; by default as `chainstay.measure_link` finds it. It goes no further.
        host_budget: For what is away at a time, in bytes or as ``"8GiB"``; ``None`` for no limit.
        repeats: The least number of timed runs of each stage; see `chainstay.measure`.
        progress: Show a bar on stderr while measuring, if that is a terminal.
        cache: A directory for what was measured, one JSON file per model, call and machine;
            what is found there is not measured again. By default there is none.

    Returns:
        `model` itself.

    Raises:
        UnsupportedModelError: Not a module, fitted already, or it cannot be cut into stages;
            the text says why in each way.
        InvalidBudgetError: `budget` is none.
        InfeasibleBudgetError: Nothing was found that fits; in ``error.required`` something
            does, see `chainstay.solve_measured`.
        HostBudgetError: What the plan has away at a time exceeds `host_budget`.
        UnknownMethodError: There is no such method.
        SolverLimitError: No way fits, although it is not proved that none does.
        ValueError: `by`, `on_new_shape` or `repeats` is none, or `recompute`, `offload`, `link`
            and `host_budget` do not go together.

    Complexity:
        A few seconds of tracing, about ``repeats + 8`` steps of plain training, and some
            20 solves (less than a second for 50 stages); with a link, seconds more for plans
            that do both (some 10 s for 70 stages).

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> model = fit(model, (torch.zeros(2, 8),), budget="100%", loss=torch.Tensor.mean)
        >>> model(torch.zeros(2, 8)).mean().backward()
        >>> model.chainstay.solution.is_optimal
        True
    """
    require_model(model)
    _require_choice("by", by, get_args(Way))
    _require_choice("on_new_shape", on_new_shape, get_args(OnNewShape))
    require_loss(loss)
    require_repeats(repeats)
    reserved = plain_bytes("reserve", reserve)
    means = Means.of(
        recompute=recompute,
        offload=offload,
        link=link,
        host_budget=host_budget,
        device=_device_of(model),
    )
    require_budget(model, budget, reserved)
    planner = Planner(
        model=model,
        budget=budget,
        loss=loss,
        method=method,
        by=by,
        granularity=granularity,
        reserve=reserved,
        means=means,
        settings={"repeats": repeats, "progress": progress, "cache": cache},
    )
    fitted = Fitted(model, planner, on_new_shape)
    fitted.plan_for(sample_args, dict(sample_kwargs or {}))
    fitted.install()
    return model


def unfit(model: Module) -> Module:
    """Take the plan away: `model` is as it was before `fit`.

    Returns:
        `model` itself.

    Raises:
        UnsupportedModelError: The model is not fitted, or its forward was replaced since.
    """
    fitted = getattr(model, "chainstay", None)
    if not isinstance(fitted, Fitted):
        raise UnsupportedModelError(
            f"this {type(model).__name__} is not fitted; call chainstay.fit(model, ...) first"
        )
    fitted.remove()
    return model


def require_model(model: object) -> None:
    """Refuse what is no module, or is fitted already.

    Raises:
        UnsupportedModelError: It is so.
    """
    if not isinstance(model, nn.Module):
        remedy = (
            "put the stages into a torch.nn.Sequential"
            if isinstance(model, list | tuple)
            else "wrap it in a module that registers what it trains"
        )
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__}, must be a torch.nn.Module; {remedy}"
        )
    if hasattr(model, "chainstay"):
        raise UnsupportedModelError(
            f"this {type(model).__name__} is fitted already, or has an attribute named chainstay; "
            "call chainstay.unfit(model) first"
        )


def _require_choice(name: str, given: object, known: tuple[str, ...]) -> None:
    if given not in known:
        raise ValueError(
            f"{name} is {given!r}, must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        )


def _device_of(model: nn.Module) -> torch.device:
    """Where the model is."""
    tensors = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
