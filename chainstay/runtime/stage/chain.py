"""A model's stages, ready to be planned."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from chainstay.runtime.options.table import OptionTable
from chainstay.runtime.stage.chain_stage import ChainStage, Effects


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model's stages, ready to be planned.

    Attributes:
        stages: The stages that a schedule speaks about, the loss excluded.
        device: The device on which they were measured.
        names: The names in messages of the values that all stages may read, in order.
        effects: How each stage's forward touches the world, one per stage.
        options: Options of its stages, by stage and number.
    """

    stages: tuple[ChainStage, ...]
    device: torch.device
    names: tuple[str, ...]
    effects: tuple[Effects, ...]
    options: OptionTable = field(default_factory=dict)
