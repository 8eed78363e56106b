"""`fit`: capture a model's stages, measure and solve them, and rehearse the plan."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

import torch
from torch import nn

from chainstay.errors import InvalidBudgetError, UnsupportedModelError, type_with_article
from chainstay.fitting.budgets import Budget, require_budget
from chainstay.fitting.fitted import Fitted, fitted_of, require_fitted
from chainstay.fitting.planner import OnNewShape, PlannerSettings, StageSource
from chainstay.fitting.solved_plans import SolvedPlans
from chainstay.fitting.strategies.memory_options import MemoryOptions
from chainstay.problems.arguments import whole_bytes
from chainstay.profiles import Link
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.extract import require_granularity, require_module_and_tuple
from chainstay.runtime.capture.trials.compiled_calls import compiler_of, is_wrapped
from chainstay.runtime.capture.trials.model_forward import unbound_forward
from chainstay.runtime.devices.device_memory import free_bytes
from chainstay.runtime.measures.cost_files import require_cache
from chainstay.runtime.measures.measured import require_repeats
from chainstay.runtime.stage.loss_stage import require_loss
from chainstay.solution import Method
from chainstay.solve import resolve_method

Module = TypeVar("Module", bound=nn.Module)


def fit(  # noqa: PLR0913  # one call for everything; all but the sample have defaults
    model: Module,
    sample_args: tuple[Any, ...] = (),
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    budget: Budget,
    loss: Callable[[Any], torch.Tensor] | None = None,
    method: Method | str = "auto",
    by: StageSource = "auto",
    granularity: Granularity = "fine",
    stage_options: bool = True,
    on_new_shape: OnNewShape = "plan",
    bit_for_bit: bool = True,
    reserve: int | str = 0,
    recompute: bool = True,
    offload: bool | None = None,
    link: Link | None = None,
    host_budget: int | str | None = None,
    repeats: int = 3,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> Module:
    """Make `model` train within a memory budget, as fast as that is possible.

    The model stays the same object: its class, parameters, buffers and ``state_dict`` are
    untouched, and ``model(...)`` gives what it gave, gradients, buffers and random numbers
    included: bit for bit where plain training repeats itself. Only ``model.forward`` goes by a
    plan now. Without gradients it runs plainly. ``model.chainstay`` shows the plan; `unfit` takes
    it away; `fit` again with another budget plans again.

    Without a sample, the first training call plans. Whatever makes another graph later (a shape,
    a type, a mode, an attribute that decides something) is planned when it is met, and told in
    one line; a graph that differs only in numbers goes by the known plan.

    Models of ``transformers`` whose config has ``use_cache=True`` give no ``past_key_values`` by
    a plan, as under their own gradient checkpointing, unless the call asks for them, or gives other
    bits without, as attention with dropout may: then the plan has them, too, and tells that.

    The plan is the fastest of keeping all, recomputing only, offloading only, and both, as
    far as each fits, by simulated times; of a model whose branches meet,
    also of planning each branch apart. It is rehearsed once before it is used. Printing
    ``model.chainstay`` shows all of these, ``model.chainstay.alternatives`` has them as data.

    Several processes: inside DistributedDataParallel, each makes plans of its own, and no
    gradient is exchanged meanwhile. Where the forward itself communicates (FSDP2, SyncBatchNorm),
    all must fit at once, and meet new shapes at once (with SyncBatchNorm new numbers, too); with
    FSDP2 they agree on one plan.

    Args:
        model: Any module in the mode it trains in.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments of that call.
        budget: The limit for a step's activations, saved tensors, gradients of activations, inputs
            and temporaries together: bytes, ``"8GiB"``, a share of what plain training needs
            (``"50%"``, ``0.5``; of the first call that is planned, for all shapes), or ``None``
            for what is free on the accelerator (see `reserve`). Parameters, their gradients and
            optimizer state are yours.
        loss: A function from the model's output to a scalar; holds its targets itself. Without it,
            the output's own ``loss`` counts, if it has one; otherwise gradients of all outputs
            do, and the memory of a cross-entropy of the largest one. So it is, and told, with a
            loss that no graph can be made of: one that reads values of tensors (``.item()``).
        method: The method, as for `chainstay.solve_measured`; with ``recompute=False``, as for
            `chainstay.solve_offload`.
        by: ``"graph"`` cuts the model's graph as TorchDynamo traces it (``"export"`` is its
            former name); ``"blocks"`` takes the modules of its lists (ModuleList and the like) as
            stages, each by a graph of its own, or the modules inside of one that has none, while
            the model's own forward calls them; what is around them runs as ever, and its memory
            counts. ``"auto"`` goes by blocks where there
            is no full graph (sharding by FSDP2, compiled modules, decisions by values).
            ``model.chainstay`` tells which, and why.
        granularity: Of the graph, as for `chainstay.extract`.
        stage_options: Whether a stage, or a block that is several, may be kept in part: what is
            cheap to compute (activation functions, norms, dropout) is dropped and made again in
            its backward. Where it is False, a stage is kept whole or runs again whole.
        on_new_shape: A call that no plan is for ``"plan"``: gets one; ``"refuse"``: raises
            `PlanMismatchError`; ``"run plainly"``: trains without one.
        bit_for_bit: Whether a model is refused whose forward gives other bits when it runs again
            on the same input. Some kernels of accelerators (atomic additions) do so in plain
            training, too: where it is False, results may differ by rounding.
        reserve: Where `budget` is ``None``: bytes to leave for what is not there yet, the state of
            the optimizer above all (``"2GiB"``, or a number).
        recompute: Whether stages may run again.
        offload: Whether what is stored may go to host memory and come back. By default where
            there is a link: on an accelerator, and anywhere else with `link`. On the CPU, threads
            that copy at its pace stand in for one; nothing is gained there.
        link: The link to the host; by default as `chainstay.measure_link` finds it. It goes no
            further.
        host_budget: The limit for what is away at a time, in bytes or as ``"8GiB"``; ``None`` for
            no limit.
        repeats: The least number of timed runs of each stage; see `chainstay.measure`.
        progress: Show on stderr what is planned, and a bar while measuring if that is a terminal.
            False leaves out warnings, too, such as that a loss cannot be traced.
        cache: A directory for what was measured, one JSON file per model, call and machine;
            what is found there is not measured again, but for compiled blocks. By default there is
            none.

    Returns:
        `model` itself.

    Raises:
        UnsupportedModelError: Not a module, or it cannot be cut into stages; the text says why,
            as a graph and by blocks.
        InvalidBudgetError: `budget` is none.
        InfeasibleBudgetError: Nothing was found that fits; in ``error.required`` something
            does, see `chainstay.solve_measured`.
        HostBudgetError: What the plan has away at a time exceeds `host_budget`.
        UnknownMethodError: There is no such method.
        SolverLimitError: No plan was found that fits, and it is not proved that there is none.
        ValueError: `by`, `granularity`, `on_new_shape`, `repeats`, `cache` or what must be True or
            False is none, or `recompute`, `offload`, `link` and `host_budget` do not go together.

    Complexity:
        Some seconds, or 15 to 80 steps of plain training where these take longer: the more, the
            fewer stages repeat each other (``benchmarks/results/fit_time.md``); with a link,
            seconds more for plans that do both (some 10 s for 70 stages).

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> model = fit(model, (torch.zeros(2, 8),), budget="100%", loss=torch.Tensor.mean)
        >>> model(torch.zeros(2, 8)).mean().backward()
        >>> model.chainstay.solution.is_optimal
        True
    """
    require_model(model)
    require_module_and_tuple(model, sample_args)
    settings = settings_of(
        _device_of(model),
        budget=budget,
        loss=loss,
        method=method,
        by=by,
        granularity=granularity,
        stage_options=stage_options,
        on_new_shape=on_new_shape,
        bit_for_bit=bit_for_bit,
        reserve=reserve,
        recompute=recompute,
        offload=offload,
        link=link,
        host_budget=host_budget,
        repeats=repeats,
        progress=progress,
        cache=cache,
    )
    if budget is None:
        free_bytes(model, settings.reserve)
    fitted = Fitted(model, settings, _solver_for(fitted_of(model), settings))
    if sample_args or sample_kwargs:
        if not model.training:
            settings.say(
                f"this {type(model).__name__} is in eval mode, and planned as it is; if it trains "
                "in training mode, call model.train() before fit"
            )
        fitted.plan_for(model, sample_args, dict(sample_kwargs or {}))
    fitted.install(model)
    return model


def settings_of(  # noqa: PLR0913  # those of `fit`
    device: torch.device,
    *,
    recompute: bool = True,
    offload: bool | None = None,
    link: Link | None = None,
    host_budget: int | str | None = None,
    reserve: int | str = 0,
    **others: Any,
) -> PlannerSettings:
    """Return the arguments of `fit`, looked through; its errors, as far as they need no model."""
    require_budget(others["budget"])
    _require_choice("recompute", recompute, (True, False))
    _require_choice("offload", offload, (True, False, None))
    settings = PlannerSettings(
        memory=MemoryOptions.of(
            recompute=recompute, offload=offload, link=link, host_budget=host_budget, device=device
        ),
        reserve=whole_bytes("reserve", reserve),
        **others,
    )
    if settings.reserve and settings.budget is not None:
        raise InvalidBudgetError(
            f"reserve is {reserve!r}, but it is left of what is free, with budget=None; the budget "
            f"is {settings.budget!r}: leave reserve out"
        )
    _require_choice("by", settings.by, get_args(StageSource))
    _require_choice("on_new_shape", settings.on_new_shape, get_args(OnNewShape))
    for name in ("stage_options", "bit_for_bit", "progress"):
        _require_choice(name, getattr(settings, name), (True, False))
    require_granularity(settings.granularity)
    require_loss(settings.loss)
    require_repeats(settings.repeats)
    require_cache(settings.cache)
    if recompute and settings.method != "auto":
        resolve_method(settings.method)
    return settings


def unfit(model: Module) -> Module:
    """Take the plan away: `model` is as it was before `fit`.

    Returns:
        `model` itself.

    Raises:
        UnsupportedModelError: The model is not fitted, or its forward was replaced since.
    """
    fitted = require_fitted(model)
    fitted.uninstall(model)
    fitted.close()
    return model


def require_model(model: object) -> None:
    """Refuse what cannot be fitted."""
    if not isinstance(model, nn.Module):
        remedy = (
            "put the stages into a torch.nn.Sequential"
            if isinstance(model, list | tuple)
            else "wrap it in a module that registers what it trains"
        )
        raise UnsupportedModelError(
            f"the model is {type_with_article(model)}, must be a torch.nn.Module; {remedy}"
        )
    if _device_of(model).type == "meta":
        raise UnsupportedModelError(
            f"this {type(model).__name__} is on the meta device, where nothing can run; build it "
            "on the device that it trains on, or plan for one that is not here: chainstay.estimate"
        )
    if inspect.isgeneratorfunction(unbound_forward(model)):
        raise UnsupportedModelError(
            f"the forward of this {type(model).__name__} is a generator: it runs while the loop "
            "reads what it yields, and a plan runs it all at once; let it return a list"
        )
    fitted = fitted_of(model)
    if fitted is not None:
        fitted.require_in_place(model)
    elif compiler_of(model) is not None:
        raise UnsupportedModelError(
            f"this {type(model).__name__} was compiled by torch.compile as one, of which no plan "
            "can run a part again; compile its blocks one by one instead (for block in "
            "model.layers: block.compile()), or fit the model before it is compiled"
            f"{': model._orig_mod' if is_wrapped(model) else ''}"
        )
    elif getattr(model, "chainstay", None) is not None:  # what a fitted model has when unpickled
        raise UnsupportedModelError(
            f"this {type(model).__name__} has an attribute named chainstay, where fit would put "
            "its plan; rename that"
        )


def _solver_for(fitted: Fitted | None, settings: PlannerSettings) -> SolvedPlans:
    """Return a maker of plans; it has what was measured where a model is fitted again alike."""
    solver = SolvedPlans(settings)
    if fitted is None or not isinstance(fitted.planner.maker, SolvedPlans):
        return solver
    before, names = fitted.planner.maker, ("loss", "granularity", "stage_options")
    if all(getattr(fitted.settings, name) == getattr(settings, name) for name in names):
        solver.measured, solver.loss_costs = dict(before.measured), before.loss_costs
    return solver


def _require_choice(name: str, given: object, known: tuple[object, ...]) -> None:
    if given not in known:
        raise ValueError(
            f"{name} is {given!r}, must be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}"
        )


def _device_of(model: nn.Module) -> torch.device:
    tensors = (*model.parameters(), *model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))
