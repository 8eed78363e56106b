"""Plans for calls like a sample: what `chainstay.fit` does once its settings are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeGuard

import torch
from torch import nn

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.fitting.budgets import Budget, bytes_of
from chainstay.fitting.caches import caches_off
from chainstay.fitting.joins import JoinAttempt, faster_of
from chainstay.fitting.means import Means
from chainstay.fitting.ways import fastest_way
from chainstay.planning import solve_measured
from chainstay.runtime.accounting import Account
from chainstay.runtime.block_calls import BlockExecutor, strays
from chainstay.runtime.calls import Ends, Planned, PlannedBlocks, TensorEnds
from chainstay.runtime.extracted import measure_extracted
from chainstay.runtime.extraction import extract
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.intercepted import measure_intercepted
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.measuring import measure
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.runtime.sharding import gathered, is_sharded, left_sharded
from chainstay.solution import Method, Solution

__all__ = ["Planner", "Way"]

Way = Literal["auto", "export", "blocks"]
"""How `fit` gets at a model's stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans a model for calls like a sample; the settings are those of `fit`.

    Attributes:
        means: How memory may be saved.
        settings: Of measuring.
    """

    model: nn.Module
    budget: Budget
    loss: Callable[[Any], torch.Tensor] | None
    method: Method | str
    by: Way
    granularity: Granularity
    reserve: int
    means: Means
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
                with caches_off(self.model):
                    ends, measured = self._measured(args, kwargs)
            except UnsupportedModelError as refusal:
                if self.by == "export" or self.means.is_offload_asked:
                    raise
                return self._instead(args, kwargs, refusal)
        if not self.means.recompute:
            return fastest_way(ends, measured, self._budget_of(measured), self.method, self.means)
        attempt = JoinAttempt(
            model=self.model,
            ends=ends,
            call=(args, kwargs),
            loss=self.loss,
            granularity=self.granularity,
            settings=self.settings,
            budget=self._budget_of(measured),
            method=self.method,
        )
        return faster_of(
            lambda: fastest_way(ends, measured, attempt.budget, self.method, self.means), attempt
        )

    def _require_recomputing(self, reason: str) -> None:
        if self.means.is_offload_asked:
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
                self.model, args, kwargs, loss=self.loss, **self.settings
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
            overheads=measured.overheads_for(solution.schedule),
        )

    def _measured(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Ends, Measurement]:
        measured: Measurement
        if _is_plain_chain(self.model, args, kwargs):
            with parameter_hooks_aside(self.model.modules()):
                measured = measure(self.model, *args, loss=self.loss, **self.settings)
            return TensorEnds.of(self.model), measured
        chain = extract(self.model, args, kwargs, granularity=self.granularity)
        with parameter_hooks_aside(self.model.modules()):
            measured = measure_extracted(chain, args, kwargs, loss=self.loss, **self.settings)
        # The plan looks at the model's own flag itself, and its own hooks run around the chain.
        _, *inner = chain.likeness.training
        likeness = replace(chain.likeness, training=tuple(inner))
        return replace(chain, likeness=likeness), measured

    def _budget_of(self, measured: Measurement) -> int:
        return bytes_of(self.budget, self.model, self.reserve, measured)


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
