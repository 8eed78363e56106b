"""Models whose branches meet: planned as a join where that is faster than as one chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError, InvalidProfileError, UnsupportedModelError
from chainstay.fitting.caches import caches_off
from chainstay.join_planning import solve_measured_join
from chainstay.runtime.calls import Ends, Planned
from chainstay.runtime.extraction import ExtractedChain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.joining.executor import JoinExecutor, PlannedJoin
from chainstay.runtime.joining.extracting import extract_join
from chainstay.runtime.joining.measuring import measure_join
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.solution import Method
from chainstay.units import format_bytes

__all__ = ["JoinAttempt", "faster_of"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAttempt:
    """What is needed to plan a model's branches apart; see `chainstay.fit`.

    Attributes:
        model: Of which `ends` were extracted.
        ends: Which know whether it has branches.
        call: Arguments and keyword arguments like those to come.
        loss: From the model's output.
        granularity: Of the export.
        settings: Of measuring.
        budget: In bytes.
        method: Joins are solved by the dynamic program only.
    """

    model: nn.Module
    ends: Ends
    call: tuple[tuple[Any, ...], Mapping[str, Any]]
    loss: Callable[[Any], torch.Tensor] | None
    granularity: Granularity
    settings: Mapping[str, Any]
    budget: int
    method: Method | str

    @property
    def is_promising(self) -> bool:
        """Whether there are branches, and a method for them."""
        has_branches = isinstance(self.ends, ExtractedChain) and not self.ends.not_a_join
        return has_branches and (self.method in ("auto", "dp") or self.method == DP())

    def plan(self) -> PlannedJoin:
        """The plan.

        Raises:
            UnsupportedModelError: The model is no join after all; the text says why.
            InvalidProfileError: Its branches are too many, or too long.
            InfeasibleBudgetError: Nothing was found that fits.
        """
        args, kwargs = self.call
        with own_hooks_aside(self.model), caches_off(self.model):
            join = extract_join(self.model, args, kwargs, granularity=self.granularity)
        settings = {name: each for name, each in self.settings.items() if name != "cache"}
        with parameter_hooks_aside(self.model.modules()):
            measured = measure_join(join, args, kwargs, loss=self.loss, **settings)
        solution = solve_measured_join(measured, self.budget)
        # The plan looks at the model's own flag itself.
        _, *inner = join.likeness.training
        return PlannedJoin(
            join=replace(join, likeness=replace(join.likeness, training=tuple(inner))),
            executor=JoinExecutor(measured, solution.schedule),
            solution=solution,
            profile=measured.account.profile_for(solution.schedule),
            origin="",
        )


def faster_of(by_chain: Callable[[], Planned], attempt: JoinAttempt) -> Planned:
    """The faster of two plans, one of the model as a chain, one of its branches apart.

    Which is faster is told by how much longer than plain training each takes, by its own
    measurement: so the noise between two measurements does not decide.

    Raises:
        InfeasibleBudgetError: Neither fits; the lower of the two least budgets is named.
    """
    chain: Planned | InfeasibleBudgetError
    try:
        chain = by_chain()
    except InfeasibleBudgetError as refusal:
        if not attempt.is_promising:
            raise
        chain = refusal
    if not isinstance(chain, InfeasibleBudgetError) and (
        not attempt.is_promising or _slowdown(chain) <= 1
    ):
        return chain
    try:
        join = attempt.plan()
    except (InfeasibleBudgetError, InvalidProfileError, UnsupportedModelError) as refusal:
        _log.info("no plan of branches: %s", refusal)
        return _chain_or_refusal(chain, refusal)
    if isinstance(chain, InfeasibleBudgetError):
        needed = f"as one chain it needs {format_bytes(chain.required)}"
        return replace(join, origin=_origin(join, needed))
    if _slowdown(join) < _slowdown(chain):
        slower = float(_slowdown(chain)) - 1
        return replace(join, origin=_origin(join, f"as one chain {slower:.1%} slower than plain"))
    return chain


def _chain_or_refusal(chain: Planned | InfeasibleBudgetError, refusal: Exception) -> Planned:
    if not isinstance(chain, InfeasibleBudgetError):
        return chain
    if isinstance(refusal, InfeasibleBudgetError) and refusal.required < chain.required:
        raise refusal
    raise chain


def _slowdown(planned: Planned) -> Fraction:
    """Of a step, in times of plain training."""
    return Fraction(planned.solution.makespan, max(planned.profile.least_time, 1))


def _origin(join: PlannedJoin, comparison: str) -> str:
    shape = join.executor.plan.shape
    lengths = " and ".join(map(str, shape.lengths))
    return f"branches of {lengths} stages that meet, planned apart ({comparison})\n"
