"""Models whose branches meet: what it takes to plan them apart, beside the model as one chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from chainstay.fitting.cut_joins import measured_join
from chainstay.join_planning import solve_measured_join
from chainstay.runtime.calls import Ends
from chainstay.runtime.extraction import ExtractedChain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.joining.executor import PlannedJoin

__all__ = ["JoinAttempt"]


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
    """

    model: nn.Module
    ends: Ends | None
    call: tuple[tuple[Any, ...], Mapping[str, Any]]
    loss: Callable[[Any], torch.Tensor] | None
    granularity: Granularity
    settings: Mapping[str, Any]

    @property
    def has_branches(self) -> bool:
        """Whether there are branches, as far as its extraction as a chain tells."""
        return isinstance(self.ends, ExtractedChain) and not self.ends.not_a_join

    def plan(self, budget: int) -> PlannedJoin:
        """The plan within `budget` bytes.

        Raises:
            UnsupportedModelError: The model is no join after all; the text says why.
            InvalidProfileError: Its branches are too many, or too long.
            InfeasibleBudgetError: Nothing was found that fits.
        """
        cut, measured = measured_join(
            self.model,
            *self.call,
            loss=self.loss,
            granularity=self.granularity,
            **self.settings,
        )
        solution = solve_measured_join(measured, budget)
        planned = cut.planned(
            solution,
            measured.account.profile_for(solution.schedule),
            overheads=tuple(measured.account.overheads(solution.schedule)),
        )
        return replace(planned, plain_time=measured.account.bare().least_time)
