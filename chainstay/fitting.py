"""The one call: extract, measure, solve, execute."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, Literal, TypeGuard, TypeVar, get_args

import torch
from torch import nn

from chainstay.errors import ChainstayError, InvalidBudgetError, UnsupportedModelError
from chainstay.planning import solve_measured
from chainstay.profiles import ChainProfile, Link, Stage
from chainstay.runtime.accounting import Account
from chainstay.runtime.block_calls import BlockExecutor, strays
from chainstay.runtime.calls import Ends, Planned, PlannedBlocks, PlannedCall, TensorEnds
from chainstay.runtime.device_memory import free_bytes, plain_bytes
from chainstay.runtime.executor import Executor
from chainstay.runtime.extracted import measure_extracted
from chainstay.runtime.extraction import extract
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.fitted import Fitted, OnNewShape
from chainstay.runtime.intercepted import measure_intercepted
from chainstay.runtime.measurement import Measurement, require_loss, require_repeats
from chainstay.runtime.measuring import measure
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.runtime.sharding import gathered, is_sharded, left_sharded
from chainstay.runtime.transfers import Transport, engine_for, measure_link
from chainstay.runtime.transfers.settings import OffloadSettings
from chainstay.schedule import Schedule
from chainstay.solution import Method, Solution
from chainstay.solve import budget_bytes
from chainstay.solve.offload import solve_offload
from chainstay.validation.simulate import simulate

__all__ = ["Budget", "fit", "unfit"]

Budget = int | str | float | Fraction | None
Way = Literal["auto", "export", "blocks"]
"""How `fit` gets at a model's stages."""
Module = TypeVar("Module", bound=nn.Module)

