"""Plans for calls like a sample: what `chainstay.fit` does once its settings are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.fitting.budgets import Budget, bytes_of
from chainstay.fitting.cut_models import CutModel, measured_model
from chainstay.fitting.joins import JoinAttempt
from chainstay.fitting.means import Means
from chainstay.fitting.ways import Ways, fastest_way
from chainstay.planning import solve_measured
from chainstay.runtime.accounting import Account
from chainstay.runtime.block_calls import strays
from chainstay.runtime.calls import Planned
from chainstay.runtime.extraction import InterceptedChain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.sharding import gathered, is_sharded
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
        if self.by == "blocks":
            self._require_recomputing("by is 'blocks'")
        cut, measured = measured_model(
            self.model,
            args,
            kwargs,
            loss=self.loss,
            by="export" if self.means.is_offload_asked else self.by,
            granularity=self.granularity,
            **self.settings,
        )
        if cut.blocks is not None:
            return self._by_blocks(cut, cut.blocks, measured)
        attempt = JoinAttempt(
            model=self.model,
            ends=cut.ends,
            call=(args, kwargs),
            loss=self.loss,
            granularity=self.granularity,
            settings=self.settings,
        )
        ways = Ways(measured, self._budget_of(measured), self.method, self.means, attempt)
        return fastest_way(cut, ways)

    def _require_recomputing(self, reason: str) -> None:
        if self.means.is_offload_asked:
            raise UnsupportedModelError(
                f"this {type(self.model).__name__} cannot be offloaded stage by stage: {reason}; "
                "leave offload=True out, or use by='export' in one process"
            )

    def _by_blocks(self, cut: CutModel, blocks: InterceptedChain, measured: Measurement) -> Planned:
        account = Account.largest(gathered(self.model, measured.account))
        measured = replace(measured, account=account)
        budget = min(gathered(self.model, self._budget_of(measured)))

        def solved() -> Solution | ChainstayError:
            try:
                return solve_measured(
                    measured,
                    budget,
                    self.method,
                    can_run=lambda schedule: not strays(blocks, schedule),
                )
            except ChainstayError as refusal:
                return refusal

        # All processes that share parameters need the same plan, or the same refusal.
        solution = gathered(self.model, solved())[0]
        if isinstance(solution, ChainstayError):
            raise solution
        return cut.planned(
            solution,
            measured.profile_for(solution.schedule),
            overheads=measured.overheads_for(solution.schedule),
            plain_time=measured.profile.least_time,
        )

    def _budget_of(self, measured: Measurement) -> int:
        return bytes_of(self.budget, self.model, self.reserve, measured)
