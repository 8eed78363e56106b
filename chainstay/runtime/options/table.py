"""The options of a chain's stages, by stage and number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TypeAlias

from chainstay.errors import PlanMismatchError
from chainstay.runtime.options.option import Option
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.schedule import Schedule

__all__ = ["OptionTable", "fused", "options_of_alike", "used_options"]

OptionTable: TypeAlias = Mapping[tuple[int, int], Option]
"""Options by the first stage that they keep, and their number, from 1 on."""


def fused(stages: Sequence[ChainStage]) -> ChainStage:
    """Return several stages as one."""
    return reduce(ChainStage.fused_with, stages)


def used_options(table: OptionTable, schedule: Schedule) -> OptionTable:
    """Return the options that a schedule keeps stages under.

    Raises:
        PlanMismatchError: The table lacks one of them.
    """
    used = {(op.stage, op.option): op for op in schedule if op.option}
    for key, op in used.items():
        if key not in table:
            raise PlanMismatchError(
                f"{op} keeps stage {op.stage} under option {op.option}, and this chain has no such "
                "option; solve for the profile that it was measured with"
            )
    return {key: table[key] for key in used}


def options_of_alike(table: OptionTable, stages: Sequence[ChainStage]) -> OptionTable:
    """Return the same options of stages that do the same with parameters of their own.

    Raises:
        PlanMismatchError: One of them does something else.
    """
    alike: dict[tuple[int, int], Option] = {}
    for (first, number), option in table.items():
        own = option.for_stage(fused(stages[first : first + option.stages]))
        if own is None:
            raise PlanMismatchError(
                f"stage {first} ({stages[first].name}) is not the one whose options were measured; "
                "call chainstay.fit again"
            )
        alike[first, number] = own
    return alike