_ANY_PROFILE: Final = ChainProfile(
    input_bytes=2**40, input_gradient_bytes=0, stages=(Stage(name="loss"),)
)
"""Tells budgets that no profile could make right before anything is measured."""


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
    offload: bool = False,
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

    Several processes: inside DistributedDataParallel, each makes plans of its own, and no
    gradient is exchanged meanwhile. Where the forward itself communicates (FSDP2, SyncBatchNorm),
    all must fit at once, and meet new shapes at once; with FSDP2 they agree on one plan.

    Args:
        model: Any module in the mode it trains in. A plain `torch.nn.Sequential` is cut
            between its own stages, others where `chainstay.runtime.extraction` finds fit.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        budget: For a step's activations, saved tensors, gradients of activations, inputs
            and temporaries together: bytes, ``"8GiB"``, a share of what plain training needs
            (``"50%"``, ``0.5``), or ``None`` for what is free on the CUDA device (see
            `reserve`). Parameters, their gradients and optimizer state are yours.
        loss: From the model's output to a scalar; holds its targets itself. Without it, the
            output's own ``loss`` counts, if it has one; otherwise gradients of all outputs
            are counted, and the loss's memory is yours to add.
        method: As for `chainstay.solve_measured`.
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
        offload: Whether activations may go to host memory and come back; for now instead of
            recomputing only, with ``recompute=False``. On the CPU, threads that copy stand in
            for the link of a device.
        link: With `offload`: to the host; by default as `chainstay.measure_link` finds it.
        host_budget: With `offload`: for what is away at a time, in bytes or as ``"8GiB"``;
            ``None`` for no limit.
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
        ValueError: `by`, `on_new_shape` or `repeats` is none, or `recompute`, `offload`, `link`
            and `host_budget` do not go together.

    Complexity:
        A few seconds of tracing, about ``repeats + 8`` steps of plain training, and some
            20 solves (less than a second for 50 stages).

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> model = fit(model, (torch.zeros(2, 8),), budget="100%", loss=torch.Tensor.mean)
        >>> model(torch.zeros(2, 8)).mean().backward()
        >>> model.chainstay.solution.is_optimal
        True
    """
    _require_model(model)
    _require_choice("by", by, get_args(Way))
    _require_choice("on_new_shape", on_new_shape, get_args(OnNewShape))
    require_loss(loss)
    require_repeats(repeats)
    reserved = plain_bytes("reserve", reserve)
    offloading = OffloadSettings.of(
        offload=offload, recompute=recompute, link=link, host_budget=host_budget
    )
    _require_budget(model, budget, reserved)
    planner = _Planner(
        model=model,
        budget=budget,
        loss=loss,
        method=method,
        by=by,
        granularity=granularity,
        reserve=reserved,
        offloading=offloading,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Plans a model for calls like a sample; the settings are those of `fit`.

    Attributes:
        offloading: How, if at all.
        settings: Of measuring.
    """

    model: nn.Module
    budget: Budget
    loss: Callable[[Any], torch.Tensor] | None
    method: Method | str
    by: Way
    granularity: Granularity
    reserve: int
    offloading: OffloadSettings | None
    settings: Mapping[str, Any]

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Planned:
        """Extract, measure, solve."""
        if is_sharded(self.model):
            if self.by == "export":
                raise UnsupportedModelError(
                    f"the parameters of this {type(self.model).__name__} are spread over several "
                    "processes, which an export does not see; use by='blocks'"
                )
            self._require_recomputing("its parameters are spread over several processes")
            with left_sharded(self.model):
                return self._by_blocks(args, kwargs, "its parameters are sharded")
        with own_hooks_aside(self.model):
            if self.by == "blocks":
                self._require_recomputing("by is 'blocks'")
                return self._by_blocks(args, kwargs, "as asked for")
            try:
                ends, measured = self._measured(args, kwargs)
            except UnsupportedModelError as refusal:
                if self.by == "export" or self.offloading is not None:
                    raise
                return self._instead(args, kwargs, refusal)
        if self.offloading is not None:
            return self._offloaded(ends, measured, self.offloading)
        solution = solve_measured(measured, self._budget_of(measured), self.method)
        executor = Executor(measured.chain, measured.traits, solution.schedule)
        return PlannedCall(ends, executor, solution, measured.profile_for(solution.schedule))

    def _offloaded(
        self, ends: Ends, measured: Measurement, settings: OffloadSettings
    ) -> PlannedCall:
        """The plan with transfers."""
        device = measured.chain.device
        solution = solve_offload(
            measured.offload_profile,
            self._budget_of(measured),
            link=settings.link or measure_link(device),
            method=self.method,  # type: ignore[arg-type]  # it looks for itself
        )
        engine = engine_for(device, link=solution.link, host_budget=settings.host_budget)
        transport = Transport.of(solution, measured.offload_profile, engine)
        solution = replace(solution, peak_bytes=transport.plan.peak_bytes)
        executor = Executor(measured.chain, measured.traits, solution.schedule, transport)
        profile = measured.profile_for(Schedule.keep_all(len(measured.profile)))
        return PlannedCall(ends, executor, solution, profile)

    def _require_recomputing(self, reason: str) -> None:
        if self.offloading is not None:
            raise UnsupportedModelError(
                f"this {type(self.model).__name__} cannot be offloaded stage by stage: {reason}; "
                "leave offload=True out, or use by='export' in one process"
            )

    def _instead(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], refusal: UnsupportedModelError
    ) -> Planned:
        """By blocks, since the other way is refused."""
        try:
            return self._by_blocks(args, kwargs, str(refusal))
        except UnsupportedModelError as other:
            if str(other) == str(refusal):
                raise refusal from other
            raise UnsupportedModelError(
                f"{refusal} (by='export'). Nor can its blocks be stages: {other} (by='blocks')"
            ) from refusal

    def _by_blocks(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], reason: str
    ) -> PlannedBlocks:
        with parameter_hooks_aside(self.model.modules()):
            chain, measured = measure_intercepted(
                self.model, args, kwargs, loss=self.loss, repeats=self.settings["repeats"]
            )
        account = Account.largest(gathered(self.model, measured.account))
        measured = replace(measured, account=account)
        budget = min(gathered(self.model, self._budget_of(measured)))

        def solved() -> Solution | ChainstayError:
            try:
                return solve_measured(
                    measured,
                    budget,
                    self.method,
                    can_run=lambda schedule: not strays(chain, schedule),
                )
            except ChainstayError as refusal:
                return refusal

        # All processes that share parameters need the same plan, or the same refusal.
        solution = gathered(self.model, solved())[0]
        if isinstance(solution, ChainstayError):
            raise solution
        return PlannedBlocks(
            forward=self.model.forward,
            executor=BlockExecutor(chain, measured, solution.schedule),
            solution=solution,
            profile=measured.profile_for(solution.schedule),
            origin=f"by blocks ({chain.stages[0].name} to {chain.stages[-1].name}): {reason}\n",
        )

    def _measured(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Ends, Measurement]:
        measured: Measurement
        if _is_plain_chain(self.model, args, kwargs):
            with parameter_hooks_aside(self.model.modules()):
                measured = measure(self.model, *args, loss=self.loss, **self.settings)
            return TensorEnds(), measured
        chain = extract(self.model, args, kwargs, granularity=self.granularity)
        with parameter_hooks_aside(self.model.modules()):
            measured = measure_extracted(chain, args, kwargs, loss=self.loss, **self.settings)
        # The plan looks at the model's own flag itself, and its own hooks run around the chain.
        _, *inner = chain.likeness.training
        likeness = replace(chain.likeness, training=tuple(inner))
        return replace(chain, likeness=likeness), measured

    def _budget_of(self, measured: Measurement) -> int:
        """In bytes, rounded down."""
        if self.budget is None:
            return free_bytes(self.model, self.reserve)
        schedule = Schedule.keep_all(len(measured.profile))
        profile = measured.profile_for(schedule)
        if isinstance(self.budget, float | Fraction):
            plain = simulate(profile, schedule).peak_bytes
            return int(Fraction(self.budget) * plain)
        return budget_bytes(profile, self.budget)


def _is_plain_chain(
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


def _require_model(model: object) -> None:
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


def _require_budget(model: nn.Module, budget: object, reserve: int) -> None:
    """Refuse what is no budget for any profile, before anything is measured."""
    if budget is None:
        free_bytes(model, reserve)
    elif isinstance(budget, float | Fraction):
        if not 0 < budget <= 1:
            raise InvalidBudgetError(
                f"budget is {budget!r}; a number with a fraction is a share of plain training, "
                "above 0 and up to 1 (write whole bytes or '8GiB' otherwise)"
            )
    else:
        budget_bytes(_ANY_PROFILE, budget)  # type: ignore[arg-type]  # it looks for itself
