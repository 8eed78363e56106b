"""The options of stages, by stage and number; stages of a join count branch by branch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.devices.autocast import has_outdated_copies
from chainstay.runtime.execute.handles import is_parameter, require_repeatable_call
from chainstay.runtime.options.option import Option
from chainstay.runtime.stage.chain_stage import ChainStage, fused
from chainstay.schedule import Op, Schedule

OptionTable: TypeAlias = Mapping[tuple[int, int], Option]
"""Options by the first stage that they keep, and their number, from 1 on."""


def used_options(
    table: OptionTable,
    schedule: Schedule,
    stages: Sequence[ChainStage],
    position: Callable[[Op], int] = attrgetter("stage"),
) -> OptionTable:
    """Return the options that a schedule keeps stages under, made for these stages.

    `position` tells the number of the stage of an operation.

    Raises:
        PlanMismatchError: The table lacks one of them, or its stage does something else.
    """
    used = {(position(op), op.option): op for op in schedule if op.option}
    network = "chain" if all(op.branch is None for op in schedule) else "join"
    found: dict[tuple[int, int], Option] = {}
    for key, op in used.items():
        if key not in table:
            raise PlanMismatchError(
                f"{op} keeps stage {op.stage} under option {op.option}, and this "
                f"{network} has no such option; solve for the profile that it was measured with"
            )
        first, option = key[0], table[key]
        own = option.for_stage(fused(stages[first : first + option.stages]))
        if own is None:
            raise PlanMismatchError(
                f"stage {first} ({stages[first].name}) is not the one whose options were measured; "
                "call chainstay.fit again"
            )
        found[key] = own
    return found


def require_repeatable_step(
    table: OptionTable, shared: Sequence[Any], device: torch.device
) -> None:
    """Refuse a step in which nothing can be dropped and run again.

    Raises:
        PlanMismatchError: It is so in these surroundings (see `require_repeatable_call`), or
            autocast's copies of weights are older than what replays cast, as after an optimizer's
            step within one context.
    """
    require_repeatable_call(device)
    read = (position for option in table.values() for position in option.code.replay_effects.reads)
    if has_outdated_copies((w for w in map(shared.__getitem__, read) if is_parameter(w)), device):
        raise PlanMismatchError(
            "a weight has changed inside one context of torch.autocast, which goes on with its "
            "copy from before, while what the plan drops is made again from the weight; leave the "
            "context before the optimizer's step (put it around the forward and the loss)"
        )
