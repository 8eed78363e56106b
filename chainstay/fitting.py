"""The one call: extract, measure, solve, execute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final, TypeGuard, TypeVar, get_args

import torch
from torch import nn

from chainstay.errors import InvalidBudgetError, UnknownMethodError, UnsupportedModelError
from chainstay.profiles import ChainProfile, Stage
from chainstay.runtime.calls import Ends, PlannedCall, TensorEnds
from chainstay.runtime.device_memory import free_bytes
from chainstay.runtime.executor import Executor
from chainstay.runtime.extracted import measure_extracted
from chainstay.runtime.extraction import extract
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.fitted import Fitted, OnNewShape
from chainstay.runtime.measurement import Measurement, require_loss, require_repeats
from chainstay.runtime.measuring import measure
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.runtime.remaking import remade_bytes
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Method, Solution
from chainstay.solve import Auto, budget_bytes, solve_chain
from chainstay.units import format_bytes, parse_bytes
from chainstay.validation.simulate import simulate

__all__ = ["Budget", "fit", "unfit"]

Budget = int | str | float | Fraction | None
Module = TypeVar("Module", bound=nn.Module)

_FREELY: Final = Auto(discards=Discards.FREE)

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
    granularity: Granularity = "fine",
    on_new_shape: OnNewShape = "plan",
    reserve: int | str = 0,
    repeats: int = 5,
) -> Module:
    """Make `model` train within a memory budget, as fast as that is possible.

    The model stays the same object: its class, parameters, buffers and ``state_dict`` are
    untouched, and ``model(...)`` gives what it gave, bit for bit, gradients, buffers and
    random numbers included. Only ``model.forward`` goes by a plan now. Without gradients it
    runs plainly. ``model.chainstay`` shows the plan; `unfit` takes it away.

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
        method: As for `chainstay.solve_chain`; ``"auto"`` with free discards, which this
            runtime can do.
        granularity: As for `chainstay.runtime.extraction.extract`.
        on_new_shape: A call unlike the sample (another shape, type, training flag, autocast)
            gets a plan of its own, up to 8 of them are kept; or is refused; or runs plainly.
        reserve: With ``budget=None``: bytes to leave for what is not there yet, the state of
            the optimizer above all (``"2GiB"``, or a number).
        repeats: Timed runs of each stage.

    Returns:
        `model` itself.

    Raises:
        UnsupportedModelError: Not a module, fitted already, or it cannot be cut into stages.
        InvalidBudgetError: `budget` is none.
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget.
        UnknownMethodError: There is no such method.
        ValueError: `on_new_shape` or `repeats` is none.

    Complexity:
        A few seconds of tracing and about ``repeats + 8`` steps of plain training.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> model = fit(model, (torch.zeros(2, 8),), budget="100%", loss=torch.Tensor.mean)
        >>> model(torch.zeros(2, 8)).mean().backward()
        >>> model.chainstay.solution.is_optimal
        True
    """
    _require_model(model)
    _require_choice(on_new_shape)
    require_loss(loss)
    require_repeats(repeats)
    reserved = _plain_bytes(reserve)
    _require_budget(model, budget, reserved)
    planner = _Planner(
        model=model,
        budget=budget,
        loss=loss,
        method=method,
        granularity=granularity,
        reserve=reserved,
        repeats=repeats,
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
    """Plans a model for calls like a sample; the settings are those of `fit`."""

    model: nn.Module
    budget: Budget
    loss: Callable[[Any], torch.Tensor] | None
    method: Method | str
    granularity: Granularity
    reserve: int
    repeats: int

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlannedCall:
        """Extract, measure, solve."""
        with own_hooks_aside(self.model):
            ends, measured = self._measured(args, kwargs)
        profile = measured.profile
        solution = self._solved(profile, self._budget_of(profile))
        executor = Executor(measured.chain, measured.traits, solution.schedule)
        return PlannedCall(ends, executor, solution, profile)

    def _measured(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Ends, Measurement]:
        measured: Measurement
        if _is_plain_chain(self.model, args, kwargs):
            with parameter_hooks_aside(self.model.modules()):
                measured = measure(self.model, *args, loss=self.loss, repeats=self.repeats)
            return TensorEnds(), measured
        chain = extract(self.model, args, kwargs, granularity=self.granularity)
        with parameter_hooks_aside(self.model.modules()):
            measured = measure_extracted(chain, args, kwargs, loss=self.loss, repeats=self.repeats)
        # The plan looks at the model's own flag itself, and its own hooks run around the chain.
        _, *inner = chain.likeness.training
        likeness = replace(chain.likeness, training=tuple(inner))
        return replace(chain, likeness=likeness), measured

    def _solved(self, profile: ChainProfile, budget: int) -> Solution:
        """The plan, its peak that of the runtime."""
        method = _FREELY if self.method == "auto" else self.method
        solution = solve_chain(profile, budget, method)
        excess = remade_bytes(profile, solution.schedule)
        if solution.peak_bytes + excess <= budget:
            return solution
        if self.method == "auto":
            return solve_chain(profile, budget, "dp")  # persistent: makes nothing twice at a time
        raise UnknownMethodError(
            f"the plan of {solution.method} makes {format_bytes(excess)} of tensors again while it "
            "holds them, which this runtime cannot do within the budget; use method='dp'"
        )

    def _budget_of(self, profile: ChainProfile) -> int:
        """In bytes, rounded down."""
        if self.budget is None:
            return free_bytes(self.model, self.reserve)
        if isinstance(self.budget, float | Fraction):
            plain = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
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


def _require_choice(on_new_shape: object) -> None:
    known = get_args(OnNewShape)
    if on_new_shape not in known:
        raise ValueError(
            f"on_new_shape is {on_new_shape!r}, must be {', '.join(map(repr, known[:-1]))} or "
            f"{known[-1]!r}"
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


def _plain_bytes(reserve: object) -> int:
    """The reserve in bytes."""
    size = parse_bytes(reserve) if isinstance(reserve, str) else reserve
    if not isinstance(size, int) or size < 0:
        raise InvalidBudgetError(f"reserve is {reserve!r}; write whole bytes or '2GiB'")
    return size
